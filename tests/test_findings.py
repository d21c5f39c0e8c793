"""What a user reads when the target interpreter cannot be used, and the environment that it runs in."""

from __future__ import annotations

import errno
import shlex
from pathlib import Path

import pytest

from cpinfra.outcome import Finding
from cpinfra.outcome import Severity
from cpinfra.proof import findings
from cpinfra.proof import run_findings
from cpinfra.proof.environment import HARDENING
from cpinfra.proof.environment import zygote_environment
from cpinfra.worker.processes import COOKIE_VARIABLE

HOSTILE = '/opt/my env\'s "best" $HOME `id`/bin/python'
MISSING = {"type": "ModuleNotFoundError", "text": "No module named 'torch'", "module": "torch"}
BROKEN = {"type": "ImportError", "text": "libcudart.so.12: cannot open", "module": "torch"}
BUILT_WITHOUT = {
    "type": "ImportError",
    "text": "torch.distributed.is_available() is False: x",
    "module": "torch",
}


def every(python: str) -> dict[str, Finding]:
    """One finding of each kind."""
    return {
        "interpreter-not-python": findings.not_python(python, "it ended by exit code 2", "usage: ls"),
        "interpreter-too-old": findings.too_old(python, {"python": "3.9.1"}),
        "torch-missing": findings.import_failed(python, MISSING),
        "torch-import-failed": findings.import_failed(python, BROKEN),
        "torch-no-distributed": findings.import_failed(python, BUILT_WITHOUT),
        "torch-import-died": findings.import_died(python, "SIGSEGV", ""),
        "torch-import-hung": findings.import_hung(python, "torch", 20.4, True, "File x, line 1"),
        "fork-unsafe": run_findings.fork_unsafe(python, ["2 threads beside the main one: a, b"]),
        "node-folder-no-room": run_findings.no_room(python, "/dev/shm: No space left on device"),
        "zygote-died": run_findings.zygote_died(python, "SIGKILL", "last words"),
        "cpinfra-bug": run_findings.worker_bug(python, "Traceback"),
    }


@pytest.mark.parametrize("name", every("python"))
def test_each_way_to_fail_has_a_finding_of_its_own(name: str) -> None:
    """Blocking, with what was got, what was expected and what to do."""
    finding = every(HOSTILE)[name]

    assert finding.id == name
    assert finding.severity is Severity.BLOCKING
    assert all((finding.what, finding.got, finding.expected, finding.remedy))


@pytest.mark.parametrize("name", every("python"))
def test_the_command_can_be_pasted_whatever_the_path_is(name: str) -> None:
    """Quotes, spaces and dollars in the interpreter's path reach a shell as they are."""
    words = shlex.split(every(HOSTILE)[name].command)

    assert words[:2] == [HOSTILE, "-c"]
    assert len(words) == 3
    compile(words[2], "command", "exec")


def test_a_plain_path_is_shown_plainly() -> None:
    """No quotes where none are needed."""
    assert findings.too_old("/usr/bin/python3", {"python": "3.9.1"}).command.startswith(
        "/usr/bin/python3 -c "
    )


@pytest.mark.parametrize(
    ("error", "got"),
    [
        (FileNotFoundError(2, "No such file or directory"), "/x/python: No such file or directory"),
        (PermissionError(13, "Permission denied"), "/x/python: Permission denied"),
        (OSError("odd"), "/x/python: odd"),
    ],
)
def test_what_the_kernel_would_not_run_is_told_in_its_words(error: OSError, got: str) -> None:
    """The path and the reason."""
    finding = findings.not_executable("/x/python", error)

    assert (finding.id, finding.got) == ("interpreter-not-python", got)
    assert "--python" in finding.remedy


def test_foreign_output_is_quoted_by_its_end() -> None:
    """No control character of it reaches a terminal, and no flood of it the report."""
    finding = findings.not_python("p", "it ended by exit code 1", "\x1b[31mred" + "x" * 5000 + "\nthe end")

    assert finding.got.endswith(r"x\nthe end'")
    assert "\x1b" not in finding.got
    assert len(finding.got) < 700
    assert findings.import_died("p", "SIGSEGV", " \n").got == "SIGSEGV; its last output: nothing"


WARNING = (
    "/venv/torch/_subclasses/functional_tensor.py:368: UserWarning: Failed to initialize NumPy: No module "
    "named 'numpy' (Triggered internally at /torch/csrc/utils/tensor_numpy.cpp:84.)\n"
    '  cpu = _conversion_method_template(device=torch.device("cpu"))\n'
)


@pytest.mark.parametrize(
    ("output", "told"),
    [
        (WARNING, "nothing but warnings"),
        (WARNING.splitlines()[0], "nothing but warnings"),
        (f"{WARNING}terminate called\n{WARNING}what()\n", r"'terminate called\nwhat()'"),
        ("Traceback:\nRuntimeWarning: x\n", r"'Traceback:\nRuntimeWarning: x'"),
        ("", "nothing"),
    ],
)
def test_a_warning_at_import_is_no_last_word(output: str, told: str) -> None:
    """What Python warned of long before says nothing of who killed the process."""
    assert run_findings.zygote_died("p", "SIGKILL", output).got == f"SIGKILL; its last output: {told}"
    assert findings.import_died("p", "SIGSEGV", output).got == f"SIGSEGV; its last output: {told}"


def test_a_run_folder_that_filled_up_is_a_warning() -> None:
    """It changes no outcome, and lists each trouble."""
    finding = run_findings.logs_incomplete(["/a: No space left on device", "/b: Input/output error"], {28, 5})

    assert finding.severity is Severity.WARNING
    assert finding.got == "/a: No space left on device; /b: Input/output error"


@pytest.mark.parametrize(
    ("errnos", "remedy"),
    [
        ({errno.ENOSPC}, "free some space"),
        ({errno.ENOENT, errno.ENOSPC}, "leave the run folder alone while a run uses it"),
        ({errno.EROFS}, "make the run folder writable"),
        (set(), "see to what the error says"),
    ],
)
def test_the_remedy_for_a_run_folder_is_that_of_its_error(errnos: set[int], remedy: str) -> None:
    """Space does not bring back a folder that was removed; each names the option."""
    told = run_findings.logs_incomplete(["/a: x"], errnos).remedy

    assert told.startswith(remedy)
    assert "--run-dir" in told


def test_a_worker_for_which_there_is_no_room_names_the_folder() -> None:
    """An error of a write names no file."""
    error = OSError(errno.ENOSPC, "No space left on device")
    finding = findings.not_staged("python", Path("/full/run"), error)

    assert finding.got == "/full/run: No space left on device"
    assert "free some space" in finding.remedy


@pytest.mark.parametrize("name", ["interpreter-not-python", "torch-import-failed", "cpinfra-bug"])
def test_without_its_worker_no_interpreter_is_to_blame(name: str, tmp_path: Path) -> None:
    """Of a run folder that was removed or emptied that is told; of one that is whole what was found."""
    finding = every("python")[name]
    worker = tmp_path / "run" / "worker.zip"
    removed = findings.unless_gone(finding, worker)
    worker.parent.mkdir()
    emptied = findings.unless_gone(finding, worker)
    worker.touch()

    assert removed.id == emptied.id == "run-folder-gone"
    assert removed.got.startswith(f"{worker.parent}: the folder is not there any more")
    assert emptied.got.startswith(f"{worker.parent}: worker.zip is not there any more")
    assert finding.got in removed.got
    assert "--run-dir" in removed.remedy
    assert findings.unless_gone(finding, worker) is finding


@pytest.mark.parametrize("name", ["interpreter-too-old", "torch-missing", "zygote-died"])
def test_what_does_not_come_of_the_worker_is_told_without_it_too(name: str, tmp_path: Path) -> None:
    """An interpreter that answered for itself."""
    finding = every("python")[name]

    assert findings.unless_gone(finding, tmp_path / "worker.zip") is finding


def test_the_environment_is_the_callers_with_what_ranks_need() -> None:
    """Our values win over the user's, since a thread or a resolver's wait would spoil the proof."""
    base = {"PATH": "/bin", "OMP_NUM_THREADS": "16", "GLOO_SOCKET_IFNAME": "ib0", COOKIE_VARIABLE: "outer"}
    made = zygote_environment(base, "inner", gpu_uuids=())

    assert made["PATH"] == "/bin"
    assert HARDENING.items() <= made.items()
    assert made["GLOO_SOCKET_IFNAME"] == "lo"
    assert made[COOKIE_VARIABLE] == "inner"
    assert base["OMP_NUM_THREADS"] == "16"


def test_the_visible_gpus_are_fixed_in_rank_order() -> None:
    """By UUID, and none at all on the CPU: not what the caller's environment would show."""
    base = {"CUDA_VISIBLE_DEVICES": "0,1,2,3"}

    assert zygote_environment(base, "c", gpu_uuids=())["CUDA_VISIBLE_DEVICES"] == ""
    made = zygote_environment(base, "c", gpu_uuids=("GPU-b", "GPU-a"))
    assert made["CUDA_VISIBLE_DEVICES"] == "GPU-b,GPU-a"
    assert made["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"


def software(torch: str, hip: str | None = None) -> dict[str, object]:
    """The part of the worker's answer that the rules on torch read."""
    return {"torch": torch, "hip_build": hip, "cuda_build": None, "backends": {"gloo": True, "nccl": False}}


def of_torch(facts: dict[str, object], device: str = "cpu", backend: str = "gloo") -> list[Finding]:
    """The findings for a run on this device."""
    return findings.of_torch("python", facts, device=device, backend=backend)


@pytest.mark.parametrize("version", ["2.5.0", "2.13.0+cpu", "2.14.1+cu130", "3.0.0a1", "unknown"])
def test_allows_a_torch_that_is_new_enough(version: str) -> None:
    """2.5 and newer are expected to work; a version that cannot be read is not called old."""
    assert of_torch(software(version)) == []


@pytest.mark.parametrize("version", ["2.4.1+cu121", "1.13.1", "2.0"])
def test_an_old_torch_is_warned_of(version: str) -> None:
    """It still runs: what it passes it has passed."""
    (found,) = of_torch(software(version))

    assert (found.id, found.severity) == ("torch-untested", Severity.WARNING)
    assert found.got == f"torch {version}"
    assert found.expected == "torch 2.5 or newer"


def test_rocm_is_refused_in_one_sentence() -> None:
    """Both an old torch and ROCm are told at once."""
    rocm, old = of_torch(software("2.4.0+rocm6.1", "6.1.40091"))

    assert (rocm.id, rocm.severity) == ("rocm-unsupported", Severity.BLOCKING)
    assert rocm.got == "torch 2.4.0+rocm6.1, ROCm 6.1.40091"
    assert old.id == "torch-untested"


def test_a_torch_without_cuda_is_refused_on_gpus() -> None:
    """It would fall back to the CPU, or fail in words that blame somebody else."""
    (found,) = of_torch(software("2.13.0+cpu"), device="cuda", backend="nccl")

    assert (found.id, found.severity) == ("torch-cpu-only", Severity.BLOCKING)
    assert "--python" in found.remedy
    assert "--device cpu" in found.remedy


@pytest.mark.parametrize(("device", "backend"), [("cpu", "gloo"), ("cuda", "nccl")])
def test_a_torch_without_the_backend_is_refused(device: str, backend: str) -> None:
    """And the message names the backends that are there."""
    other = {"gloo": "nccl", "nccl": "gloo"}[backend]
    facts = {**software("2.13.0"), "cuda_build": "13.0", "backends": {backend: False, other: True}}

    (found,) = of_torch(facts, device=device, backend=backend)

    assert (found.id, found.severity) == ("backend-missing", Severity.BLOCKING)
    assert found.got == f"torch 2.13.0 with backends: {other}"
    assert found.expected == f"a torch whose torch.distributed has {backend}"
