"""The node-local folder: where it may be, whose it is, and what a sweep may take."""

from __future__ import annotations

import fcntl
import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import forks
from cpinfra.worker import node_local
from cpinfra.worker.node_local import NoRoomError

COOKIE = "0123456789abcdef"
NEED_BYTES = 1 << 20
FAR_TOO_MUCH_BYTES = 1 << 60


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """Two folders in place of /dev/shm and /tmp."""
    made = (tmp_path / "first place", tmp_path / "second")
    for place in made:
        place.mkdir()
    monkeypatch.setattr(node_local, "candidates", lambda: list(made))
    return made


@pytest.fixture
def held(places: tuple[Path, Path]) -> Iterator[Path]:
    """A folder whose owner lives: this process."""
    folder, lock = node_local.create(COOKIE, NEED_BYTES)
    yield folder
    os.close(lock)


def open_files() -> int:
    """How many descriptors this process has."""
    return len(list(Path("/proc/self/fd").iterdir()))


def leftover(cookie: str) -> Path:
    """A folder whose owner was killed."""
    folder, lock = node_local.create(cookie, NEED_BYTES)
    os.close(lock)
    return folder


def test_the_folder_is_private_and_in_the_best_place(places: tuple[Path, Path], held: Path) -> None:
    """It is in the first candidate, only its owner enters it, and its name follows from the cookie."""
    assert held == places[0] / f"cpinfra-{os.getuid()}-{COOKIE}"
    assert held.stat().st_mode & 0o777 == 0o700
    assert [path.name for path in places[0].iterdir()] == [held.name]


def test_its_room_is_looked_for_and_given_back(held: Path) -> None:
    """The needed bytes are allocated once to see that they are there, and are then free for the ledger."""
    (lock,) = held.iterdir()

    assert lock.stat().st_blocks == 0


def test_its_lock_is_held_and_not_inherited_by_programs(places: tuple[Path, Path]) -> None:
    """Nobody else can lock it while its owner lives; a program that the owner starts has no part in it."""
    folder, lock = node_local.create(COOKIE, NEED_BYTES)
    try:
        assert not os.get_inheritable(lock)
        with (folder / "lock").open() as other, pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        os.close(lock)


def test_the_next_place_is_taken_where_the_first_will_not_do(places: tuple[Path, Path]) -> None:
    """A place that is missing does not end the run."""
    places[0].rmdir()

    folder, lock = node_local.create(COOKIE, NEED_BYTES)
    os.close(lock)

    assert folder.parent == places[1]


def test_no_room_anywhere_names_each_place_with_its_reason(
    places: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One error for all candidates, with what was wrong with each."""
    missing, file, remote = places[0] / "missing", places[0] / "file", places[0] / "remote"
    file.touch()
    remote.mkdir()
    monkeypatch.setattr(node_local, "candidates", lambda: [missing, file, remote, places[1]])
    kind = node_local._file_system
    monkeypatch.setattr(node_local, "_file_system", lambda path: "nfs4" if path == remote else kind(path))

    with pytest.raises(NoRoomError) as raised:
        node_local.create(COOKIE, FAR_TOO_MUCH_BYTES)

    expected = [
        f"{missing}: No such file or directory",
        f"{file}: Not a directory",
        f"{remote}: a network file system",
        rf"{places[1]}: (No space left on device|File too large)",
    ]
    assert re.fullmatch("; ".join(expected), str(raised.value))
    assert list(remote.iterdir()) == []


def test_a_place_that_will_not_do_is_left_as_it_was(places: tuple[Path, Path]) -> None:
    """No half-made folder, and no open file that would keep its room, stays behind."""
    before = open_files()

    with pytest.raises(NoRoomError):
        node_local.create(COOKIE, FAR_TOO_MUCH_BYTES)

    assert open_files() == before
    assert [list(place.iterdir()) for place in places] == [[], []]


@pytest.mark.parametrize("kind", ["nfs", "nfs4", "lustre", "gpfs", "beegfs", "cifs", "fuse.sshfs"])
def test_network_file_systems_are_refused(
    places: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """A store or a ledger on a network file system would work now and hang later."""
    monkeypatch.setattr(node_local, "_file_system", lambda path: kind)

    with pytest.raises(NoRoomError, match=f"{places[0]}: a network file system; {places[1]}: a network"):
        node_local.create(COOKIE, NEED_BYTES)


def test_the_kind_of_a_file_system_is_that_of_the_kernel(tmp_path: Path) -> None:
    """Mounted pseudo file systems are told apart, also for paths below them that do not exist."""
    (tmp_path / "link").symlink_to("/proc/self")

    assert node_local._file_system(Path("/proc/self/no such thing")) == "proc"
    assert node_local._file_system(tmp_path / "link") == "proc"


MOUNTS = (
    rb"""/dev/root / ext4 rw 0 0
server:/x /home nfs4 rw 0 0
tmpfs /home/a\040b tmpfs rw 0 0
evil /home/\342\200\250x fuse.evil rw 0 0
server:/y /home/a\040b/deep lustre rw 0 0
autofs /auto autofs rw 0 0
server:/z /auto cifs rw 0 0
sep """.replace(rb"\342\200\250", "\u2028".encode())
    + "/home/\u2028\x85 fuse.sshfs rw 0 0\n".encode()
)


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/etc", "ext4"),
        ("/home", "nfs4"),
        ("/homework", "ext4"),
        ("/home/user/tmp", "nfs4"),
        ("/home/a b", "tmpfs"),
        ("/home/a b/c", "tmpfs"),
        ("/home/a b/deep/er", "lustre"),
        ("/auto", "cifs"),
        ("/home/\u2028\x85/z", "fuse.sshfs"),
    ],
)
def test_the_longest_and_latest_mount_point_counts(
    monkeypatch: pytest.MonkeyPatch, path: str, kind: str
) -> None:
    """Mounts in and over mounts, and with spaces or line separators in their names, are read rightly."""
    monkeypatch.setattr(Path, "read_bytes", lambda self: MOUNTS)

    assert node_local._file_system(Path(path)) == kind


def test_memory_comes_first_and_the_users_choice_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """TMPDIR comes before /tmp, each place once; a relative TMPDIR means nothing to another process."""
    monkeypatch.setenv("TMPDIR", "/scratch/me")
    assert list(map(str, node_local.candidates())) == ["/dev/shm", "/scratch/me", "/tmp", "/var/tmp"]

    monkeypatch.setenv("TMPDIR", "/tmp")
    assert list(map(str, node_local.candidates())) == ["/dev/shm", "/tmp", "/var/tmp"]

    monkeypatch.setenv("TMPDIR", "here")
    assert list(map(str, node_local.candidates())) == ["/dev/shm", "/tmp", "/var/tmp"]


def test_candidates_do_not_ask_whether_anything_can_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where every temporary folder is full, /dev/shm is still tried."""
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setattr("tempfile._get_default_tempdir", lambda: pytest.fail("asked"))

    assert node_local.candidates()[0] == Path("/dev/shm")


def test_remove_finds_the_folder_wherever_it_is(places: tuple[Path, Path]) -> None:
    """By the cookie alone, half-made ones too; nothing else goes, and a second time is no error."""
    other = leftover("another")
    folder = places[1] / node_local.name(COOKIE)
    (folder / "generation-1").mkdir(parents=True)
    half = places[0] / f".{node_local.name(COOKIE)}"
    half.mkdir()

    node_local.remove(COOKIE)
    node_local.remove(COOKIE)

    assert not folder.exists()
    assert not half.exists()
    assert other.exists()


def test_a_held_folder_is_never_swept(places: tuple[Path, Path], held: Path) -> None:
    """A living run of this user, in this or another process, keeps its folder."""
    assert node_local.sweep() == []
    assert forks.wait(forks.fork(node_local.sweep)) == 0
    assert (held / "lock").exists()


def test_an_abandoned_folder_of_ours_is_swept(places: tuple[Path, Path]) -> None:
    """Whatever is in it; in every candidate."""
    first = leftover("a" * 16)
    (first / "generation-1").mkdir()
    (first / "generation-1" / "ledger").write_bytes(bytes(100))
    second = places[1] / node_local.name("b" * 16)
    leftover("b" * 16).rename(second)

    assert node_local.sweep() == [first, second]
    assert not first.exists()
    assert not second.exists()


def test_a_folder_that_was_never_finished_is_swept(places: tuple[Path, Path]) -> None:
    """Its maker died over it, before or after it was locked: after a while that is certain."""
    cookies = [digit * 16 for digit in "abcd"]
    early, late, young, making = (places[0] / f".{node_local.name(cookie)}" for cookie in cookies)
    early.mkdir()
    for folder, cookie in ((late, "e"), (young, "f"), (making, "g")):
        leftover(cookie).rename(folder)
    for folder in (early, late, making):
        os.utime(folder, (time.time() - 100,) * 2)
    with (making / "lock").open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        swept = node_local.sweep()

    assert sorted(swept) == [early, late]
    assert sorted(places[0].iterdir()) == [young, making]


def test_the_death_of_the_owner_is_what_abandons(places: tuple[Path, Path]) -> None:
    """A killed owner's folder is a leftover at once, a stopped one's is not."""
    read, write = os.pipe()

    def own() -> None:
        node_local.create(COOKIE, NEED_BYTES)
        os.write(write, b"!")
        forks.idle()

    with forks.forked(own) as pid:
        assert os.read(read, 1) == b"!"
        os.kill(pid, signal.SIGSTOP)
        os.waitpid(pid, os.WUNTRACED)
        assert list(node_local.leftovers()) == []
    os.close(read)
    os.close(write)

    assert node_local.sweep() == [places[0] / node_local.name(COOKIE)]


def test_a_forked_child_that_lets_go_does_not_abandon(places: tuple[Path, Path]) -> None:
    """Ranks close the lock that they inherit; it stays with the zygote."""
    _, lock = node_local.create(COOKIE, NEED_BYTES)

    assert forks.wait(forks.fork(lambda: os.close(lock))) == 0
    assert node_local.sweep() == []
    os.close(lock)


def test_what_is_not_known_to_be_ours_is_never_touched(places: tuple[Path, Path], tmp_path: Path) -> None:
    """Other names, other users' names, folders without our lock, links and files all stay."""
    uid = os.getuid()
    theirs = tmp_path / "theirs"
    leftover("c" * 16).rename(theirs)
    stay = [
        places[0] / "cpinfra",
        places[0] / f"cpinfra-{uid}",
        places[0] / f"cpinfra-{uid + 1}-{COOKIE}",
        places[0] / f"my-cpinfra-{uid}-{COOKIE}",
        places[0] / f".cpinfra-{uid}-{COOKIE}",
    ]
    for folder in stay:
        leftover("d" * 16).rename(folder)
    lockless = places[0] / node_local.name("lockless")
    lockless.mkdir()
    link = places[0] / node_local.name("link")
    link.symlink_to(theirs)
    file = places[0] / node_local.name("file")
    file.touch()

    assert node_local.sweep() == []
    for path in (*stay, lockless, link, file, theirs / "lock"):
        assert path.exists()


def test_a_folder_that_another_user_made_under_our_name_is_not_touched(
    places: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a folder that is everybody's a name proves nothing: the owner must be us."""
    uid = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: uid + 1)
    folder = leftover(COOKIE)

    assert folder.name == f"cpinfra-{uid + 1}-{COOKIE}"
    assert node_local.sweep() == []
    assert folder.exists()


def test_sweep_tells_only_what_is_gone(places: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """A leftover that cannot be removed is not called swept."""
    leftover(COOKIE)
    monkeypatch.setattr("shutil.rmtree", lambda path, ignore_errors: None)

    assert node_local.sweep() == []
