"""Real kernels in forked children: right ones, and children that are wrong, die, hang or raise."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from cpinfra.worker import children
from cpinfra.worker import kernels

LONG_S = 60.0
SHORT_S = 1.0
NAMES = [kernel.name for kernel in kernels.catalogue()]


def one(act: Callable[[torch.Tensor], torch.Tensor], *, at: str, timeout_s: float = LONG_S) -> dict[str, Any]:
    """The answer of one child in which `act` is done to the result of one kernel."""
    (answer,) = kernels.run_all(
        1, timeout_s, device="cpu", spoil=lambda _, name, result: act(result) if name == at else result
    )
    return answer


def test_all_kernels_are_right_in_every_child() -> None:
    """Two children, in the order of their indices, each with all kernels."""
    answers = kernels.run_all(2, LONG_S, device="cpu")

    assert [(answer["index"], answer["right"], answer["error"]) for answer in answers] == [
        (0, True, ""),
        (1, True, ""),
    ]
    assert [answer["kernels"] for answer in answers] == [NAMES, NAMES]
    assert all(answer["seconds"] > 0 for answer in answers)


def test_what_is_tried_needs_the_gpus_own_code() -> None:
    """Elementwise, cuBLAS, a reduction, indices and autograd, in the types that models use."""
    kinds = {name.rsplit(" ", 1)[0] for name in NAMES}

    assert kinds == {"elementwise", "matmul", "reduction", "index and copy", "autograd"}
    assert {
        f"{kind} {dtype}"
        for kind in ("elementwise", "matmul")
        for dtype in ("float32", "bfloat16", "float16")
    } <= {*NAMES}
    assert "elementwise int64" in NAMES


LIMITS = {"bfloat16": 1 << 8, "float16": 1 << 11, "float32": 1 << 24, "int64": 1 << 63}


@pytest.mark.parametrize("kernel", kernels.catalogue(), ids=NAMES)
def test_expected_values_are_plain_numbers_that_the_type_holds(kernel: kernels.Kernel) -> None:
    """Exact in their type, and not all alike, or a kernel that does nothing would be right."""
    assert {type(value) for value in kernel.expected} == {int}
    assert max(map(abs, kernel.expected)) <= LIMITS[kernel.name.rsplit(" ", 1)[1]]
    assert len(set(kernel.expected)) > 5


def test_no_child_is_a_list_of_no_answers() -> None:
    """Where there is no GPU nothing is forked."""
    assert kernels.run_all(0, LONG_S, device="cpu") == []


def corrupt(result: torch.Tensor) -> torch.Tensor:
    """One value that is off by one."""
    spoilt = result.clone()
    spoilt.view(-1)[7] += 1
    return spoilt


@pytest.mark.parametrize("name", NAMES)
def test_one_corrupted_value_is_caught(name: str) -> None:
    """In each kernel, with its place; the other kernels still run."""
    answer = one(corrupt, at=name)

    assert answer["right"] is False
    assert answer["error"].startswith(f"{name}: 1 of ")
    assert "the first at 7: got " in answer["error"]
    assert answer["kernels"] == NAMES


def test_two_wrong_kernels_are_both_named() -> None:
    """Each with its own difference."""
    (answer,) = kernels.run_all(
        1,
        LONG_S,
        device="cpu",
        spoil=lambda _, name, result: corrupt(result) if "matmul f" in name else result,
    )

    assert [part.split(":")[0] for part in answer["error"].split("; ")] == [
        "matmul float32",
        "matmul float16",
    ]


@pytest.mark.parametrize(
    ("act", "words"),
    [
        (lambda result: torch.full_like(result, float("nan")), "got nan"),
        (lambda result: result[:3], "got 3 values, expected 4099"),
    ],
    ids=["nan", "too-few"],
)
def test_what_is_no_value_is_wrong(act: Callable[[torch.Tensor], torch.Tensor], words: str) -> None:
    """A result full of NaN, and one that is too short."""
    answer = one(act, at="elementwise float32")

    assert (answer["right"], words in answer["error"]) == (False, True)


def end_by(number: int) -> Callable[[torch.Tensor], torch.Tensor]:
    """End the child by a signal."""

    def act(result: torch.Tensor) -> torch.Tensor:
        signal.signal(number, signal.SIG_DFL) if number != signal.SIGKILL else None
        os.kill(os.getpid(), number)
        return result

    return act


@pytest.mark.parametrize(("number", "right"), [(signal.SIGABRT, False), (signal.SIGKILL, None)])
def test_a_child_that_dies_is_an_answer(number: signal.Signals, right: bool | None) -> None:
    """Its signal and the kernel are named; one that was killed from outside has told nothing of the GPU."""
    answer = one(end_by(number), at="reduction float32")

    assert answer["right"] is right
    assert answer["error"] == f"it died in reduction float32: {number.name}"
    assert answer["kernels"] == NAMES[: NAMES.index("reduction float32")]


def hang(result: torch.Tensor) -> torch.Tensor:
    """Never come back, and listen to no signal that can be ignored."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        signal.pause()


def test_a_child_that_hangs_is_killed_at_the_deadline() -> None:
    """That is no answer, neither right nor wrong; no process is left."""
    answer = one(hang, at="autograd float32", timeout_s=SHORT_S)

    assert answer["right"] is None
    assert answer["error"].startswith("it hung in autograd float32, and was killed after ")
    assert answer["seconds"] >= SHORT_S
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


def raising(error: Exception) -> Callable[[torch.Tensor], torch.Tensor]:
    """Raise this."""

    def act(result: torch.Tensor) -> torch.Tensor:
        raise error

    return act


NO_IMAGE = "CUDA error: no kernel image is available for execution on the device"
OOM = "CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 139.81 GiB"


@pytest.mark.parametrize(
    ("error", "right"),
    [
        (RuntimeError(NO_IMAGE), False),
        (torch.cuda.OutOfMemoryError(OOM), None),
        (RuntimeError("CUDA error: CUDA-capable device(s) is/are busy or unavailable"), None),
    ],
    ids=["no-image", "out-of-memory", "busy"],
)
def test_what_torch_raises_is_kept_in_its_words(error: Exception, right: bool | None) -> None:
    """No more kernels are run then; a GPU that others use has told nothing of itself."""
    answer = one(raising(error), at=NAMES[1])

    assert answer["right"] is right
    assert answer["error"] == f"{NAMES[1]}: {type(error).__name__}: {error}"
    assert answer["kernels"] == NAMES[:1]


def test_a_wrong_value_before_memory_runs_out_stays_wrong() -> None:
    """What is known to be wrong does not become unknown."""

    def act(_: int, name: str, result: torch.Tensor) -> torch.Tensor:
        if name == NAMES[1]:
            raise RuntimeError(OOM)
        return corrupt(result)

    (answer,) = kernels.run_all(1, LONG_S, device="cpu", spoil=act)

    assert answer["right"] is False


def test_each_child_has_its_own_fate() -> None:
    """Two that fail beside two that do not, each under its own index."""

    def act(index: int, name: str, result: torch.Tensor) -> torch.Tensor:
        if index == 1:
            return corrupt(result) if name == NAMES[0] else result
        return raising(RuntimeError(NO_IMAGE))(result) if index == 2 else result

    answers = kernels.run_all(4, LONG_S, device="cpu", spoil=act)

    assert [answer["right"] for answer in answers] == [True, False, False, True]
    assert NO_IMAGE in answers[2]["error"]


def test_our_own_bug_is_no_verdict_on_a_gpu(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """An exception past torch's part: nothing is known, and the traceback is in the log."""
    monkeypatch.setattr(kernels, "_difference", lambda values, expected: 1 / 0)

    (answer,) = kernels.run_all(1, LONG_S, device="cpu")

    assert answer["right"] is None
    assert "cpinfra's own code failed" in answer["error"]
    assert "ZeroDivisionError" in capfd.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a host on which torch has no CUDA")
def test_a_gpu_that_is_not_there_is_torchs_to_tell() -> None:
    """Asked for CUDA, the CPU is never taken instead."""
    (answer,) = kernels.run_all(1, LONG_S)

    assert answer["right"] is False
    assert answer["kernels"] == []
    assert answer["error"].startswith(f"{NAMES[0]}: ")


def test_handlers_of_ended_children_do_not_collect_ours() -> None:
    """A handler of SIGCHLD that reaps all children is held off meanwhile, in a process of one thread."""
    code = (
        "import os, signal\n"
        "from cpinfra.worker import kernels\n"
        "reaped = []\n"
        "def reap(*_):\n"
        "    try:\n"
        "        reaped.append(os.waitpid(-1, os.WNOHANG)[0])\n"
        "    except ChildProcessError:\n"
        "        pass\n"
        "signal.signal(signal.SIGCHLD, reap)\n"
        "answers = kernels.run_all(2, 60, device='cpu')\n"
        "assert [answer['right'] for answer in answers] == [True, True], answers\n"
        "assert reaped == [], reaped\n"
        "assert signal.SIGCHLD not in signal.pthread_sigmask(signal.SIG_BLOCK, [])\n"
    )
    sources = str(Path(kernels.__file__).parents[2])
    environment = {**os.environ, "PYTHONPATH": sources, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True, timeout=120)


def test_a_child_that_another_has_collected_is_not_killed_by_its_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The number may be another process's by then; how it ended is not known, and is said so."""
    killed: list[int] = []

    def gone(pid: int, options: int) -> tuple[int, int]:
        raise ChildProcessError

    monkeypatch.setattr(os, "waitpid", gone)
    monkeypatch.setattr(os, "kill", lambda pid, number: killed.append(pid))
    (ended,) = children.ask([lambda say: say({"x": 1})], LONG_S)
    monkeypatch.undo()
    os.waitpid(-1, 0)

    assert (ended.how, ended.said, killed) == (children.TAKEN, ({"x": 1},), [])


# --------------------------------------------------------------------------------------- children


def test_no_more_children_live_at_once_than_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    """With two at once the third is forked when one has ended; the answers keep their order."""
    monkeypatch.setattr(children, "AT_ONCE", 2)
    living: list[int] = []
    real_fork, real_end = children._fork, children._end

    def fork(number: int, work: children.Work) -> Any:
        living.append(number)
        assert len(living) <= 2
        return real_fork(number, work)

    def end(child: Any, how: str) -> children.Ended:
        living.remove(child.number)
        return real_end(child, how)

    monkeypatch.setattr(children, "_fork", fork)
    monkeypatch.setattr(children, "_end", end)

    def work(number: int) -> children.Work:
        return lambda say: say({"number": number})

    ended = children.ask([work(number) for number in range(5)], LONG_S)

    assert [end.said for end in ended] == [({"number": number},) for number in range(5)]


def test_an_answer_longer_than_a_pipe_arrives_whole() -> None:
    """The parent reads while the child writes."""
    (ended,) = children.ask([lambda say: say({"text": "x" * 300_000})], LONG_S)

    assert (ended.how, len(ended.said[0]["text"])) == ("", 300_000)


def test_a_child_that_speaks_without_end_is_cut_off() -> None:
    """It is no danger to the parent's memory."""

    def speak(say: children.Say) -> None:
        while True:
            say({"text": "x" * 100_000})

    (ended,) = children.ask([speak], LONG_S)

    assert ended.how == children.FLOODED
    assert len(ended.said) < 20


def test_a_line_that_was_cut_off_counts_as_not_said() -> None:
    """Half an object is none."""
    assert children._objects(b'{"a": 1}\n{"b"') == ({"a": 1},)
    assert children._objects(b"") == ()


def test_a_child_that_does_not_die_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one in the kernel's D state: it is an answer of its own, and counts as unknown."""
    collected: list[int | None] = []
    real = children._collected
    monkeypatch.setattr(children, "_collected", lambda pid: collected.append(real(pid)))

    answer = one(hang, at=NAMES[0], timeout_s=SHORT_S)

    assert collected == [signal.SIGKILL]
    assert (answer["right"], "did not die of SIGKILL" in answer["error"]) == (None, True)


def test_an_exit_code_is_told() -> None:
    """Of a child that ends by itself, in the middle of its work."""
    (ended,) = children.ask([lambda _: os._exit(3)], LONG_S)

    assert (ended.how, ended.said) == ("exit code 3", ())


def test_a_signal_without_a_name_has_its_number() -> None:
    """A real-time signal, which Python does not name."""
    assert children._how(signal.SIGRTMIN + 3) == f"SIG{signal.SIGRTMIN + 3}"
    assert children._how(signal.SIGSEGV) == "SIGSEGV"


# ------------------------------------------------------------------------------------ cuda_usable


def test_whether_cuda_is_usable_is_asked_in_a_child(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the warnings that come with it; this process has asked nothing."""
    asked: list[int] = []

    def is_available() -> bool:
        asked.append(os.getpid())
        warnings.warn("CUDA initialization: The NVIDIA driver on your system is too old", stacklevel=1)
        warnings.warn("and another one", stacklevel=1)
        return False

    monkeypatch.setattr(torch.cuda, "is_available", is_available)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)

    told = kernels.cuda_usable(LONG_S)

    assert told == {
        "usable": False,
        "device_count": 2,
        "warnings": ["CUDA initialization: The NVIDIA driver on your system is too old", "and another one"],
        "error": "",
    }
    assert asked == []


def wait_for_ever() -> bool:
    """As a driver may."""
    while True:
        signal.pause()


@pytest.mark.parametrize(
    ("question", "words"),
    [
        (wait_for_ever, "it hung in the question, and was killed after"),
        (lambda: os.kill(os.getpid(), signal.SIGKILL), "it died in the question: SIGKILL"),
    ],
    ids=["hangs", "dies"],
)
def test_where_cuda_does_not_answer_it_is_not_said_to_be_unusable(
    monkeypatch: pytest.MonkeyPatch, question: Callable[[], object], words: str
) -> None:
    """Unknown, with what happened."""
    monkeypatch.setattr(torch.cuda, "is_available", question)

    told = kernels.cuda_usable(SHORT_S)

    assert (told["usable"], told["device_count"], told["warnings"]) == (None, None, [])
    assert told["error"].startswith(words)


def test_without_a_gpu_only_the_opinion_is_asked() -> None:
    """No kernel is run, and torch says what it takes CUDA for."""
    answers, opinion = kernels.run_all_and_ask(0, 30)

    assert answers == []
    assert (opinion["usable"], opinion["device_count"], opinion["error"]) == (False, 0, "")
