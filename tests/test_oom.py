"""Out-of-memory kills as control groups count them: fake trees, and one that is made to happen."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import cpinfra
from cpinfra import cgroup_tree
from cpinfra.proof.oom import OomKills
from cpinfra.proof.oom import OomWatch

V2 = "30 24 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate"
V1 = "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory"
LIMIT_BYTES = 48 << 20

_IN_GROUP = """
import os, signal, sys
from pathlib import Path
group, package = Path(sys.argv[1]), sys.argv[2]
sys.path.insert(0, package)
(group / "cgroup.procs").write_text(str(os.getpid()))
from cpinfra.proof.oom import OomWatch
watch = OomWatch()
print(watch.kills() is None)
pid = os.fork()
if pid == 0:
    Path("/proc/self/oom_score_adj").write_text("1000")
    hoard = bytearray(os.urandom(1)) * (4 * int(sys.argv[3]))
    os._exit(0)
status = os.waitpid(pid, 0)[1]
print(os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL)
print(watch.kills().says)
"""


class Tree:
    """A file system with what /proc says of us, and a group two levels down."""

    def __init__(self, root: Path, own: str, mount: str, folder: str, name: str) -> None:
        self.root = root
        proc = root / "proc/self"
        proc.mkdir(parents=True)
        (proc / "cgroup").write_text(own)
        (proc / "mountinfo").write_text(mount + "\n")
        self.top = root / folder
        self.inner = self.top / "a/b"
        self.inner.mkdir(parents=True)
        self.name = name

    def count(self, group: Path, kills: int) -> Path:
        """Let a group have counted so many; returns the file."""
        before = "oom_kill_disable 0\nunder_oom 0" if self.name == "memory.oom_control" else "oom 7\nmax 9"
        path = group / self.name
        path.write_text(f"{before}\noom_kill {kills}\noom_group_kill 3\n")
        return path


@pytest.fixture(params=[1, 2])
def tree(tmp_path: Path, request: pytest.FixtureRequest) -> Tree:
    """Of either version."""
    if request.param == 1:
        return Tree(tmp_path, "4:memory:/a/b\n0::/x\n", V1, "sys/fs/cgroup/memory", "memory.oom_control")
    return Tree(tmp_path, "0::/a/b\n", V2, "sys/fs/cgroup", "memory.events")


def test_a_kill_since_the_first_look_is_told(tree: Tree) -> None:
    """With the numbers and the file, so that a person can look there too."""
    path = tree.count(tree.inner, 4)
    watch = OomWatch(tree.root)
    assert watch.kills() is None

    tree.count(tree.inner, 5)

    assert watch.kills() == OomKills(number=1, says=f"oom_kill 4 -> 5 in {path}")


def test_kills_of_before_are_none_of_ours(tree: Tree) -> None:
    """A count alone says nothing."""
    tree.count(tree.inner, 4)
    tree.count(tree.inner.parent, 9)

    assert OomWatch(tree.root).kills() is None


def test_a_limit_further_up_kills_too(tree: Tree) -> None:
    """Of several groups that count, the innermost is told: those above count what is beside us as well."""
    inner, outer = tree.count(tree.inner, 0), tree.count(tree.inner.parent, 2)
    watch = OomWatch(tree.root)

    tree.count(tree.inner.parent, 3)
    assert watch.kills() == OomKills(number=1, says=f"oom_kill 2 -> 3 in {outer}")

    tree.count(tree.inner, 1)
    assert watch.kills() == OomKills(number=1, says=f"oom_kill 0 -> 1 in {inner}")


@pytest.mark.parametrize("text", ["", "oom_kill", "oom_kill many", "oom_kill 1 2", "xoom_kill 5"])
def test_a_kernel_that_does_not_count_says_nothing(tree: Tree, text: str) -> None:
    """Version 1 of old kernels has the file without the number."""
    path = tree.count(tree.inner, 0)
    path.write_text(text + "\n")
    watch = OomWatch(tree.root)
    path.write_text("oom_kill 5\n")

    assert watch.kills() is None


def test_a_file_that_goes_says_nothing(tree: Tree) -> None:
    """As when the group is removed meanwhile."""
    path = tree.count(tree.inner, 0)
    watch = OomWatch(tree.root)
    path.unlink()

    assert watch.kills() is None


def test_where_the_groups_are_hidden_nothing_is_said(tmp_path: Path) -> None:
    """No /proc at all, or no mount: that is no reason to fail."""
    assert OomWatch(tmp_path).kills() is None


@pytest.fixture
def group() -> Iterator[Path]:
    """A memory group of our own with a small limit; skips where none can be made."""
    try:
        version, folders = cgroup_tree.place(Path("/"), "memory")
        made = folders[-1] / f"cpinfra-test-{os.getpid()}"
        made.mkdir()
    except (OSError, cgroup_tree.HiddenError, IndexError) as error:
        pytest.skip(f"no control group can be made here: {error}")
    try:
        try:
            (made / ("memory.limit_in_bytes" if version == 1 else "memory.max")).write_text(str(LIMIT_BYTES))
        except OSError as error:
            pytest.skip(f"the memory of a group of our own cannot be limited here: {error}")
        yield made
    finally:
        made.rmdir()


def test_a_real_kill_is_told(group: Path) -> None:
    """A process that takes more than its group may have is killed, and the count says so."""
    command = [sys.executable, "-c", _IN_GROUP, str(group), str(Path(cpinfra.__file__).parents[1])]
    ended = subprocess.run(
        [*command, str(LIMIT_BYTES)], capture_output=True, text=True, timeout=60, check=False
    )

    assert ended.returncode == 0, ended.stderr
    before, killed, after = ended.stdout.splitlines()
    assert (before, killed) == ("True", "True")
    assert after.startswith("oom_kill 0 -> 1 in ")
    assert str(group) in after
