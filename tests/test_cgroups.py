"""Control groups: fake trees of both versions, and parsers that take whatever text."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cpinfra import cgroup_tree
from cpinfra.hardware import cgroups

GIB = 1 << 30
NO_LIMIT_V1 = "9223372036854771712"
NO_LIMIT_V1_64K_PAGES = "9223372036854710272"

V2 = "30 24 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate"
V1_MEMORY = "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory"
V1_CPU = "32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct"
UNIFIED = "41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw"
OTHERS = "23 1 8:1 / / rw,relatime - ext4 /dev/root rw\n31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw"

Tree = Callable[..., Path]


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    """Write what /proc says of us, and files of groups below /sys/fs/cgroup."""

    def write(own: str, mounts: str, **files: str) -> Path:
        proc = tmp_path / "proc/self"
        proc.mkdir(parents=True)
        (proc / "cgroup").write_text(own)
        (proc / "mountinfo").write_text(f"{OTHERS}\n{mounts}\n")
        for name, text in files.items():
            path = tmp_path / "sys/fs/cgroup" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text + "\n")
        return tmp_path

    return write


def why(value: object) -> str:
    """Why a value is unavailable."""
    assert isinstance(value, dict)
    (reason,) = value.values()
    assert list(value) == ["unavailable"]
    return str(reason)


class TestVersion2:
    """One tree for all controllers."""

    def test_no_limit_is_unlimited(self, tree: Tree) -> None:
        """`max` on every level, and no file at the root of the tree, which the kernel does not limit."""
        root = tree("0::/a\n", V2, **{"a/cpu.max": "max 100000", "a/memory.max": "max"})

        assert cgroups.cpu_quota(root) == "unlimited"
        assert cgroups.memory_limit_bytes(root) == "unlimited"

    def test_own_limits(self, tree: Tree) -> None:
        """A quota is a share of its period, not a number of microseconds."""
        root = tree("0::/a\n", V2, **{"a/cpu.max": "250000 100000", "a/memory.max": str(3 * GIB)})

        assert cgroups.cpu_quota(root) == 2.5
        assert cgroups.memory_limit_bytes(root) == 3 * GIB

    @pytest.mark.parametrize("level", ["job", "job/step", "job/step/task"])
    def test_the_strictest_ancestor_counts(self, tree: Tree, level: str) -> None:
        """Wherever it stands; a looser one further down does not lift it."""
        files = {f"{path}/cpu.max": "800000 100000" for path in ("job", "job/step", "job/step/task")}
        files |= {f"{path}/memory.max": str(64 * GIB) for path in ("job", "job/step", "job/step/task")}
        files |= {f"{level}/cpu.max": "150000 100000", f"{level}/memory.max": str(8 * GIB)}
        root = tree("0::/job/step/task\n", V2, **files)

        assert cgroups.cpu_quota(root) == 1.5
        assert cgroups.memory_limit_bytes(root) == 8 * GIB

    def test_groups_beside_ours_do_not_count(self, tree: Tree) -> None:
        """Neither a sibling nor a group below."""
        files = {"a/memory.max": "max", "b/memory.max": "1", "a/below/memory.max": "2"}

        assert cgroups.memory_limit_bytes(tree("0::/a\n", V2, **files)) == "unlimited"

    def test_a_private_namespace_shows_the_container_as_the_root(self, tree: Tree) -> None:
        """There the root of the tree has the files that a real root has not."""
        root = tree("0::/\n", V2, **{"cpu.max": "50000 100000", "memory.max": str(GIB)})

        assert cgroups.cpu_quota(root) == 0.5
        assert cgroups.memory_limit_bytes(root) == GIB

    def test_a_mount_of_a_part_of_the_tree(self, tree: Tree) -> None:
        """Without a namespace the mount starts at the container's own group, by its full name."""
        mount = V2.replace("0:26 / ", "0:26 /docker/abc ")
        root = tree("0::/docker/abc/inner\n", mount, **{"memory.max": str(GIB), "inner/memory.max": "max"})

        assert cgroups.memory_limit_bytes(root) == GIB


class TestVersion1:
    """A tree for each controller."""

    OWN = "4:memory:/job/step\n3:cpuset:/\n2:cpu,cpuacct:/job/step\n"
    MOUNTS = f"{V1_MEMORY}\n{V1_CPU}"

    def files(self, path: str, quota: str, limit: str) -> dict[str, str]:
        """The settings of one group."""
        return {
            f"cpu,cpuacct/{path}/cpu.cfs_quota_us": quota,
            f"cpu,cpuacct/{path}/cpu.cfs_period_us": "100000",
            f"memory/{path}/memory.limit_in_bytes": limit,
        }

    @pytest.mark.parametrize("limit", [NO_LIMIT_V1, NO_LIMIT_V1_64K_PAGES, "9223372036854775807"])
    def test_no_limit_is_unlimited(self, tree: Tree, limit: str) -> None:
        """The largest number that a kernel can count, for pages of 4 or 64 KiB, is no limit."""
        files = self.files("job", "-1", limit) | self.files("job/step", "-1", limit)
        root = tree(self.OWN, self.MOUNTS, **files)

        assert cgroups.cpu_quota(root) == "unlimited"
        assert cgroups.memory_limit_bytes(root) == "unlimited"

    @pytest.mark.parametrize("level", ["job", "job/step"])
    def test_the_strictest_ancestor_counts(self, tree: Tree, level: str) -> None:
        """Wherever it stands."""
        files = self.files("job", "-1", NO_LIMIT_V1) | self.files("job/step", "-1", NO_LIMIT_V1)
        files |= self.files(level, "400000", str(5 * GIB))
        root = tree(self.OWN, self.MOUNTS, **files)

        assert cgroups.cpu_quota(root) == 4
        assert cgroups.memory_limit_bytes(root) == 5 * GIB

    def test_the_kernel_tells_of_ancestors_that_a_namespace_hides(self, tree: Tree) -> None:
        """`hierarchical_memory_limit` counts all of them; the one that we see has no limit of its own."""
        stat = f"cache 12\nhierarchical_memory_limit {2 * GIB}\nhierarchical_memsw_limit {GIB}"
        files = {"memory/memory.limit_in_bytes": NO_LIMIT_V1, "memory/memory.stat": stat}

        assert cgroups.memory_limit_bytes(tree("4:memory:/\n", V1_MEMORY, **files)) == 2 * GIB

    def test_docker_without_a_namespace(self, tree: Tree) -> None:
        """The path is the host's, the mount starts there."""
        mount = V1_MEMORY.replace("0:32 / ", "0:32 /docker/abc ")
        files = {"memory/memory.limit_in_bytes": str(GIB)}

        assert cgroups.memory_limit_bytes(tree("4:memory:/docker/abc\n", mount, **files)) == GIB


class TestHybrid:
    """Both versions mounted: a controller is bound to one of them."""

    def test_each_controller_is_looked_for_where_it_is_bound(self, tree: Tree) -> None:
        """Memory by version 1 under its own path, CPU time by version 2 under another."""
        files = {
            "memory/m/memory.limit_in_bytes": str(GIB),
            "unified/u/cpu.max": "300000 100000",
            "unified/u/memory.max": "1",
        }
        root = tree("4:memory:/m\n1:name=systemd:/u\n0::/u\n", f"{UNIFIED}\n{V1_MEMORY}", **files)

        assert cgroups.memory_limit_bytes(root) == GIB
        assert cgroups.cpu_quota(root) == 3

    def test_a_controller_that_is_not_mounted_is_unavailable(self, tree: Tree) -> None:
        """Version 2 is there, without a word on memory: that is not the same as no limit."""
        root = tree("4:memory:/m\n0::/\n", UNIFIED, **{"unified/cgroup.procs": ""})

        assert why(cgroups.memory_limit_bytes(root)) == (
            "cgroup v1, which controls memory, is not mounted here"
        )


class TestHidden:
    """What /proc and the mounts say does not match."""

    @pytest.mark.parametrize(
        ("own", "top"),
        [("/host/good/id", "/host/bad/id"), ("/../other/id", "/"), ("/id", "/.."), ("/id (deleted)", "/id")],
    )
    def test_a_group_that_does_not_list_us_does_not_count(self, tree: Tree, own: str, top: str) -> None:
        """Other names above it, a group outside of the namespace, a mount from outside, a removed group."""
        mount = V2.replace("0:26 / ", f"0:26 {top} ")
        root = tree(f"0::{own}\n", mount, **{"memory.max": str(GIB), "cgroup.procs": "1\n2"})

        assert why(cgroups.memory_limit_bytes(root)) == (
            f"/sys/fs/cgroup does not show the control group of this process ({own})"
        )

    @pytest.mark.parametrize(
        ("own", "top", "below"),
        [
            ("/host/good/id", "/host/bad/id", ""),
            ("/host/good/id", "/host/bad/id", "id/"),
            ("/../other/id", "/", "id/"),
            ("/../other/id", "/", "other/id/"),
        ],
    )
    def test_a_group_that_lists_us_counts(self, tree: Tree, own: str, top: str, below: str) -> None:
        """It is ours whatever it is called, and so are those above it."""
        mount = V2.replace("0:26 / ", f"0:26 {top} ")
        files = {f"{below}cgroup.procs": f"1\n{os.getpid()}", f"{below}memory.max": "max"}
        root = tree(f"0::{own}\n", mount, **{**files, "memory.max": str(GIB)})

        assert cgroups.memory_limit_bytes(root) == GIB

    def test_nothing_to_read(self, tmp_path: Path) -> None:
        """No /proc: unavailable, with the file."""
        assert "proc/self/cgroup: No such file" in why(cgroups.cpu_quota(tmp_path))

    def test_a_kernel_without_the_controller_sets_no_limit(self, tree: Tree) -> None:
        """Neither version keeps an account of it."""
        assert cgroups.memory_limit_bytes(tree("3:cpuset:/\n", V1_CPU)) == "unlimited"

    @pytest.mark.parametrize("text", ["", "lots", "1.5", "10 MiB"])
    def test_a_memory_limit_that_is_no_number(self, tree: Tree, text: str) -> None:
        """It is quoted, and not taken for none."""
        root = tree("0::/a\n", V2, **{"a/memory.max": text})

        assert f"a/memory.max says {text!r}" in why(cgroups.memory_limit_bytes(root))

    @pytest.mark.parametrize("text", ["", "100000", "x 100000", "1 2 3", "0 100000", "5 0"])
    def test_a_quota_that_is_none(self, tree: Tree, text: str) -> None:
        """What no kernel writes is not taken for "no quota"."""
        assert "a/cpu.max" in why(cgroups.cpu_quota(tree("0::/a\n", V2, **{"a/cpu.max": text})))

    def test_a_setting_that_cannot_be_read(self, tree: Tree) -> None:
        """A file that is there and gives an error is not the same as no file."""
        root = tree("0::/a\n", V2, **{"a/memory.max/in the way": ""})

        assert "a/memory.max" in why(cgroups.memory_limit_bytes(root))


class TestParsers:
    """Text of the kernel, and text that is not."""

    def test_mount_points_with_blanks(self, tree: Tree) -> None:
        """The kernel writes them as octal digits."""
        (mount,) = cgroup_tree.mounts(V2.replace("/sys/fs/cgroup", r"/sys/a\040b\134c"))

        assert mount.point == r"/sys/a b\c"
        assert (mount.version, mount.root, mount.options) == (2, "/", ("rw", "nsdelegate"))

    def test_paths_with_colons(self) -> None:
        """Only the first two divide a line."""
        (one,) = cgroup_tree.memberships("4:cpu,cpuacct:/a:b/c\n")

        assert (one.hierarchy, one.controllers, one.path) == (4, ("cpu", "cpuacct"), "/a:b/c")

    @given(st.text())
    def test_any_text_is_read(self, text: str) -> None:
        """Lines of another form are left out; nothing is invented."""
        for one in cgroup_tree.memberships(text):
            assert one.path in text
        assert len(cgroup_tree.mounts(text)) <= text.count("cgroup")

    @given(
        st.integers(0, 99),
        st.lists(st.sampled_from(["cpu", "memory", "pids"]), unique=True),
        st.text(st.characters(exclude_characters="\n", exclude_categories=["Cs"])),
    )
    def test_what_the_kernel_writes_comes_back(self, number: int, names: list[str], path: str) -> None:
        """Any path without a line's end."""
        (one,) = cgroup_tree.memberships(f"{number}:{','.join(names)}:/{path}\n")

        assert (one.hierarchy, one.controllers, one.path) == (number, tuple(names), f"/{path}")


def test_this_machine() -> None:
    """The real files are understood: a number that makes sense, no limit, or a reason."""
    for value in (cgroups.cpu_quota(), cgroups.memory_limit_bytes()):
        if isinstance(value, dict):
            assert why(value)
        else:
            assert value == "unlimited" or float(value) > 0
