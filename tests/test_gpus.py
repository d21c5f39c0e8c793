"""GPUs, as far as a machine without any can test it: strict children with answers of their own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import forks
import processes
from cpinfra import report
from cpinfra.hardware import child
from cpinfra.hardware import gpus
from cpinfra.hardware import nvml
from cpinfra.hardware import nvml_child
from cpinfra.hardware import visible
from cpinfra.hardware.gpus import GpuAnswer
from cpinfra.hardware.gpus import Unavailable
from cpinfra.hardware.visible import Listed
from cpinfra.report import GpuFacts

UUIDS = ("GPU-aaaa0000-1111", "GPU-aaaa2222-3333", "GPU-bbbb4444-5555")
ENVIRONMENT = {"PATH": os.environ.get("PATH", "")}

Ask = Callable[..., GpuAnswer]

# PCI address, vendor and class, as sysfs writes them.
DISPLAYS = (("0000:17:00.0", "0x10de", "0x030200"), ("0000:65:00.0", "0x10de", "0x030000"))
OTHERS = (("0000:18:00.0", "0x10de", "0x068000"), ("0000:00:02.0", "0x8086", "0x030000"))


def plug(root: Path, *boards: tuple[str, str, str]) -> None:
    """Put boards on the PCI bus below `root`."""
    for address, vendor, kind in boards:
        folder = root / "sys/bus/pci/devices" / address
        folder.mkdir(parents=True)
        (folder / "vendor").write_text(vendor + "\n")
        (folder / "class").write_text(kind + "\n")


def gpu(index: int, **changes: Any) -> dict[str, Any]:
    """A free GPU as the child writes it."""
    return {
        "index": index,
        "uuid": UUIDS[index],
        "name": "H200",
        "bus_id": f"00000000:0{index}:00.0",
        "compute_capability": "9.0",
        "memory_total_mib": 143771,
        "memory_used_mib": 4,
        "processes": 0,
        "mig": False,
        "compute_mode": 0,
        **changes,
    }


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A file system that shows an NVIDIA driver."""
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/nvidiactl").touch()
    return tmp_path


@pytest.fixture
def ask(machine: Path) -> Ask:
    """Ask a child with this source, or one that writes this document, which GPUs may be used."""

    def usable(
        source: str | Mapping[str, Any],
        environment: Mapping[str, str] | None = None,
        timeout_s: float = 20,
        *,
        show_hidden: bool = False,
    ) -> GpuAnswer:
        if not isinstance(source, str):
            source = f"print({json.dumps(source)!r}, end='')"
        script = machine / "child.py"
        script.write_text(source)
        argv = [sys.executable, "-I", str(script)]
        return gpus.usable_gpus(
            {**ENVIRONMENT, **(environment or {})},
            timeout_s,
            argv=argv,
            root=machine,
            show_hidden=show_hidden,
        )

    return usable


def document(*entries: Mapping[str, Any]) -> dict[str, Any]:
    """What the child writes."""
    return {"driver_version": "580.1", "cuda_driver": "13.0", "gpus": list(entries)}


class TestFree:
    """Without CUDA_VISIBLE_DEVICES: those that nobody uses."""

    def test_two_free_gpus(self, ask: Ask) -> None:
        """Both are given, by UUID, in PCI order, with what is known of them."""
        answer = ask(document(gpu(0), gpu(1, name="H100", memory_used_mib=1024)))

        assert answer.state == "gpus"
        assert [(g.index, g.uuid, g.name, g.memory_used_mib) for g in answer.gpus] == [
            (0, UUIDS[0], "H200", 4),
            (1, UUIDS[1], "H100", 1024),
        ]
        assert answer.busy == ()
        assert answer.driver_version == "580.1"

    def test_busy_ones_are_left_and_named(self, ask: Ask) -> None:
        """Of three, one runs a process and one holds memory: each is named with its own reason."""
        answer = ask(document(gpu(0, processes=2), gpu(1), gpu(2, memory_used_mib=1025)))

        assert [g.uuid for g in answer.gpus] == [UUIDS[1]]
        assert [g.index for g in answer.busy] == [0, 2]
        assert answer.busy[0].reason == "it runs 2 compute process(es), 4 MiB used"
        assert answer.busy[1].reason.startswith("1025 MiB used (at most 1024 MiB counts as free), held by no")

    def test_all_busy_is_none_and_says_who(self, ask: Ask) -> None:
        """No usable GPU is its own answer, not an error, and names each."""
        answer = ask(document(gpu(0, processes=1), gpu(1, memory_used_mib=9000)))

        assert (answer.state, answer.gpus) == ("none", ())
        assert answer.reason.startswith("none of 2 GPU(s) may be used: ")
        assert UUIDS[0] in answer.reason
        assert UUIDS[1] in answer.reason

    @pytest.mark.parametrize("boards", [0, 2])
    def test_a_driver_that_shows_no_gpu_is_no_machine_without_gpus(
        self, ask: Ask, machine: Path, boards: int
    ) -> None:
        """The driver answers zero, whatever the bus shows: not the same as no driver; boards are named."""
        plug(machine, *DISPLAYS[:boards])
        answer = ask(document())

        assert (answer.state, answer.busy) == ("none", ())
        shown = "2 NVIDIA GPU(s): 0000:17:00.0, 0000:65:00.0" if boards else "no NVIDIA GPU"
        assert answer.reason == f"the NVIDIA driver is there and shows no GPU; the PCI bus shows {shown}"
        assert "dmesg" in answer.remedy

    @pytest.mark.parametrize(
        ("changes", "reason"),
        [
            ({"mig": True}, "MIG mode is on"),
            ({"compute_mode": 2}, "its compute mode is Prohibited"),
            ({"processes": None, "memory_used_mib": None}, "whether it is in use could not be told"),
        ],
    )
    def test_unusable_ones_are_left(self, ask: Ask, changes: dict[str, Any], reason: str) -> None:
        """A GPU that cannot be used, or of which nothing can be told, is no free GPU."""
        answer = ask(document(gpu(0, **changes), gpu(1)))

        assert [g.index for g in answer.gpus] == [1]
        assert answer.busy[0].reason.startswith(reason)

    def test_a_lost_gpu_is_named(self, ask: Ask) -> None:
        """One that does not answer is busy under its index, between the others."""
        answer = ask(document(gpu(0), {"index": 1, "error": "GPU is lost"}, gpu(2)))

        assert [g.index for g in answer.gpus] == [0, 2]
        assert [(g.label, g.reason) for g in answer.busy] == [("GPU 1", "does not answer: GPU is lost")]

    @pytest.mark.parametrize("total", [None, 0])
    def test_unified_memory_is_unavailable_and_not_zero(self, ask: Ask, total: int | None) -> None:
        """A GPU whose memory the driver cannot tell is kept, and the number is unavailable."""
        answer = ask(document(gpu(0, memory_total_mib=total, memory_used_mib=total)))

        assert answer.state == "gpus"
        assert isinstance(answer.gpus[0].memory_total_mib, Unavailable)
        assert isinstance(answer.gpus[0].memory_used_mib, Unavailable)


def state_of(answer: GpuAnswer) -> list[tuple[int, str, tuple[str, ...]]]:
    """How each GPU that shows was found."""
    return [(gpu.index, gpu.state, gpu.reasons) for gpu in answer.shown]


class TestShown:
    """Every GPU that the driver shows, whoever may use it."""

    def test_all_are_described(self, ask: Ask, machine: Path) -> None:
        """What NVML and sysfs say of each, one of them busy and of another kind."""
        plug(machine, ("0000:00:00.0", "0x10de", "0x030200"), ("0001:af:00.0", "0x10de", "0x030200"))
        for address, node in (("0000:00:00.0", "1"), ("0001:af:00.0", "0")):
            (machine / "sys/bus/pci/devices" / address / "numa_node").write_text(f"{node}\n")
        other = gpu(1, name="A40", compute_capability="8.6", bus_id="00000001:AF:00.0", processes=3)
        answer = ask(document(gpu(0), other))

        assert [shown.facts() for shown in answer.shown] == [
            {
                "index": 0,
                "uuid": UUIDS[0],
                "name": "H200",
                "compute_capability": "9.0",
                "memory_total_mib": 143771,
                "memory_used_mib": 4,
                "state": "free",
                "reasons": [],
                "numa_node": 1,
                "pci_bus_id": "0000:00:00.0",
                "mig": False,
            },
            {
                "index": 1,
                "uuid": UUIDS[1],
                "name": "A40",
                "compute_capability": "8.6",
                "memory_total_mib": 143771,
                "memory_used_mib": 4,
                "state": "busy",
                "reasons": ["it runs 3 compute process(es), 4 MiB used"],
                "numa_node": 0,
                "pci_bus_id": "0001:af:00.0",
                "mig": False,
            },
        ]
        assert answer.cuda_driver == "13.0"

    def test_the_facts_fit_the_report(self, ask: Ask) -> None:
        """Of a GPU that answers, of one that could not say much, and of one that is lost."""
        vague = dict.fromkeys(("compute_capability", "memory_total_mib", "memory_used_mib", "mig", "bus_id"))
        answer = ask(document(gpu(0), gpu(1, **vague), {"index": 2, "error": "GPU is lost"}))
        facts = [GpuFacts.model_validate(shown.facts()) for shown in answer.shown]

        assert [fact.index for fact in facts] == [0, 1, 2]
        assert all(isinstance(fact.numa_node, report.Unavailable) for fact in facts)

    def test_what_cannot_be_told_is_unavailable(self, ask: Ask) -> None:
        """Each with the reason; no MIG question means no MIG mode."""
        vague = dict.fromkeys(("compute_capability", "memory_total_mib", "memory_used_mib", "mig", "bus_id"))
        (shown,) = ask(document(gpu(0, **vague))).shown

        assert shown.compute_capability == Unavailable(why="the driver does not say")
        assert shown.memory_total_mib == Unavailable(why="the driver cannot say (unified memory)")
        assert shown.pci_bus_id == shown.numa_node == Unavailable(why="NVML gives no PCI address")
        assert shown.mig is False

    @pytest.mark.parametrize(
        ("text", "why"),
        [("-1", "the firmware names no NUMA node for it"), ("", "holds no number"), (None, "No such file")],
    )
    def test_no_numa_node_is_unavailable(self, ask: Ask, machine: Path, text: str | None, why: str) -> None:
        """The kernel's -1, an empty file and no file are three reasons, and never a node."""
        folder = machine / "sys/bus/pci/devices/0000:00:00.0"
        folder.mkdir(parents=True)
        if text is not None:
            (folder / "numa_node").write_text(f"{text}\n")
        (shown,) = ask(document(gpu(0))).shown

        assert isinstance(shown.numa_node, Unavailable)
        assert why in shown.numa_node.why

    def test_all_reasons_at_once(self, ask: Ask) -> None:
        """Two obstacles and use by others: none hides another, and the obstacles decide."""
        answer = ask(document(gpu(0, mig=True, compute_mode=2, processes=1), gpu(1)))

        (_, state, reasons), second = state_of(answer)
        assert state == "unusable"
        assert [reason.split(",")[0] for reason in reasons] == [
            "MIG mode is on",
            "its compute mode is Prohibited (nvidia-smi -c 0 resets it)",
            "it runs 1 compute process(es)",
        ]
        assert second == (1, "free", ())
        assert [shown.mig for shown in answer.shown] == [True, False]

    def test_use_that_could_not_be_told_is_not_free(self, ask: Ask) -> None:
        """Neither processes nor memory can be read."""
        ((_, state, (reason,)),) = state_of(ask(document(gpu(0, processes=None, memory_used_mib=None))))

        assert state == "busy"
        assert reason.startswith("whether it is in use could not be told")

    def test_a_lost_gpu_keeps_what_it_said_before(self, ask: Ask) -> None:
        """It stands in its place with UUID and address, and the rest is unavailable for the same reason."""
        lost = {"index": 0, "error": "GPU is lost", "uuid": UUIDS[0], "bus_id": "00000000:17:00.0"}
        first, second = ask(document(gpu(1), lost)).shown

        assert (first.index, first.state, first.reasons) == (0, "unusable", ("does not answer: GPU is lost",))
        assert (first.uuid, first.pci_bus_id) == (UUIDS[0], "0000:17:00.0")
        assert first.name == first.mig == Unavailable(why="the GPU does not answer: GPU is lost")
        assert second.state == "free"

    def test_those_that_are_left_out_show_as_they_were_found(self, ask: Ask) -> None:
        """Free stays free and busy stays busy, each with the reason why no run uses it besides."""
        answer = ask(document(gpu(0, processes=1), gpu(1), gpu(2)), {visible.VARIABLE: "1"})
        reason = "not named by CUDA_VISIBLE_DEVICES='1', so no run of ours uses it"

        assert [found.index for found in answer.gpus] == [1]
        assert state_of(answer) == [
            (0, "busy", ("it runs 1 compute process(es), 4 MiB used", reason)),
            (1, "free", ()),
            (2, "free", (reason,)),
        ]

    def test_one_that_is_named_in_vain_is_not_called_unnamed(self, ask: Ask) -> None:
        """CUDA stops at the 7, so what follows is named and yet left out."""
        answer = ask(document(gpu(0), gpu(1)), {visible.VARIABLE: "0,7,1"})
        reason = (
            "not among those that CUDA takes from CUDA_VISIBLE_DEVICES='0,7,1', so no run of ours uses it"
        )

        assert state_of(answer) == [(0, "free", ()), (1, "free", (reason,))]

    def test_a_value_that_names_nothing_still_shows_all(self, ask: Ask) -> None:
        """An error for whoever wants to run, and the machine as it is."""
        answer = ask(document(gpu(0), gpu(1)), {visible.VARIABLE: "0,0"})
        reason = "CUDA_VISIBLE_DEVICES='0,0' names no GPU that a run of ours could use"

        assert answer.state == "error"
        assert state_of(answer) == [(0, "free", (reason,)), (1, "free", (reason,))]
        assert (answer.driver_version, answer.cuda_driver) == ("580.1", "13.0")

    def test_hidden_ones_are_shown_on_request(self, ask: Ask) -> None:
        """The state stays `hidden`; without the request no driver is called (see TestNamed)."""
        answer = ask(document(gpu(0)), {visible.VARIABLE: ""}, show_hidden=True)

        assert (answer.state, answer.gpus, answer.driver_version) == ("hidden", (), "580.1")
        assert state_of(answer) == [(0, "free", ("CUDA_VISIBLE_DEVICES='' hides every GPU",))]

    def test_hidden_ones_of_a_hung_driver(self, ask: Ask) -> None:
        """Whoever asks to be shown what is there learns that the driver hangs."""
        answer = ask("import time; time.sleep(600)", {visible.VARIABLE: ""}, timeout_s=0.3, show_hidden=True)

        assert (answer.state, answer.shown) == ("hung", ())

    @pytest.mark.parametrize("state", ["none", "hung", "no-driver"])
    def test_without_gpus_nothing_shows(self, ask: Ask, state: str) -> None:
        """Zero GPUs, a hanging driver and no driver stay three answers; versions say why there is none."""
        no_driver = {"error": {"code": "NVML_ERROR_DRIVER_NOT_LOADED", "text": "t"}}
        sources = {"none": document(), "hung": "import time; time.sleep(600)", "no-driver": no_driver}
        answer = ask(sources[state], timeout_s=0.5 if state == "hung" else 20)

        assert (answer.state, answer.shown) == (state, ())
        assert (answer.cuda_driver == "13.0") == (state == "none")
        if state == "hung":
            hung = Unavailable(why="the NVIDIA driver did not answer within 0.5 s")
            assert answer.driver_version == answer.cuda_driver == hung

    def test_no_libcuda_leaves_its_version_unavailable(self, ask: Ask) -> None:
        """NVML without the compute library: the GPUs are told all the same."""
        answer = ask({**document(gpu(0)), "cuda_driver": None})

        assert answer.state == "gpus"
        assert isinstance(answer.cuda_driver, Unavailable)
        assert "libcuda.so.1" in answer.cuda_driver.why


class TestBusId:
    """NVML's address and sysfs' are two spellings of one."""

    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("00000000:17:00.0", "0000:17:00.0"),
            ("0000:17:00.0", "0000:17:00.0"),
            ("00000001:AF:1F.7", "0001:af:1f.7"),
            ("00010000:E1:00.0", "10000:e1:00.0"),
            ("17:00.0", None),
            ("0000:17:00.9", None),
            ("", None),
            (None, None),
        ],
    )
    def test_spellings(self, text: str | None, expected: str | None) -> None:
        """Four digits of domain, more only where they are needed; anything else is no address."""
        assert nvml.sysfs_bus_id(text) == expected

    @given(st.integers(0, 0xFFFFFFFF), st.integers(0, 255), st.integers(0, 31), st.integers(0, 7))
    def test_numbers_are_kept(self, domain: int, bus: int, device: int, function: int) -> None:
        """What is written back is the same address."""
        got = nvml.sysfs_bus_id(f"{domain:08X}:{bus:02X}:{device:02X}.{function:X}")

        assert got == f"{domain:04x}:{bus:02x}:{device:02x}.{function:x}"


class FakeNvml:
    """An NVML of two GPUs: all that nvml_child.py may call, and nothing else."""

    NVML_DEVICE_MIG_ENABLE = 1
    nvmlMemory_v2 = 2  # noqa: N815
    NVMLError = type("NVMLError", (Exception,), {})
    NVMLError_NotSupported = type("NVMLError_NotSupported", (NVMLError,), {})
    NVMLError_FunctionNotFound = type("NVMLError_FunctionNotFound", (NVMLError,), {})

    def __init__(self, *, cuda_driver: int | None = 13000, lost_at: str = "") -> None:
        self.cuda_driver = cuda_driver
        self.lost_at = lost_at

    def nvmlInit(self) -> None:  # noqa: N802 (NVML's own names)
        """Nothing to do."""

    def nvmlSystemGetCudaDriverVersion_v2(self) -> int:  # noqa: N802
        """As a number, or a library that is not there."""
        if self.cuda_driver is None:
            raise self.NVMLError("Shared library not found")
        return self.cuda_driver

    def __getattr__(self, name: str) -> Any:
        answers = {
            "nvmlDeviceGetCount": 2,
            "nvmlSystemGetDriverVersion": b"580.1",
            "nvmlDeviceGetHandleByIndex": object(),
            "nvmlDeviceGetUUID": "GPU-1",
            "nvmlDeviceGetPciInfo": SimpleNamespace(busId=b"00000000:17:00.0"),
            "nvmlDeviceGetName": "H200",
            "nvmlDeviceGetMemoryInfo": SimpleNamespace(total=2 << 30, used=5 << 20),
            "nvmlDeviceGetCudaComputeCapability": (9, 0),
            "nvmlDeviceGetComputeRunningProcesses": [],
            "nvmlDeviceGetComputeMode": 0,
        }
        if name == self.lost_at:
            return self.lost
        return lambda *_, **__: answers[name]

    def lost(self, *_: Any, **__: Any) -> Any:
        """The GPU fell off the bus."""
        raise self.NVMLError("GPU is lost")

    def nvmlDeviceGetMigMode(self, handle: object) -> Any:  # noqa: N802
        """A model without MIG."""
        raise self.NVMLError_NotSupported("Not Supported")


class TestNvmlChild:
    """What our own child makes of NVML's answers."""

    def test_it_writes_what_is_read(self) -> None:
        """Every field of the document, in the units it is read in."""
        answer = nvml_child._answer(FakeNvml())

        assert (answer["driver_version"], answer["cuda_driver"]) == ("580.1", "13.0")
        assert answer["gpus"][1] == {
            "index": 1,
            "uuid": "GPU-1",
            "bus_id": "00000000:17:00.0",
            "name": "H200",
            "compute_capability": "9.0",
            "memory_total_mib": 2048,
            "memory_used_mib": 5,
            "processes": 0,
            "mig": None,
            "compute_mode": 0,
        }
        assert nvml._machine_from(json.loads(json.dumps(answer))).seen[1].bus_id == "0000:17:00.0"

    @pytest.mark.parametrize(("number", "text"), [(12040, "12.4"), (11080, "11.8"), (None, None)])
    def test_version_of_cuda(self, number: int | None, text: str | None) -> None:
        """Thousands and tens; no library is null and does not spoil the rest."""
        answer = nvml_child._answer(FakeNvml(cuda_driver=number))

        assert answer["cuda_driver"] == text
        assert len(answer["gpus"]) == 2

    @pytest.mark.parametrize(
        ("lost_at", "known"),
        [
            ("nvmlDeviceGetHandleByIndex", ["index", "error"]),
            ("nvmlDeviceGetMemoryInfo", ["index", "uuid", "bus_id", "name", "error"]),
        ],
    )
    def test_a_lost_gpu(self, lost_at: str, known: list[str]) -> None:
        """What it said before is kept, beside the error."""
        answer = nvml_child._answer(FakeNvml(lost_at=lost_at))

        assert list(answer["gpus"][0]) == known
        assert answer["gpus"][0]["error"] == "GPU is lost"
        assert nvml._machine_from(answer).silent[0].reason == "does not answer: GPU is lost"

    def test_it_runs_from_a_zip(self, tmp_path: Path) -> None:
        """There its file has no path: it starts all the same, and says what it found."""
        folder = Path(nvml.__file__).parents[1]
        archive = tmp_path / "worker.zip"
        with zipfile.ZipFile(archive, "w") as packed:
            packed.writestr("inside/__init__.py", "")
            for path in sorted((folder / "hardware").glob("*.py")):
                packed.write(path, f"inside/hardware/{path.name}")
        source = (
            f"import sys; sys.path.insert(0, {str(archive)!r})\n"
            "from inside.hardware import child, nvml\n"
            "answer = child.ask(nvml._command(), environment={}, timeout_s=20)\n"
            "sys.stdout.write(answer.state + ' ' + answer.stdout.decode())\n"
        )
        got = subprocess.run(
            [sys.executable, "-I", "-c", source], capture_output=True, timeout=60, check=True
        )

        state, _, text = got.stdout.decode().partition(" ")
        assert state == "exited"
        assert {"gpus", "error"} & set(json.loads(text))


class TestNoAnswer:
    """No driver, a hung driver, a broken answer: three states, and none is zero GPUs."""

    def test_a_machine_without_nvidia_starts_no_child(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """No sign of a driver and no board, beside others' boards: told from files alone."""
        monkeypatch.setattr(child, "ask", None)
        plug(tmp_path, *OTHERS)
        answer = gpus.usable_gpus({}, 20, root=tmp_path)

        assert answer.state == "absent"
        assert answer.reason == "no NVIDIA driver and no NVIDIA GPU on the PCI bus"
        assert answer.remarks == ()

    def test_boards_without_a_driver_are_named(self, tmp_path: Path) -> None:
        """Two NVIDIA display devices, and others, on the bus: no machine without GPUs."""
        plug(tmp_path, *DISPLAYS, *OTHERS)
        answer = gpus.usable_gpus({}, 20, root=tmp_path)

        assert answer.state == "no-driver"
        assert answer.reason == (
            "no NVIDIA driver is installed; the PCI bus shows 2 NVIDIA GPU(s): 0000:17:00.0, 0000:65:00.0"
        )
        assert "modprobe nvidia" in answer.remedy

    def test_boards_that_are_hidden_on_purpose_are_hidden(self, tmp_path: Path) -> None:
        """Whoever wants no GPU needs no driver for them either."""
        plug(tmp_path, *DISPLAYS)

        assert gpus.usable_gpus({visible.VARIABLE: ""}, 20, root=tmp_path).state == "hidden"

    def test_a_device_that_cannot_be_read_is_no_gpu(self, tmp_path: Path) -> None:
        """One that went while it was looked at."""
        plug(tmp_path, *DISPLAYS)
        (tmp_path / "sys/bus/pci/devices/0000:17:00.0/class").unlink()

        assert gpus.boards_seen(tmp_path) == ("0000:65:00.0",)

    @pytest.mark.parametrize(
        "sign", ["dev/nvidiactl", "usr/lib64/libnvidia-ml.so.1", "lib/libnvidia-ml.so.1"]
    )
    def test_signs_of_a_driver(self, tmp_path: Path, sign: str) -> None:
        """Device node, library in a usual folder, library on LD_LIBRARY_PATH."""
        (tmp_path / sign).parent.mkdir(parents=True)
        (tmp_path / sign).touch()

        assert gpus.driver_seen({"LD_LIBRARY_PATH": f"/nowhere::{tmp_path}/lib"}, tmp_path)
        assert not gpus.driver_seen({}, tmp_path / "empty")

    def test_library_known_to_the_loader(self, tmp_path: Path) -> None:
        """The loader's cache counts as well."""
        (tmp_path / "etc").mkdir()
        (tmp_path / "etc/ld.so.cache").write_bytes(b"glibc-ld.so.cache\0libnvidia-ml.so.1\0/opt/x\0")

        assert gpus.driver_seen({}, tmp_path)

    def test_hung_driver(self, ask: Ask, machine: Path) -> None:
        """A child that never answers is killed with its children at the deadline, and it is said."""
        source = (
            "import os, subprocess, sys, time\n"
            "grandchild = subprocess.Popen([sys.executable, '-I', '-c', 'import time; time.sleep(600)'])\n"
            f"open({str(machine / 'pids')!r}, 'w').write(f'{{os.getpid()}} {{grandchild.pid}}')\n"
            "time.sleep(600)\n"
        )
        started = time.perf_counter()
        answer = ask(source, timeout_s=1)

        assert time.perf_counter() - started < 5
        assert answer.state == "hung"
        assert answer.reason == "the NVIDIA driver did not answer within 1 s"
        for pid in (machine / "pids").read_text().split():
            assert gone(int(pid))

    @pytest.mark.parametrize(
        ("source", "reason"),
        [
            ("print('Segmentation fault')", "gave no answer that can be read: 'Segmentation fault"),
            ("print('[1, 2]')", "gave no answer that can be read: '[1, 2]"),
            ("print('{}')", "gave no answer that can be read"),
            ("pass", "gave no answer that can be read: ''"),
            ("import sys; print('boom', file=sys.stderr); sys.exit(3)", "failed: exit status 3: boom"),
            ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "failed: ended by SIGSEGV"),
            ("while True: print('x' * 65536)", "wrote far more than an answer"),
        ],
    )
    def test_broken_answers(self, ask: Ask, source: str, reason: str) -> None:
        """Garbage, an exit status, a signal and a flood are errors that say which; never zero GPUs."""
        answer = ask(source)

        assert answer.state == "error"
        assert reason in answer.reason
        assert answer.remedy

    @pytest.mark.parametrize(
        "changes",
        [
            {"uuid": None},
            {"index": "0"},
            {"processes": True},
            {"memory_used_mib": 1.5},
            {"mig": 0},
            {"bus_id": 7},
        ],
    )
    def test_a_wrong_type_is_no_answer(self, ask: Ask, changes: dict[str, Any]) -> None:
        """A field of another type is not guessed at."""
        assert ask(document(gpu(1), {**gpu(0), **changes})).state == "error"

    def test_a_missing_field_is_no_answer(self, ask: Ask) -> None:
        """A field that is not there is not guessed at either."""
        entry = gpu(0)
        del entry["processes"]

        assert ask(document(entry)).state == "error"

    @pytest.mark.parametrize(
        ("code", "state", "remedy"),
        [
            ("NVML_ERROR_DRIVER_NOT_LOADED", "no-driver", "load the driver (modprobe nvidia"),
            ("NVML_ERROR_LIBRARY_NOT_FOUND", "error", "libnvidia-ml.so.1"),
            ("NVML_ERROR_LIB_RM_VERSION_MISMATCH", "error", "reboot"),
            ("NVML_ERROR_UNKNOWN", "error", "in a container"),
            ("no-pynvml", "error", "install nvidia-ml-py"),
            ("NVML_ERROR_TIMEOUT", "error", "nvidia-smi"),
        ],
    )
    def test_errors_of_nvml(self, ask: Ask, code: str, state: str, remedy: str) -> None:
        """Each code keeps NVML's text and gets a remedy of its own."""
        answer = ask({"error": {"code": code, "text": "Its words"}})

        assert answer.state == state
        bus = "; the PCI bus shows no NVIDIA GPU" if state == "no-driver" else ""
        assert answer.reason == f"NVML: Its words ({code}){bus}"
        assert remedy in answer.remedy

    @pytest.mark.parametrize("code", ["NVML_ERROR_LIBRARY_NOT_FOUND", "NVML_ERROR_DRIVER_NOT_LOADED"])
    @pytest.mark.parametrize(("boards", "state"), [(0, "absent"), (2, "no-driver")])
    def test_library_without_kernel_driver(self, tmp_path: Path, code: str, boards: int, state: str) -> None:
        """An image that ships the library: on a host without GPUs, and on one whose driver is not loaded."""
        plug(tmp_path, *DISPLAYS[:boards])
        (tmp_path / "usr/lib64").mkdir(parents=True)
        (tmp_path / "usr/lib64/libnvidia-ml.so.1").touch()
        words = json.dumps({"error": {"code": code, "text": "t"}})
        argv = [sys.executable, "-I", "-c", f"print({words!r})"]
        answer = gpus.usable_gpus(ENVIRONMENT, 20, argv=argv, root=tmp_path)

        assert answer.state == state
        assert ("0000:17:00.0, 0000:65:00.0" in answer.reason) == bool(boards)

    def test_a_child_that_cannot_start(self, machine: Path) -> None:
        """A program that is not there is an error that names it."""
        answer = gpus.usable_gpus(ENVIRONMENT, 20, argv=["/does/not/exist"], root=machine)

        assert answer.state == "error"
        assert "/does/not/exist" in answer.reason

    def test_our_own_child_says_that_there_is_no_library(self) -> None:
        """The real child, isolated, finds nvidia-ml-py and reports NVML's own code."""
        if gpus.driver_seen(os.environ):
            pytest.skip("this machine has a driver")
        with pytest.raises(nvml.NoAnswerError) as caught:
            nvml.machine(os.environ, 20)

        assert (caught.value.state, "NVML_ERROR_LIBRARY_NOT_FOUND" in caught.value.reason) == (
            "no-library",
            True,
        )


class TestNamed:
    """With CUDA_VISIBLE_DEVICES: those that it names."""

    @pytest.mark.parametrize("value", ["", "-1", "NoDevFiles", "void", " "])
    def test_hidden_on_purpose(self, ask: Ask, value: str) -> None:
        """No GPU, by the user's or the batch system's wish: no driver call, no error."""
        answer = ask("raise SystemExit('must not be started')", {visible.VARIABLE: value})

        assert answer.state == "hidden"
        assert answer.busy == ()
        assert repr(value) in answer.reason

    def test_named_by_number_and_by_uuid(self, ask: Ask) -> None:
        """Order is the variable's; numbers count in PCI order."""
        three = document(gpu(0), gpu(1), gpu(2))

        assert [g.index for g in ask(three, {visible.VARIABLE: "2,0"}).gpus] == [2, 0]
        assert [g.index for g in ask(three, {visible.VARIABLE: "GPU-bbbb,GPU-aaaa0"}).gpus] == [2, 0]

    def test_named_and_in_use_is_used_and_told(self, ask: Ask) -> None:
        """Whoever set the variable has chosen; that others use it is a warning for each such GPU."""
        three = document(gpu(0, processes=1), gpu(1), gpu(2, memory_used_mib=5000))
        answer = ask(three, {visible.VARIABLE: "0,1,2"})

        assert len(answer.gpus) == 3
        order, one, two = answer.remarks
        assert (order.kind, order.is_warning) == ("order", False)
        assert [(used.kind, used.is_warning) for used in (one, two)] == [("in-use", True)] * 2
        assert UUIDS[0] in one.text
        assert "1 compute process(es)" in one.text
        assert UUIDS[2] in two.text
        assert "5000 MiB" in two.text

    @pytest.mark.parametrize(
        ("value", "kinds"),
        [
            ("0,1", [("order", True)]),
            ("0,7", [("cut-short", True), ("order", True)]),
            (f"{UUIDS[0]},7", [("cut-short", True)]),
            (UUIDS[0], []),
        ],
    )
    def test_each_remark_is_of_its_kind(self, ask: Ask, value: str, kinds: list[tuple[str, bool]]) -> None:
        """Where the list was cut short and how numbers were counted are told apart, among unlike GPUs."""
        answer = ask(document(gpu(0), gpu(1, name="A40")), {visible.VARIABLE: value})

        assert [(remark.kind, remark.is_warning) for remark in answer.remarks] == kinds
        for remark in answer.remarks:
            assert ("names no GPU here" in remark.text) == (remark.kind == "cut-short")

    def test_named_and_mig_is_not_used(self, ask: Ask) -> None:
        """A GPU that cannot be used is not used, although it is named."""
        answer = ask(document(gpu(0, mig=True), gpu(1)), {visible.VARIABLE: "0,1"})

        assert [g.index for g in answer.gpus] == [1]
        assert "MIG mode is on" in answer.busy[0].reason

    def test_a_value_that_names_nothing_is_an_error(self, ask: Ask) -> None:
        """GPUs that were named and are not there are no reason to use none in silence."""
        answer = ask(document(gpu(0), gpu(1)), {visible.VARIABLE: "7"})

        assert answer.state == "error"
        assert "'7' names no GPU here, so CUDA shows none; there are 2 GPU(s), 0: " in answer.reason


def listed(*names: str) -> list[Listed]:
    """GPUs of those models."""
    return [Listed(index=i, uuid=UUIDS[i], name=name) for i, name in enumerate(names)]


ALIKE = listed("H200", "H200", "H200")


class TestVisible:
    """The driver's own rules for the variable."""

    @pytest.mark.parametrize(
        ("value", "indices"),
        [
            ("0", (0,)),
            ("2,1", (2, 1)),
            (" 1 , 0", (1, 0)),
            ("1gpu,2", (1, 2)),
            ("+1", (1,)),
            (UUIDS[1], (1,)),
            ("GPU-b", (2,)),
            ("GPU-b\n", (2,)),
            ("0x1", (0,)),
        ],
    )
    def test_allows(self, value: str, indices: tuple[int, ...]) -> None:
        """Numbers as strtoul reads them, UUIDs and their beginnings."""
        found = visible.resolve(value, ALIKE, {})

        assert (found.indices, found.refused) == (indices, "")

    @pytest.mark.parametrize(
        ("value", "indices", "culprit"),
        [
            ("0,7,1", (0,), "'7'"),
            ("1,-1,2", (1,), "'-1'"),
            ("0,GPU-b", (0,), "'GPU-b'"),
            ("GPU-b,0", (2,), "'0'"),
        ],
    )
    def test_stops_at_the_first_invalid(self, value: str, indices: tuple[int, ...], culprit: str) -> None:
        """What follows is invisible, and the entry that did it is named."""
        found = visible.resolve(value, ALIKE, {})

        assert found.indices == indices
        assert culprit in found.warnings[0]
        assert "CUDA ignores what follows" in found.warnings[0]

    @pytest.mark.parametrize(
        ("value", "reason"),
        [
            ("abc", "'abc' names no GPU here"),
            ("3", "'3' names no GPU here"),
            ("GPU-a", "'GPU-a' names no GPU here"),  # two GPUs begin so
            ("0,0", "names 0 twice"),
            ("GPU-b,GPU-bb", "names GPU-bb twice"),
            ("MIG-1234", "MIG instances are not supported"),
            ("0,MIG-GPU-aaaa/1/0", "MIG instances are not supported"),
            (",0", "'' names no GPU here"),
            ("GPU-", "'GPU-' names no GPU here"),
            (" GPU-b", "' GPU-b' names no GPU here"),
            ("gpu-b", "'gpu-b' names no GPU here"),
        ],
    )
    def test_rejects(self, value: str, reason: str) -> None:
        """What names nothing, or one thing twice, is refused with the reason."""
        found = visible.resolve(value, ALIKE, {})

        assert found.indices == ()
        assert reason in found.refused

    def test_says_how_numbers_were_counted(self) -> None:
        """A note among alike GPUs, a warning among others, nothing where it makes no difference."""
        mixed = listed("H200", "A40")
        fixed = {visible.ORDER_VARIABLE: "PCI_BUS_ID"}

        assert "PCI bus order" in visible.resolve("1", ALIKE, {}).notes[0]
        assert "0: H200, 1: A40" in visible.resolve("1", mixed, {}).warnings[0]
        for value, environment in [("1", fixed), (UUIDS[1], {})]:
            found = visible.resolve(value, mixed, environment)
            assert (found.notes, found.warnings) == ((), ())

    @given(st.text(alphabet="0123-+,GPUabMI x"))
    def test_never_invents(self, value: str) -> None:
        """Whatever the text: distinct GPUs that exist, or a refusal, never both and never neither."""
        found = visible.resolve(value, ALIKE, {})

        assert len(set(found.indices)) == len(found.indices)
        assert set(found.indices) <= {0, 1, 2}
        assert bool(found.indices) != bool(found.refused)


@pytest.fixture
def undying(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """SIGKILL to a group does nothing, as to a process in the kernel's D state."""
    killed: list[int] = []
    real = os.killpg
    monkeypatch.setattr(os, "killpg", lambda pid, number: killed.append(pid))
    yield
    for pid in killed:
        real(pid, signal.SIGKILL)


class TestChild:
    """A child that may be killed."""

    def ask(self, source: str, timeout_s: float = 20, limit_bytes: int = 1 << 20) -> child.ChildAnswer:
        """Run a line of Python."""
        argv = [sys.executable, "-I", "-c", source]
        return child.ask(argv, environment=ENVIRONMENT, timeout_s=timeout_s, limit_bytes=limit_bytes)

    def test_takes_both_streams_whole(self) -> None:
        """More than a pipe holds, on both streams at once."""
        answer = self.ask("import sys; sys.stderr.write('e' * 200000); sys.stdout.write('o' * 200000)")

        assert (answer.state, answer.returncode) == ("exited", 0)
        assert (len(answer.stdout), len(answer.stderr)) == (200000, 200000)

    def test_does_not_wait_for_a_grandchild_that_holds_the_pipe(self) -> None:
        """The child's own end is the end; what it left running is killed."""
        source = (
            "import subprocess, sys\n"
            "held = subprocess.Popen([sys.executable, '-I', '-c', 'import time; time.sleep(600)'])\n"
            "print(held.pid)"
        )
        started = time.perf_counter()
        answer = self.ask(source)

        assert time.perf_counter() - started < 5
        assert answer.state == "exited"
        assert gone(int(answer.stdout))

    def test_is_not_waited_for_if_it_does_not_die(self, undying: None) -> None:
        """The answer comes soon after the deadline all the same, with the pid that is left."""
        started = time.perf_counter()
        answer = self.ask("import time; time.sleep(600)", timeout_s=0.3)

        assert time.perf_counter() - started < 3
        assert answer.state == "hung"
        assert answer.left_behind is not None

    def test_takes_no_signal_meant_for_us(self) -> None:
        """It lives in a session of its own, so the terminal's Ctrl-C does not reach it."""
        answer = self.ask("import os; print(os.getsid(0) == os.getpid())")

        assert answer.stdout == b"True\n"

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
    def test_is_ended_with_us(self, tmp_path: Path, number: signal.Signals) -> None:
        """Whatever ends us while we wait ends the child too, although it hangs and heeds no other signal."""
        hangs = (
            "import os, signal, time\n"
            "for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):\n"
            "    signal.signal(number, signal.SIG_IGN)\n"
            "with open(os.environ['PID'] + '.part', 'w') as file:\n"
            "    file.write(str(os.getpid()))\n"
            "os.rename(os.environ['PID'] + '.part', os.environ['PID'])\n"
            "time.sleep(600)\n"
        )
        asks = (
            "import os, sys\n"
            "from cpinfra.hardware import child\n"
            f"argv = [sys.executable, '-I', '-c', {hangs!r}]\n"
            "child.ask(argv, environment=os.environ, timeout_s=600)\n"
        )
        with asking(asks, tmp_path / "pid") as (process, pid):
            process.send_signal(number)
            process.communicate(timeout=20)

            assert process.returncode == -number
            assert gone(pid)

    def test_is_ended_at_its_very_start(self, tmp_path: Path) -> None:
        """A program that runs nothing of ours is ended with us as well."""
        program = tmp_path / "python"
        program.write_text('#!/bin/sh\necho $$ > "$PID.part"\nmv "$PID.part" "$PID"\nexec sleep 600\n')
        program.chmod(0o755)
        asks = (
            "import os\n"
            "from cpinfra.hardware import child\n"
            f"child.ask([{str(program)!r}], environment=os.environ, timeout_s=600)\n"
        )
        with asking(asks, tmp_path / "pid") as (process, pid):
            process.kill()

            assert gone(pid)

    def test_is_not_ended_by_a_parent_that_lives(self) -> None:
        """It is asked for by process, not by chance: the child of a living parent answers."""
        assert self.ask("import time; time.sleep(0.3); print('here')").stdout == b"here\n"

    def test_a_child_whose_parent_is_gone_already_ends(self) -> None:
        """The parent may have died before the request was made: then nothing else would ever end it."""

        def work() -> None:
            child._die_with_parent(os.getppid() + 1)
            os._exit(3)

        assert forks.wait(forks.fork(work)) == 0


@contextmanager
def asking(source: str, told: Path) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """A program that waits for a child, and the child's pid as it has told it; both are ended."""
    package = str(Path(child.__file__).parents[2])
    environment = {**os.environ, "PID": str(told), "PYTHONPATH": package}
    process = subprocess.Popen(
        [*processes.SIGNALS_AT_WORK, sys.executable, "-c", source], env=environment, stderr=subprocess.PIPE
    )
    try:
        processes.wait_until(told.exists, "the child")
        pid = int(told.read_text())
        yield process, pid
    finally:
        process.kill()
        process.communicate()
        if told.exists() and not gone(int(told.read_text())):
            os.kill(int(told.read_text()), signal.SIGKILL)


def gone(pid: int) -> bool:
    """Whether a process has ended, or does so within a second."""
    deadline = time.monotonic() + 1
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return True
        if state in "ZX":
            return True
        time.sleep(0.01)
    return False
