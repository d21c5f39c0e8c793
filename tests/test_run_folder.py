"""The run folder: where it is made, what it keeps, and that nothing about a disk ends a run."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import resource
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import forks
import processes
from cpinfra.proof import run_folder
from cpinfra.proof.run_folder import KEPT_RUNS
from cpinfra.proof.run_folder import RunFolder
from cpinfra.proof.run_folder import RunFolderError
from cpinfra.proof.run_folder import create
from cpinfra.worker import node_local

NAME = re.compile(r"\d{8}-\d{6}-[a-z0-9_]{8}")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory of its own."""
    folder = tmp_path / "work dir"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Other places for run folders, none of which exists yet."""
    names = {"XDG_STATE_HOME": "state", "HOME": "home", "TMPDIR": "temporary"}
    return {variable: str(tmp_path / name) for variable, name in names.items()}


@pytest.fixture
def folder(here: Path) -> Iterator[RunFolder]:
    """A run folder in use."""
    made = create(None, {})
    yield made
    made.close()


def made(explicit: Path | None, environment: dict[str, str]) -> Path:
    """Where the folder of one whole run was made."""
    folder = create(explicit, environment)
    folder.close()
    return folder.path


def block(path: Path) -> None:
    """Make it impossible to have a folder at this place, for root too."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()


def lines(path: Path) -> list[dict[str, Any]]:
    """The JSON lines of a file."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def stages_of(folder: Path) -> list[str]:
    """The stages that a run has begun."""
    return [marker["stage"] for marker in lines(folder / "stages.jsonl")]


def test_by_default_it_is_below_the_working_directory(here: Path, environment: dict[str, str]) -> None:
    """`.cpinfra/runs/<time>-<random>`, for its owner only, and git does not see it."""
    path = made(None, environment)

    assert path.parent == here / ".cpinfra" / "runs"
    assert NAME.fullmatch(path.name)
    assert path.stat().st_mode & 0o777 == 0o700
    assert (here / ".cpinfra" / ".gitignore").read_text() == "*\n"


def test_a_gitignore_of_the_user_is_kept(here: Path) -> None:
    """What is there already is not written over."""
    (here / ".cpinfra").mkdir()
    (here / ".cpinfra" / ".gitignore").write_text("runs/\n")

    made(None, {})

    assert (here / ".cpinfra" / ".gitignore").read_text() == "runs/\n"


def test_the_places_are_tried_in_their_order(here: Path, tmp_path: Path, environment: dict[str, str]) -> None:
    """The working directory, then the XDG state folder, then TMPDIR: each where those before will not do."""
    block(here / ".cpinfra")
    assert made(None, environment).parent == tmp_path / "state" / "cpinfra" / "runs"

    block(tmp_path / "state2")
    environment["XDG_STATE_HOME"] = str(tmp_path / "state2")
    assert made(None, environment).parent == tmp_path / "temporary" / f"cpinfra-runs-{os.getuid()}"


def test_without_xdg_the_state_folder_is_below_home(
    here: Path, tmp_path: Path, environment: dict[str, str]
) -> None:
    """An absent XDG_STATE_HOME means ~/.local/state, and so does a relative one, which is invalid."""
    block(here / ".cpinfra")
    for state in ({}, {"XDG_STATE_HOME": ""}, {"XDG_STATE_HOME": "relative"}):
        without = {"HOME": environment["HOME"], **state}
        assert made(None, without).parent == tmp_path / "home" / ".local" / "state" / "cpinfra" / "runs"


def test_without_a_home_it_is_in_the_temporary_folder(
    here: Path, tmp_path: Path, environment: dict[str, str]
) -> None:
    """No HOME, as in some containers and jobs, is no error."""
    block(here / ".cpinfra")

    path = made(None, {"TMPDIR": environment["TMPDIR"]})

    assert path.parent == tmp_path / "temporary" / f"cpinfra-runs-{os.getuid()}"
    assert path.parent.stat().st_mode & 0o777 == 0o700


def test_a_working_directory_that_was_removed_is_no_error(
    here: Path, tmp_path: Path, environment: dict[str, str]
) -> None:
    """The next place is taken."""
    here.rmdir()

    assert made(None, environment).parent == tmp_path / "state" / "cpinfra" / "runs"


PLACES = """
import os
from pathlib import Path
from cpinfra.proof import run_folder
os.chdir(sys.argv[1])
made = run_folder.create(None, {"HOME": os.environ["HOME"]})
print(made.path.parent)
print(list(Path(sys.argv[1]).rglob("2*")))
try:
    run_folder.create(Path(sys.argv[1]) / "run", {})
except run_folder.RunFolderError as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("options", "reason"), [("ro", "Read-only file system"), ("size=8k", "No space left on device")]
)
def test_a_full_or_read_only_working_directory_is_noticed_at_the_start(
    here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: str, reason: str
) -> None:
    """It is left without a run's folder, and the next place is taken; the user's own choice is refused."""
    monkeypatch.setenv("HOME", str(tmp_path))

    place, left, refused = forks.with_tmpfs(here, options, PLACES).splitlines()

    assert place == f"{tmp_path}/.local/state/cpinfra/runs"
    assert left == "[]"
    assert refused == f"--run-dir '{here}/run' cannot hold a run: {reason}"


def test_room_is_looked_for(tmp_path: Path) -> None:
    """A file-size limit, as a full disk would, makes the place unusable; the message says why."""

    def try_it() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
        with pytest.raises(RunFolderError, match="File too large"):
            create(tmp_path / "run", {})

    assert forks.wait(forks.fork(try_it)) == 0


def test_nowhere_names_every_place_with_its_reason(
    here: Path, tmp_path: Path, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One error for all places that were tried."""
    block(tmp_path / "state")
    block(tmp_path / "temporary")
    roots = list(run_folder._roots(environment))
    monkeypatch.setattr(run_folder, "_roots", lambda environment: roots[:-1])

    def full(path: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(run_folder, "_probe_room", full)
    with pytest.raises(RunFolderError) as raised:
        create(None, environment)

    assert str(raised.value) == (
        "no folder for this run can be written: "
        f"{here}/.cpinfra/runs: No space left on device; "
        f"{tmp_path}/state/cpinfra/runs: Not a directory; "
        f"{tmp_path}/temporary/cpinfra-runs-{os.getuid()}: Not a directory"
    )
    assert roots[-1] == Path(f"/tmp/cpinfra-runs-{os.getuid()}")


def test_the_folder_of_another_user_is_not_used(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever made a folder under our name first could read or change what we write there."""
    root = here / ".cpinfra" / "runs"
    root.mkdir(parents=True)
    uid = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: uid + 1)
    monkeypatch.setattr(run_folder, "_roots", lambda environment: [root])

    with pytest.raises(RunFolderError, match="runs: belongs to another user"):
        create(None, {})


def test_an_explicit_folder_is_used_as_it_is(tmp_path: Path, environment: dict[str, str]) -> None:
    """Made if it is absent, private; one that exists keeps its mode and what else is in it."""
    new, old = tmp_path / "a" / "new", tmp_path / "old"
    old.mkdir(mode=0o755)
    (old / "notes.txt").write_text("mine")

    assert made(new, environment) == new
    assert new.stat().st_mode & 0o777 == 0o700
    assert made(old, environment) == old
    assert old.stat().st_mode & 0o777 == 0o755
    assert (old / "notes.txt").read_text() == "mine"


def test_an_explicit_relative_folder_is_made_absolute(here: Path) -> None:
    """Ranks find it whatever their working directory is."""
    assert made(Path("runs/x"), {}) == here / "runs" / "x"


def test_a_run_in_an_explicit_folder_replaces_the_files_of_an_earlier_one(tmp_path: Path) -> None:
    """Nothing that a rank or the supervisor appends to is continued from the run before."""
    first = create(tmp_path / "run", {})
    first.event("start")
    first.mark("import")
    (first.generation_logs(1) / "rank-0.log").write_text("a traceback of last week")
    (first.path / "report.json").write_text("{}")
    (first.path / "zygote.log").write_text("old")
    (first.path / "generation-1" / "core").write_text("mine")
    (first.path / "cpinfra_worker-0123456789ab.zip").write_text("of an older version")
    for temporary in (".report.json-x1y2z3_a", ".cpinfra_worker-0123456789ab.zip-x1y2z3_a"):
        (first.path / temporary).write_text("half of it")
    first.close()

    create(tmp_path / "run", {}).close()

    left = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file())
    assert left == ["run/generation-1/core", "run/stages.jsonl"]
    assert stages_of(tmp_path / "run") == ["start"]


def test_a_run_that_ended_before_its_first_stage_is_replaced_too(tmp_path: Path) -> None:
    """Nothing could run, so there is a report and no more: the folder is ours all the same."""
    first = create(tmp_path / "run", {})
    (first.path / "report.json").write_text("{}")
    first.close()

    create(tmp_path / "run", {}).close()

    assert not (tmp_path / "run" / "report.json").exists()


@pytest.mark.parametrize(
    "marker",
    [
        None,
        "",
        "not json\n",
        "[]\n",
        '{"stage": "build"}\n',
        '{"stage": 1, "time": "t", "boot_id": "b"}\n',
        '\n{"stage": "start", "time": "t", "boot_id": "b"}\n',
        "[" * 10000,
    ],
)
def test_files_of_others_are_never_replaced(tmp_path: Path, marker: str | None) -> None:
    """Without a marker of ours the folder is refused, with their names, and all in it stays as it was."""
    others = {"report.json": "their report", "events.jsonl": "their events", "notes.txt": "their notes"}
    if marker is not None:
        others["stages.jsonl"] = marker
    folder = tmp_path / "theirs"
    folder.mkdir()
    for name, text in others.items():
        (folder / name).write_text(text)

    with pytest.raises(RunFolderError) as raised:
        create(folder, {})

    named = "events.jsonl, report.json" + (", stages.jsonl" if marker is not None else "")
    assert str(raised.value) == (
        f"--run-dir '{folder}' cannot hold a run: it would replace {named}, which no run of cpinfra has "
        "written; expected an empty folder, or one whose stages.jsonl a run of cpinfra began"
    )
    assert {path.name: path.read_text() for path in folder.iterdir()} == others


def test_many_files_of_others_are_not_all_named(tmp_path: Path) -> None:
    """Four tell enough; logs of ranks count as well."""
    (tmp_path / "generation-1").mkdir()
    for rank in range(5):
        (tmp_path / "generation-1" / f"rank-{rank}.log").touch()

    with pytest.raises(RunFolderError, match=r"replace generation-1/rank-0.log, .*rank-3.log, \.\.\., which"):
        create(tmp_path, {})


def test_a_fifo_in_place_of_the_markers_is_not_waited_for(tmp_path: Path) -> None:
    """It is refused like any file of others."""
    os.mkfifo(tmp_path / "stages.jsonl")

    with pytest.raises(RunFolderError, match=r"it would replace stages\.jsonl"):
        create(tmp_path, {})


def test_unrelated_files_are_no_obstacle(tmp_path: Path) -> None:
    """A folder with other names in it, a lock of somebody else's too, is used, and keeps them."""
    others = {"notes.txt": "theirs", ".lock": "theirs", "my-report.json": "theirs"}
    for name, text in others.items():
        (tmp_path / name).write_text(text)

    folder = create(tmp_path, {})
    folder.event("start")
    folder.close()

    assert {name: (tmp_path / name).read_text() for name in others} == others


def test_two_runs_at_once_do_not_share_an_explicit_folder(tmp_path: Path) -> None:
    """The second is refused, and the files of the first, which lives, are untouched."""
    first = create(tmp_path / "run", {})
    first.event("start")

    with pytest.raises(RunFolderError) as raised:
        create(tmp_path / "run", {})

    assert str(raised.value) == f"--run-dir '{tmp_path}/run' cannot hold a run: another run is using it"
    assert [event["event"] for event in lines(tmp_path / "run" / "events.jsonl")] == ["start"]
    first.close()
    create(tmp_path / "run", {}).close()


@pytest.mark.parametrize(
    ("path", "why"),
    [("/dev/null/x", "Not a directory"), ("/proc/x", "No such file or directory"), ("f" * 300, "too long")],
)
def test_an_explicit_folder_that_cannot_be_is_refused(path: str, why: str) -> None:
    """The user's own choice is not replaced by another: the message names the option and the reason."""
    with pytest.raises(RunFolderError, match=f"^--run-dir '{path}' cannot hold a run: .*{why}"):
        create(Path(path), {"TMPDIR": "/tmp"})


def test_an_explicit_relative_folder_below_a_removed_directory_is_refused(here: Path) -> None:
    """There is no place that it could mean."""
    here.rmdir()

    with pytest.raises(RunFolderError, match="--run-dir 'x' cannot hold a run: No such file or directory"):
        create(Path("x"), {})


@pytest.mark.parametrize(
    "name",
    ["with space", "quote'\"s", "new\nline", "ünïcode 日本", "[a]*?", "-dash", "\udcff\udcfe", "$HOME"],
)
def test_hostile_names_work(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name is only a name: events, stages, logs and replacement work in any folder."""
    for _ in range(2):
        folder = create(tmp_path / name, {})
        folder.event("start", path=str(folder.path))
        folder.mark("import")
        (folder.generation_logs(1) / "rank-0.log").touch()
        folder.close()
        assert folder.troubles == []

    (event,) = lines(tmp_path / name / "events.jsonl")
    assert event["path"] == str(tmp_path / name)
    assert stages_of(tmp_path / name) == ["start", "import"]
    monkeypatch.chdir(tmp_path / name)
    assert made(None, {}).is_relative_to(tmp_path / name)


def test_the_last_runs_are_kept(here: Path) -> None:
    """With the new one there are as many as are kept, and the oldest went."""
    root = here / ".cpinfra" / "runs"
    old = [root / f"2026010{i % 10}-0000{i:02}-abcdefgh" for i in range(KEPT_RUNS + 3)]
    for path in old:
        path.mkdir(parents=True)
        (path / "report.json").touch()

    new = made(None, {})

    kept = {path.name for path in root.iterdir()}
    assert kept == {path.name for path in sorted(old)[4:]} | {new.name}
    assert len(kept) == KEPT_RUNS


def test_a_living_run_is_never_pruned(here: Path) -> None:
    """However old: its lock says that it lives; that of a killed one is gone with it."""
    root = here / ".cpinfra" / "runs"
    for i in range(KEPT_RUNS):
        (root / f"20260202-0000{i:02}-abcdefgh").mkdir(parents=True)
    living, dead = root / "20260101-000000-abcdefgh", root / "20260101-000001-abcdefgh"
    dead.mkdir()
    living.mkdir()
    read, write = os.pipe()

    def live() -> None:
        RunFolder(living, 0.0)
        os.write(write, b"!")
        forks.idle()

    with forks.forked(live):
        assert os.read(read, 1) == b"!"
        made(None, {})
        assert living.exists()
        assert not dead.exists()
    made(None, {})
    assert not living.exists()
    os.close(read)
    os.close(write)


def test_foreign_folders_are_never_pruned(here: Path) -> None:
    """What is not named like a run stays, and so do links, files, and copies that a user made."""
    root = here / ".cpinfra" / "runs"
    root.mkdir(parents=True)
    outside = here / "outside"
    outside.mkdir()
    names = [
        "2024-05-results",
        "1-2-3",
        "20260101-000000-abcdefgh-keep",
        "20260101-000000",
        "notes",
        "20260101",
    ]
    for name in names:
        (root / name).mkdir()
    (root / "20250101-000000-linklink").symlink_to(outside)
    (root / "20250101-000000-filefile").touch()
    for i in range(KEPT_RUNS):
        (root / f"20260202-0000{i:02}-abcdefgh").mkdir()

    made(None, {})

    for name in (*names, "20250101-000000-linklink", "20250101-000000-filefile"):
        assert (root / name).exists()
    assert outside.exists()
    assert not (root / "20260202-000000-abcdefgh").exists()


def test_a_file_system_without_locks_is_usable_and_never_pruned(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lustre without `flock`: runs work; nothing is removed, since nothing tells a living run from a dead."""

    def no_locks(fd: int, operation: int) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    root = here / ".cpinfra" / "runs"
    for i in range(KEPT_RUNS + 2):
        (root / f"20260101-0000{i:02}-abcdefgh").mkdir(parents=True)
    monkeypatch.setattr(fcntl, "flock", no_locks)

    folder = create(None, {})
    folder.event("start")
    folder.close()

    assert folder.troubles == []
    assert len(list(root.iterdir())) == KEPT_RUNS + 3


@pytest.mark.parametrize(("age_s", "kept"), [(3600, KEPT_RUNS + 3), (90000, KEPT_RUNS)])
def test_on_a_network_file_system_a_lock_alone_tells_nothing(
    here: Path, monkeypatch: pytest.MonkeyPatch, age_s: float, kept: int
) -> None:
    """A run on another host may hold it unseen: only folders that nobody has written to for a day go."""
    root = here / ".cpinfra" / "runs"
    for i in range(KEPT_RUNS + 2):
        path = root / f"20260101-0000{i:02}-abcdefgh"
        path.mkdir(parents=True)
        os.utime(path, (time.time() - age_s,) * 2)
    monkeypatch.setattr(node_local, "is_remote", lambda path: True)

    made(None, {})

    assert len(list(root.iterdir())) == kept


def test_the_lock_is_on_the_folder_and_goes_with_the_run(folder: RunFolder) -> None:
    """While the run lives others see it locked; there is no lock file; the descriptor is not inherited."""
    fd = os.open(folder.path, os.O_RDONLY)
    with pytest.raises(BlockingIOError):
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert [path.name for path in folder.path.iterdir()] == ["stages.jsonl"]
    assert folder._lock is not None
    assert not os.get_inheritable(folder._lock)

    other = create(None, {})
    other.close()
    os.close(fd)
    fd = os.open(other.path, os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(fd)


def test_a_killed_run_leaves_no_lock(tmp_path: Path) -> None:
    """Nothing beside what the run has told, and the next run may have the folder at once."""
    read, write = os.pipe()

    def live() -> None:
        create(tmp_path / "run", {})
        os.write(write, b"!")
        forks.idle()

    with forks.forked(live):
        assert os.read(read, 1) == b"!"
        with pytest.raises(RunFolderError, match="cannot hold a run: another run is using it"):
            create(tmp_path / "run", {})
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["stages.jsonl"]
    create(tmp_path / "run", {}).close()
    os.close(read)
    os.close(write)


@pytest.mark.parametrize("code", [errno.EBADF, errno.EINVAL, errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_folder_that_cannot_be_locked_holds_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """Whatever a file system says to a lock on a folder, but that it is held."""

    def refused(fd: int, operation: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "flock", refused)

    folder = create(tmp_path / "run", {})
    folder.event("start")
    folder.close()

    assert folder.troubles == []


def test_a_folder_that_is_removed_under_a_run_ends_nothing(here: Path) -> None:
    """Events and the end of the run go on; each trouble is told once."""
    folder = create(None, {})
    shutil.rmtree(folder.path)

    for _ in range(3):
        folder.event("check")
        folder.mark("generation 1")
    folder.close()

    assert folder.troubles == [
        f"{folder.path}/events.jsonl: No such file or directory",
        f"{folder.path}/stages.jsonl: No such file or directory",
    ]


def test_events_are_lines_with_the_time_since_the_start(folder: RunFolder) -> None:
    """What is returned is what is written; values that JSON does not know are told by their text."""
    told = [folder.event("start", python=Path("/usr/bin/python")), folder.event("check", name="x", ok=True)]

    written = lines(folder.path / "events.jsonl")
    assert [event["event"] for event in written] == ["start", "check"]
    assert written[0]["python"] == "/usr/bin/python"
    assert (written[1]["name"], written[1]["ok"]) == ("x", True)
    assert [event["t"] for event in told] == [event["t"] for event in written]
    assert 0 <= written[0]["t"] <= written[1]["t"] < 60


def test_a_full_disk_is_one_trouble_and_no_exception(tmp_path: Path) -> None:
    """Events that no longer fit are lost; the run goes on, and says once what could not be written."""

    def fill() -> None:
        folder = create(tmp_path / "run", {})
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
        events = [folder.event("check", text="x" * 100) for _ in range(20)]
        folder.mark("y" * 2000)
        assert len(events) == 20
        assert folder.troubles == [f"{folder.path}: File too large"]

    assert forks.wait(forks.fork(fill)) == 0
    whole = (tmp_path / "run" / "events.jsonl").read_text().split("\n")[:-1]
    assert [json.loads(line)["event"] for line in whole] == ["check"] * len(whole)
    assert len(whole) >= 5


def test_a_stage_marker_says_what_begins_when_and_in_which_boot(folder: RunFolder) -> None:
    """After a host went down its last stage is known, and that it was another boot."""
    folder.mark("import")
    folder.mark("generation 1")

    markers = lines(folder.path / "stages.jsonl")
    assert [marker["stage"] for marker in markers] == ["start", "import", "generation 1"]
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert {marker["boot_id"] for marker in markers} == {boot}
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00", markers[0]["time"])


def test_a_stage_marker_is_on_disk_before_the_stage_begins(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is fsynced, with all of its text; events are not, they may be many."""
    synced: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(Path(f"/proc/self/fd/{fd}").read_text()))

    folder.event("start")
    assert synced == []

    folder.mark("import")
    assert [json.loads(text.splitlines()[-1])["stage"] for text in synced] == ["import"]


def test_each_generation_has_its_logs(folder: RunFolder) -> None:
    """The folder is made once and asked for again without an error."""
    assert folder.generation_logs(3) == folder.path / "generation-3"
    assert folder.generation_logs(3).is_dir()


def test_what_a_killed_run_told_is_on_disk(tmp_path: Path) -> None:
    """Each event is written when it happens, not at the end."""

    def tell() -> None:
        folder = create(tmp_path / "run", {})
        folder.event("start")
        folder.event("forked")
        folder.mark("generation 1")
        forks.idle()

    def stages() -> bool:
        try:
            return "generation 1" in (tmp_path / "run" / "stages.jsonl").read_text()
        except OSError:
            return False

    pid = forks.fork(tell)
    processes.wait_until(stages, "the stage")
    os.kill(pid, signal.SIGKILL)
    assert forks.wait(pid) == -signal.SIGKILL

    assert [event["event"] for event in lines(tmp_path / "run" / "events.jsonl")] == ["start", "forked"]


def test_run_folders_of_one_second_differ(here: Path) -> None:
    """Many runs that start at once each have their own."""
    started = time.monotonic()
    folders = [create(None, {}) for _ in range(5)]

    assert len({folder.path for folder in folders}) == 5
    assert time.monotonic() - started < 30
    for folder in folders:
        folder.close()
