"""The host: fake roots for what machines may say, real files and processes for what must be certain."""

from __future__ import annotations

import fcntl
import json
import mmap
import os
import re
import resource
import shlex
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cpinfra import report
from cpinfra.hardware import child
from cpinfra.hardware import container
from cpinfra.hardware import disk
from cpinfra.hardware import host
from cpinfra.hardware import shm
from cpinfra.outcome import Severity
from cpinfra.worker import node_local

Facts = dict[str, Any]

HOST_GROUP = "0::/user.slice/user-1000.slice/session-3.scope\n"
MOUNTS = "23 1 8:1 / / rw - ext4 /dev/root rw\n30 24 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"
HASH = "0123456789ab" * 4


def why(value: object) -> str:
    """Why a value is unavailable."""
    assert isinstance(value, dict)
    assert list(value) == ["unavailable"]
    return str(value["unavailable"])


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A machine outside of any container, by its files."""
    files = {
        "proc/sys/kernel/hostname": "node7\n",
        "proc/sys/kernel/osrelease": "5.14.0-427.el9.x86_64\n",
        "proc/sys/kernel/random/boot_id": "b8d0\n",
        "proc/self/cgroup": HOST_GROUP,
        "proc/self/mountinfo": MOUNTS,
        "proc/meminfo": "MemTotal:       16384000 kB\nMemFree:  1 kB\nMemAvailable:    8192000 kB\n",
        "sys/devices/system/cpu/online": "0-3,8\n",
        "sys/fs/cgroup/user.slice/user-1000.slice/memory.max": str(6 << 30),
        "sys/fs/cgroup/user.slice/user-1000.slice/session-3.scope/cpu.max": "150000 100000",
        "etc/machine-id": "3d12\n",
    }
    for name, text in files.items():
        put(tmp_path / name, text)
    (tmp_path / "dev/shm").mkdir(parents=True)
    return tmp_path


def put(path: Path, text: str = "") -> None:
    """Write a file and the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


class TestDescribe:
    """The facts, in the report's form."""

    def test_a_plain_machine(self, root: Path) -> None:
        """Each value is read from its file, in the unit of its name."""
        facts = host.describe(root, environment={}, root=root)

        assert {key: facts[key] for key in ("hostname", "machine_id", "boot_id", "kernel")} == {
            "hostname": "node7",
            "machine_id": "3d12",
            "boot_id": "b8d0",
            "kernel": "5.14.0-427.el9.x86_64",
        }
        assert (facts["container"], facts["wsl"]) == ("none", False)
        assert facts["cpus"] == {
            "affinity": len(os.sched_getaffinity(0)),
            "cgroup_quota": 1.5,
            "online": 5,
        }
        assert facts["memory"] == {"total_mib": 16000, "available_mib": 8000, "cgroup_limit_mib": 6144}

    def test_an_empty_root_is_unavailable_throughout(self, tmp_path: Path) -> None:
        """Nothing is taken for zero or none, and the report holds it all."""
        facts = host.describe(tmp_path, environment={}, root=tmp_path / "empty")
        checked = report.Host.model_validate({**facts, "findings": []})

        for name in ("hostname", "machine_id", "boot_id", "kernel", "wsl"):
            assert "No such file or directory" in why(facts[name])
        assert why(facts["container"]) == "no sign of a container, but /proc/self/cgroup cannot be read"
        for name in ("cgroup_quota", "online"):
            assert why(facts["cpus"][name])
        assert all(why(value) for value in (*facts["memory"].values(), *facts["shm"].values()))
        assert isinstance(checked.shm.stale_segments, report.Unavailable)

    def test_this_machine(self, tmp_path: Path) -> None:
        """The real files fit the report, and agree with what Python says."""
        facts = host.describe(tmp_path)
        checked = report.Host.model_validate({**facts, "findings": []})

        assert checked.hostname == os.uname().nodename
        assert checked.kernel == os.uname().release
        assert checked.disk.path == str(tmp_path)
        assert isinstance(checked.disk.free_gib, float)
        assert isinstance(checked.memory.total_mib, int)
        assert all(report.finding_from(finding).got for finding in host.findings(facts))

    @pytest.mark.parametrize(
        ("text", "reason"), [("", "is empty"), ("uninitialized\n", "is not initialised")]
    )
    def test_no_machine_id_yet(self, root: Path, text: str, reason: str) -> None:
        """What images and first boots have in its place is no id."""
        (root / "etc/machine-id").write_text(text)

        assert reason in why(host.describe(root, environment={}, root=root)["machine_id"])

    @pytest.mark.parametrize(
        ("kernel", "expected"),
        [
            ("5.15.90.1-microsoft-standard-WSL2", True),
            ("4.4.0-19041-Microsoft", True),
            ("6.8.0-45-generic", False),
        ],
    )
    def test_wsl_by_its_kernel(self, root: Path, kernel: str, expected: bool) -> None:
        """Both versions of it say so in the release."""
        (root / "proc/sys/kernel/osrelease").write_text(kernel)

        assert host.describe(root, environment={}, root=root)["wsl"] is expected

    def test_wsl_with_a_kernel_of_ones_own(self, root: Path) -> None:
        """Its init leaves a folder."""
        (root / "run/WSL").mkdir(parents=True)

        assert host.describe(root, environment={}, root=root)["wsl"] is True

    def test_limits_are_those_of_this_process(self, root: Path) -> None:
        """Locked memory in KiB; infinity is said in words."""
        source = (
            "import resource; from cpinfra.hardware import host\n"
            "resource.setrlimit(resource.RLIMIT_NOFILE, (77, 99))\n"
            "resource.setrlimit(resource.RLIMIT_MEMLOCK, (2048, 8192))\n"
            "print(host._limits())\n"
        )
        environment = {**os.environ, "PYTHONPATH": str(Path(host.__file__).parents[2])}
        said = subprocess.run(
            [sys.executable, "-c", source], env=environment, capture_output=True, timeout=60, check=True
        )

        assert host._limit(resource.RLIM_INFINITY, unit=1024) == "unlimited"
        assert said.stdout.decode().strip() == str(
            {"nofile_soft": 77, "nofile_hard": 99, "memlock_soft_kib": 2, "memlock_hard_kib": 8}
        )


class TestParsers:
    """The kernel's lists and tables."""

    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("0", 1),
            ("0-3", 4),
            ("0-3,8", 5),
            ("0-1,4-5,9", 5),
            ("", None),
            ("3-0", None),
            ("0-", None),
            ("a", None),
        ],
    )
    def test_lists_of_cpus(self, text: str, expected: int | None) -> None:
        """Ranges and single ones; anything else is no list, never zero."""
        assert host.count_cpus(text) == expected

    @given(st.lists(st.tuples(st.integers(0, 999), st.integers(0, 99)), min_size=1))
    def test_any_list_of_cpus(self, ranges: list[tuple[int, int]]) -> None:
        """The count is the sum of the ranges."""
        text = ",".join(f"{start}-{start + more}" if more else f"{start}" for start, more in ranges)

        assert host.count_cpus(text) == sum(more + 1 for _, more in ranges)

    @given(st.text())
    def test_any_text_is_a_list_or_not(self, text: str) -> None:
        """Never an error, never less than one."""
        count = host.count_cpus(text)

        assert count is None or count >= 1

    @given(st.text(), st.integers(0, 1 << 40))
    def test_meminfo_finds_its_line(self, before: str, size_kib: int) -> None:
        """Whatever stands above it; the unit is part of the line."""
        text = f"{before}\nMemTotal:   {size_kib} kB\nMemTotalOfOthers: 7 kB"
        path = Path("/proc/meminfo")

        if "MemTotal" not in before:
            assert host.meminfo_mib(text, "MemTotal", path) == size_kib // 1024
        assert (
            why(host.meminfo_mib("MemTotal: 5 MB", "MemTotal", path)) == "/proc/meminfo has no MemTotal in kB"
        )


class TestContainer:
    """What each kind leaves behind."""

    @pytest.mark.parametrize(
        ("sign", "expected"),
        [
            (".dockerenv", "docker"),
            ("run/.containerenv", "podman"),
            ("run/secrets/kubernetes.io/serviceaccount/token", "kubernetes"),
            (".singularity.d/Singularity", "apptainer"),
            ("dev/lxd/sock", "lxc"),
            ("run/systemd/nspawn-container", "systemd-nspawn"),
        ],
    )
    def test_by_a_file(self, root: Path, sign: str, expected: str) -> None:
        """The file alone is enough, and an empty one too."""
        put(root / sign)

        assert container.kind({}, root) == expected

    @pytest.mark.parametrize(
        ("path", "expected"),
        [
            (f"/docker/{HASH}", "docker"),
            (f"/system.slice/docker-{HASH}.scope", "docker"),
            ("/kubepods/besteffort/pod12/34", "kubernetes"),
            ("/kubepods.slice/kubepods-pod12.slice/cri-containerd-34.scope", "kubernetes"),
            ("/machine.slice/libpod-34.scope", "podman"),
            ("/lxc/box", "lxc"),
            ("/lxc.payload.box/init.scope", "lxc"),
            ("/machine.slice/systemd-nspawn@box.service/payload", "systemd-nspawn"),
            ("/system.slice/docker.service", "none"),
            ("/system.slice/containerd.service", "none"),
            ("/lxc.monitor.box", "none"),
            ("/system.slice/slurmstepd.scope/job_5/step_0/user/task_0", "none"),
            ("/", "none"),
        ],
    )
    def test_by_the_control_group(self, root: Path, path: str, expected: str) -> None:
        """A container's own group, not that of the service which starts containers."""
        (root / "proc/self/cgroup").write_text(f"4:memory:{path}\n0::{path}\n")

        assert container.kind({}, root) == expected

    @pytest.mark.parametrize(
        ("environment", "expected"),
        [
            ({"container": "lxc"}, "lxc"),
            ({"container": "systemd-nspawn"}, "systemd-nspawn"),
            ({"container": "oci"}, "oci"),
            ({"container": "yes, many"}, "none"),
            ({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, "kubernetes"),
            ({"APPTAINER_CONTAINER": "/x.sif"}, "none"),
        ],
    )
    def test_by_the_environment(self, root: Path, environment: dict[str, str], expected: str) -> None:
        """Known values; what jobs hand on from a container to the host shows nothing alone."""
        assert container.kind(environment, root) == expected

    def test_a_manager_that_left_its_name(self, root: Path) -> None:
        """systemd's interface for containers."""
        put(root / "run/host/container-manager", "systemd-nspawn\n")

        assert container.kind({}, root) == "systemd-nspawn"

    @pytest.mark.parametrize(
        ("environment", "expected"),
        [
            ({"SINGULARITY_CONTAINER": "/x.sif"}, "singularity"),
            ({"SINGULARITY_CONTAINER": "/x.sif", "APPTAINER_CONTAINER": "/x.sif"}, "apptainer"),
        ],
    )
    def test_the_innermost_counts(self, root: Path, environment: dict[str, str], expected: str) -> None:
        """An image that was built from docker's, run in a pod: what the user started is told."""
        for sign in (".singularity.d/runscript", ".dockerenv", "run/secrets/kubernetes.io/x"):
            put(root / sign)

        assert container.kind(environment, root) == expected

    def test_enroot(self, root: Path) -> None:
        """It mounts a lock file over itself; pyxis starts the same."""
        with (root / "proc/self/mountinfo").open("a") as mounts:
            mounts.write("90 80 0:5 /data/pyxis_12.0/.lock /.lock ro,nosuid - ext4 /dev/sda1 rw\n")

        assert container.kind({}, root) == "enroot"


@pytest.fixture
def dead_pid() -> int:
    """The pid of a process that has ended."""
    process = subprocess.Popen(["true"])
    process.wait(timeout=20)
    return process.pid


def segments(root: Path) -> dict[str, Facts]:
    """The stale segments below a root, by name."""
    return {segment["name"]: segment for segment in shm.describe(root)["stale_segments"]}


@pytest.fixture
def folder(root: Path) -> Path:
    """/dev/shm of the fake root."""
    return root / "dev/shm"


class TestStaleSegments:
    """Only what certainly nobody uses; nothing is removed."""

    def test_a_dead_owner_and_no_user(self, folder: Path, root: Path, dead_pid: int) -> None:
        """torch's segments are told with their size, each on its own, and stay where they are."""
        names = [f"torch_{dead_pid}_12_0", f"torch_{dead_pid}_13_1"]
        for number, name in enumerate(names):
            (folder / name).write_bytes(bytes(1000 * (number + 1)))
        found = segments(root)

        assert [(name, found[name]["bytes"]) for name in found] == [(names[0], 1000), (names[1], 2000)]
        assert f"no process {dead_pid}" in found[names[0]]["why"]
        assert sorted(path.name for path in folder.iterdir()) == names

    def test_a_living_owner(self, folder: Path, root: Path) -> None:
        """Whether or not it has the file open at this moment."""
        (folder / f"torch_{os.getpid()}_1_0").touch()

        assert segments(root) == {}

    @pytest.mark.parametrize("flags", [os.O_RDONLY, os.O_RDWR])
    def test_open_or_mapped_by_someone(self, folder: Path, root: Path, dead_pid: int, flags: int) -> None:
        """For reading or writing; a mapping counts without a descriptor; once it has gone, nothing does."""
        path = folder / f"torch_{dead_pid}_1_0"
        path.write_bytes(bytes(4096))
        fd = os.open(path, flags)
        assert segments(root) == {}
        mapped = mmap.mmap(fd, 4096, prot=mmap.PROT_READ)
        os.close(fd)
        mapped_only = segments(root)
        mapped.close()

        assert mapped_only == {}
        assert list(segments(root)) == [path.name]

    def test_mapped_by_another_process(self, folder: Path, root: Path, dead_pid: int) -> None:
        """The kernel knows of users in other processes too."""
        path = folder / f"torch_{dead_pid}_1_0"
        path.write_bytes(bytes(4096))
        source = (
            "import mmap, os, sys\n"
            f"fd = os.open({str(path)!r}, os.O_RDWR)\n"
            "held = mmap.mmap(fd, 4096); os.close(fd)\n"
            "print('held', flush=True); sys.stdin.read()\n"
        )
        with subprocess.Popen(
            [sys.executable, "-I", "-c", source], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as user:
            assert user.stdout is not None
            assert user.stdout.readline() == b"held\n"
            while_held = segments(root)
            user.communicate(timeout=20)

        assert while_held == {}
        assert list(segments(root)) == [path.name]

    def test_an_owner_that_is_not_reaped_counts_as_living(self, folder: Path, root: Path) -> None:
        """Its number is still its own."""
        process = subprocess.Popen(["true"])
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        (folder / f"torch_{process.pid}_1_0").touch()
        found = segments(root)
        process.wait(timeout=20)

        assert found == {}

    def test_names_that_show_no_owner(self, folder: Path, root: Path, dead_pid: int) -> None:
        """Python's own, NCCL's, semaphores, a number that is no pid, a link, a folder, a pipe."""
        target = root / "elsewhere"
        target.touch()
        for name in ("psm_1a2b3c4d", "nccl-Ab12Cd", "sem.mp-x", "torch_", "torch_99999999999_1", "torch_x_1"):
            (folder / name).touch()
        (folder / f"torch_{dead_pid}_link").symlink_to(target)
        (folder / f"torch_{dead_pid}_folder").mkdir()
        os.mkfifo(folder / f"torch_{dead_pid}_pipe")

        assert segments(root) == {}

    def test_no_leases_means_not_certain(
        self, folder: Path, root: Path, dead_pid: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Where the kernel does not say that nobody uses it, it is not called stale."""
        (folder / f"torch_{dead_pid}_1_0").touch()
        monkeypatch.setattr(fcntl, "F_SETLEASE", 12345)

        assert segments(root) == {}

    def test_the_look_leaves_no_lease_behind(self, folder: Path, root: Path, dead_pid: int) -> None:
        """Whoever opens it afterwards is not held up, and the signal of a broken lease would be ignored."""
        path = folder / f"torch_{dead_pid}_1_0"
        path.touch()
        segments(root)
        fd = os.open(path, os.O_RDWR | os.O_NONBLOCK)
        os.close(fd)

        assert signal.getsignal(signal.SIGURG) is signal.SIG_DFL

    def test_a_run_folder_of_ours(self, folder: Path, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """While its owner lives it is none; then it is, with all its files, beside one that lives."""
        monkeypatch.setattr(node_local, "candidates", lambda: [folder])
        gone, gone_lock = node_local.create("aa11", 1 << 20)
        living, living_lock = node_local.create("bb22", 1 << 20)
        put(gone / "generation/ledger", "x" * 500)
        put(gone / "store", "y" * 20)
        while_held = segments(root)
        os.close(gone_lock)
        found = segments(root)
        os.close(living_lock)

        assert while_held == {}
        assert found == {
            gone.name: {
                "name": gone.name,
                "bytes": 520,
                "why": "a run folder of cpinfra whose lock nobody holds",
            }
        }
        assert gone.is_dir()
        assert living.is_dir()

    def test_a_look_at_the_lock_is_shared(self, folder: Path, root: Path) -> None:
        """Two who look at the same time both see a leftover."""
        put(folder / "cpinfra-0-aa11/lock")
        with (folder / "cpinfra-0-aa11/lock").open() as other:
            fcntl.flock(other, fcntl.LOCK_SH)
            found = segments(root)

        assert list(found) == ["cpinfra-0-aa11"]

    def test_what_only_looks_like_a_run_folder(self, folder: Path, root: Path) -> None:
        """No lock, a link, a file, another name, a lock that is a pipe."""
        put(root / "elsewhere/lock")
        (folder / "cpinfra-0-aa").mkdir()
        (folder / "cpinfra-0-bb").symlink_to(root / "elsewhere")
        (folder / "cpinfra-0-cc").touch()
        put(folder / "cpinfra-mine/lock")
        (folder / "cpinfra-0-dd").mkdir()
        os.mkfifo(folder / "cpinfra-0-dd/lock")

        assert segments(root) == {}

    def test_a_file_system_without_a_size(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A tmpfs without bounds counts no blocks: that is neither empty nor full."""
        real = os.statvfs(root)
        values = list(real)
        values[2:5] = [0, 0, 0]
        monkeypatch.setattr(os, "statvfs", lambda path: os.statvfs_result(values))
        facts = shm.describe(root)

        assert "names no size" in why(facts["total_mib"])
        assert "names no size" in why(facts["free_mib"])


@pytest.fixture
def undying(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """SIGKILL to a group does nothing, as to a process in the kernel's D state."""
    killed: list[int] = []
    real = os.killpg
    monkeypatch.setattr(os, "killpg", lambda pid, number: killed.append(pid))
    yield
    for pid in killed:
        real(pid, signal.SIGKILL)


def python(source: str) -> list[str]:
    """A child in place of ours."""
    return [sys.executable, "-I", "-c", source]


class TestDisk:
    """The disk of the work folder."""

    def test_the_folder_itself(self, tmp_path: Path) -> None:
        """What a user may still write, in GiB."""
        facts, status = disk.describe(tmp_path, {}), os.statvfs(tmp_path)

        assert facts["path"] == str(tmp_path)
        assert facts["total_gib"] == round(status.f_blocks * status.f_frsize / (1 << 30), 1)
        assert 0 <= facts["free_gib"] <= facts["total_gib"]

    def test_a_folder_that_is_not_there_yet(self, tmp_path: Path) -> None:
        """The nearest ancestor that exists is measured and named."""
        assert disk.describe(tmp_path / "not/yet/there", {})["path"] == str(tmp_path)

    def test_a_relative_folder(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """It is told in full."""
        monkeypatch.chdir(tmp_path)

        assert disk.describe(Path("new"), {})["path"] == str(tmp_path)

    def test_a_link_that_leads_nowhere(self, tmp_path: Path) -> None:
        """The place where the folder would be made is measured, not that of the link."""
        (tmp_path / "disk").mkdir()
        (tmp_path / "link").symlink_to(tmp_path / "disk/new")

        assert disk.describe(tmp_path / "link/below", {})["path"] == str(tmp_path / "disk")

    def test_a_name_that_is_no_text(self, tmp_path: Path) -> None:
        """Bytes that are no UTF-8 come through."""
        strange = tmp_path / os.fsdecode(b"caf\xe9")
        strange.mkdir()

        assert disk.describe(strange, os.environ)["path"] == str(strange)

    def test_a_link_to_itself(self, tmp_path: Path) -> None:
        """What the system refuses is unavailable with its words."""
        (tmp_path / "loop").symlink_to(tmp_path / "loop")
        facts = disk.describe(tmp_path / "loop", {})

        assert facts["path"] == str(tmp_path / "loop")
        assert why(facts["free_gib"]) == f"{tmp_path}/loop: Too many levels of symbolic links"

    def test_a_pseudo_file_system(self) -> None:
        """/proc counts no blocks: that is not a full disk."""
        assert why(disk.describe(Path("/proc"), {})["free_gib"]) == "the file system of /proc names no size"

    def test_a_current_folder_that_was_removed(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Its disk is unavailable; an absolute folder is measured from there all the same."""
        (tmp_path / "here").mkdir()
        monkeypatch.chdir(tmp_path / "here")
        (tmp_path / "here").rmdir()
        facts = disk.describe(host.workdir(None, {}), {})

        assert why(facts["free_gib"]) == ".: No such file or directory"
        assert disk.describe(tmp_path, {})["path"] == str(tmp_path)

    def test_a_file_system_that_does_not_answer(self, tmp_path: Path) -> None:
        """The child is killed at the deadline and the disk unavailable."""
        started = time.perf_counter()
        facts = disk.describe(tmp_path, {}, timeout_s=0.3, argv=python("import time; time.sleep(600)"))

        assert time.perf_counter() - started < 5
        assert why(facts["free_gib"]) == "the file system did not answer within 0.3 s"

    def test_a_child_that_does_not_die(self, tmp_path: Path, undying: None) -> None:
        """It is not waited for, and its pid is told."""
        facts = disk.describe(tmp_path, {}, timeout_s=0.3, argv=python("import time; time.sleep(600)"))

        assert re.search(r"within 0.3 s; process \d+ does not even die$", why(facts["total_gib"]))

    @pytest.mark.parametrize(
        ("source", "reason"),
        [
            ("print('words')", "wrote no answer: 'words"),
            ("print('[]')", "wrote no answer: '[]"),
            ('print(\'{"path": "/"}\')', "wrote no answer"),
            ("raise SystemExit('boom')", "failed: exited, exit status 1: boom"),
            ("import os; os.kill(os.getpid(), 9)", "failed: SIGKILL"),
        ],
    )
    def test_a_broken_answer(self, tmp_path: Path, source: str, reason: str) -> None:
        """It is unavailable and says how; never a number."""
        assert reason in why(disk.describe(tmp_path, {}, argv=python(source))["free_gib"])

    def test_a_child_that_cannot_start(self, tmp_path: Path) -> None:
        """The program is named."""
        assert "/does/not/exist" in why(disk.describe(tmp_path, {}, argv=["/does/not/exist"])["free_gib"])

    def test_only_the_disk_is_asked_in_a_child(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """One process for the whole inventory of a host."""
        asked: list[Sequence[str]] = []
        real = child.ask

        def counting(argv: Sequence[str], **more: Any) -> child.ChildAnswer:
            asked.append(argv)
            return real(argv, **more)

        monkeypatch.setattr(child, "ask", counting)
        host.describe(root, environment={}, root=root)

        assert len(asked) == 1


class TestWorkdir:
    """Which folder is measured."""

    @pytest.mark.parametrize(
        ("option", "environment", "expected"),
        [
            ("/a", {"FOLD_CP_WORKDIR": "/b"}, "/a"),
            (None, {"FOLD_CP_WORKDIR": "/b"}, "/b"),
            ("", {"FOLD_CP_WORKDIR": "/b"}, "/b"),
            (None, {"FOLD_CP_WORKDIR": ""}, None),
            (None, {}, None),
        ],
    )
    def test_precedence(self, option: str | None, environment: dict[str, str], expected: str | None) -> None:
        """The option, then the variable, then the current folder; what is empty was not set."""
        assert host.workdir(option, environment) == (Path(expected) if expected else Path.cwd())


UNKNOWN = {"unavailable": "the file system did not answer"}


@pytest.fixture
def facts() -> Facts:
    """A host of which there is nothing to say."""
    return {
        "shm": {"total_mib": 64000, "free_mib": 1024, "stale_segments": []},
        "limits": {"nofile_soft": 1024, "nofile_hard": 4096},
        "disk": {"path": "/data", "free_gib": 150.0, "total_gib": 900.0},
    }


class TestFindings:
    """What is said of a host, and when nothing is."""

    def test_nothing_at_the_bounds(self, facts: Facts) -> None:
        """What is just enough is enough; no limit is enough too."""
        assert host.findings(facts) == []
        assert (
            host.findings({**facts, "limits": {"nofile_soft": "unlimited", "nofile_hard": "unlimited"}}) == []
        )

    def test_little_disk(self, facts: Facts) -> None:
        """A warning with the number, the bound as a recommendation, and both knobs."""
        facts["disk"]["free_gib"] = 149.9
        (found,) = host.findings(facts)

        assert (found.id, found.severity) == ("disk-small", Severity.WARNING)
        assert found.what == "free disk of the work folder /data"
        assert found.got == "149.9 GiB free of 900 GiB"
        assert found.expected.startswith("150 GiB free; a recommendation")
        assert "--workdir" in found.remedy
        assert "FOLD_CP_WORKDIR" in found.remedy
        assert found.command == "df -h -- /data"

    def test_a_disk_that_cannot_be_told_is_not_enough(self, facts: Facts) -> None:
        """A warning of its own, with the reason."""
        facts["disk"] |= {"free_gib": UNKNOWN, "total_gib": UNKNOWN}
        (found,) = host.findings(facts)

        assert (found.id, found.severity) == ("disk-unknown", Severity.WARNING)
        assert found.got == "could not be told: the file system did not answer"

    @pytest.mark.parametrize(
        ("total", "free", "id_", "got"),
        [
            (64, 63, "shm-small", "63 MiB free of 64 MiB"),
            (64000, 1023, "shm-small", "1023 MiB free of 64000 MiB"),
            (UNKNOWN, UNKNOWN, "shm-unknown", "could not be told: the file system did not answer"),
        ],
    )
    def test_little_shared_memory(self, facts: Facts, total: Any, free: Any, id_: str, got: str) -> None:
        """docker's default, a full one, and none at all."""
        facts["shm"] |= {"total_mib": total, "free_mib": free}
        (found,) = host.findings(facts)

        assert (found.id, found.severity, found.got) == (id_, Severity.WARNING, got)
        assert "--shm-size" in found.remedy

    def test_stale_segments(self, facts: Facts) -> None:
        """Told for information, with their number, size and names, and the command to remove them."""
        facts["shm"]["stale_segments"] = [
            {"name": "torch_1_a", "bytes": 1 << 20, "why": "x"},
            {"name": "torch_2_b c;d", "bytes": 1 << 19, "why": "x"},
        ]
        (found,) = host.findings(facts)

        assert (found.id, found.severity) == ("shm-stale", Severity.INFO)
        assert found.got == "2 with 1.5 MiB: torch_1_a, torch_2_b c;d"
        assert shlex.split(found.command) == [
            "rm",
            "-r",
            "--",
            "/dev/shm/torch_1_a",
            "/dev/shm/torch_2_b c;d",
        ]

    def test_many_stale_segments(self, facts: Facts) -> None:
        """The text stays short, and says that the command is."""
        stale = [{"name": f"torch_{number}_a", "bytes": 0, "why": "x"} for number in range(60)]
        facts["shm"]["stale_segments"] = stale
        (found,) = host.findings(facts)

        assert found.got.endswith("torch_4_a and 55 more")
        assert len(shlex.split(found.command)) == 3 + 50
        assert "the first 50" in found.remedy

    @pytest.mark.parametrize(
        ("hard", "remedy", "command"),
        [
            (4096, "raise the soft limit", "ulimit -n 1024"),
            ("unlimited", "raise the soft limit", "ulimit -n 1024"),
            (512, "the hard limit is 512", ""),
        ],
    )
    def test_few_open_files(self, facts: Facts, hard: Any, remedy: str, command: str) -> None:
        """A command only where the hard limit lets it work."""
        facts["limits"] = {"nofile_soft": 256, "nofile_hard": hard}
        (found,) = host.findings(facts)

        assert (found.id, found.severity, found.got) == ("nofile-low", Severity.WARNING, "256")
        assert found.remedy.startswith(remedy)
        assert found.command == command

    def test_all_at_once(self, facts: Facts) -> None:
        """Each is said, in the order of the report's sections or not at all."""
        facts["disk"]["free_gib"] = 1.0
        facts["shm"] |= {"free_mib": 1, "stale_segments": UNKNOWN}
        facts["limits"]["nofile_soft"] = 10

        assert [found.id for found in host.findings(facts)] == ["disk-small", "shm-small", "nofile-low"]


def test_the_modules_run_from_a_zip_without_anything_installed(tmp_path: Path) -> None:
    """With an isolated interpreter, under another name, where no file has a path of its own."""
    package = Path(host.__file__).parents[1]
    archive = tmp_path / "worker.zip"
    with zipfile.ZipFile(archive, "w") as packed:
        packed.writestr("inside/__init__.py", "")
        for name in ("outcome.py", "cgroup_tree.py"):
            packed.write(package / name, f"inside/{name}")
        for path in sorted((package / "hardware").glob("*.py")):
            packed.write(path, f"inside/hardware/{path.name}")
    source = (
        f"import json, sys; sys.path.insert(0, {str(archive)!r})\n"
        "from pathlib import Path\n"
        "from inside.hardware import host\n"
        "facts = host.describe(Path('/'))\n"
        "print(json.dumps([facts, len(host.findings(facts))]))\n"
    )
    got = subprocess.run(
        [sys.executable, "-I", "-S", "-c", source], capture_output=True, timeout=60, check=True
    )

    facts, _ = json.loads(got.stdout)
    assert isinstance(facts["disk"]["free_gib"], float)
    assert report.Host.model_validate({**facts, "findings": []}).disk.path == "/"
