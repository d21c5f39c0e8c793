"""Real kernels on each GPU, in a forked child for each, with every value compared.

What a list of architectures promises is settled by running. The parent touches no device: it forks, reads
a pipe and waits, so that it may fork ranks afterwards. Expected values come from plain Python integers,
never from torch, and stay exact in the type that is tried.
"""

from __future__ import annotations

import functools
import re
import time
import warnings
from collections.abc import Callable
from collections.abc import Sequence
from dataclasses import dataclass
from operator import mul
from typing import Any

import torch

from . import children
from .children import Say
from .signals import RANK_BUG_EXIT

_ELEMENTS = 4099
"""Prime: vectorised loads have a rest to deal with."""

_ELEMENTWISE_SPAN = {torch.float32: 4093, torch.bfloat16: 11, torch.float16: 41, torch.int64: 2**31 - 1}
"""Largest factor by type, so that a product and a small summand stay exact."""

_MATMUL_SHAPE = (64, 128, 40)
_MATMUL_SPAN = {torch.float32: 5, torch.bfloat16: 1, torch.float16: 3}
"""Likewise for 128 summed products, whatever type they are summed in."""

_OF_OTHERS = re.compile(r"out of memory|busy or unavailable", re.IGNORECASE)
"""What torch says of a GPU that somebody else uses: nothing is known of its kernels then."""

_SENT_BY_OTHERS = ("SIGKILL", "SIGTERM")
"""Signals that come from outside, such as from the out-of-memory killer."""

_TEXT_MAX = 4000


@dataclass(frozen=True, kw_only=True, slots=True)
class Kernel:
    """One computation whose values are known beforehand."""

    name: str
    run: Callable[[torch.device], torch.Tensor]
    expected: Sequence[int]
    """Flat, in row-major order."""


Spoil = Callable[[int, str, torch.Tensor], torch.Tensor]
"""A planted fault: gets the child's index, the kernel's name and its result; returns what to compare."""


def run_all(
    count: int, timeout_s: float, *, device: str = "cuda", spoil: Spoil | None = None
) -> list[dict[str, Any]]:
    """Run all kernels on each of the visible GPUs, each in a child of its own.

    Args:
        count: how many GPUs are visible to torch.
        timeout_s: bound of one child, with the creation of its context.
        device: `cuda`, or `cpu` to try the same on the CPU `count` times.
        spoil: a planted fault.

    Returns:
        For each, in the order of torch's indices: `index`; `right`: True where every value was right, False
        where one was wrong, torch raised or the child crashed, None where it could not be told (hung, no
        memory left, killed from outside, our own bug); `kernels`: the names of those that ran to their
        end; `error`: what was wrong, in torch's words where it has any; `seconds`; and where it gave no
        answer `stuck`: whether it hung.
    """
    kernels = catalogue()
    works = [functools.partial(_examine, index, device, kernels, spoil) for index in range(count)]
    return [_answer(index, ended) for index, ended in enumerate(children.ask(works, timeout_s))]


def run_all_and_ask(count: int, timeout_s: float) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """(Answers of `run_all`, answer of `cuda_usable`), all of them asked at the same time."""
    kernels = catalogue() if count else ()
    works = [functools.partial(_examine, index, "cuda", kernels, None) for index in range(count)]
    *ended, opinion = children.ask([*works, _look_for_cuda], timeout_s)
    return [_answer(index, end) for index, end in enumerate(ended)], _opinion(opinion)


def cuda_usable(timeout_s: float) -> dict[str, Any]:
    """Whether torch takes CUDA for usable, asked in a forked child: the question spoils every later fork.

    Returns:
        `usable`, `device_count` (both None where there was no answer), `warnings` (torch's, while it
        looked) and `error`, empty where it answered.
    """
    (ended,) = children.ask([_look_for_cuda], timeout_s)
    return _opinion(ended)


def _opinion(ended: children.Ended) -> dict[str, Any]:
    if ended.said and not ended.how:
        return {**ended.said[-1], "error": ""}
    return {"usable": None, "device_count": None, "warnings": [], "error": _no_answer(ended, "the question")}


def _look_for_cuda(say: Say) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        usable, count = torch.cuda.is_available(), torch.cuda.device_count()
    texts = [str(warning.message)[:_TEXT_MAX] for warning in caught]
    say({"usable": usable, "device_count": count, "warnings": texts})


def _examine(index: int, device: str, kernels: Sequence[Kernel], spoil: Spoil | None, say: Say) -> None:
    """In the child: run one kernel after the other, and say which before each."""
    started = time.monotonic()
    torch.set_num_threads(1)  # a child of a parent that has used OpenMP hangs with more
    ran: list[str] = []
    wrong: list[str] = []
    right: bool | None = True
    for kernel in kernels:
        say({"begun": kernel.name})
        try:
            values = _values(kernel, _take(device, index), index, spoil)
        except Exception as error:  # noqa: BLE001 - whatever torch raises is the answer
            text = f"{kernel.name}: {type(error).__name__}: {error}"
            wrong.append(text[:_TEXT_MAX])
            right = None if _OF_OTHERS.search(text) and right else False
            break  # an error of CUDA stays with the process
        ran.append(kernel.name)
        if difference := _difference(values, kernel.expected):
            wrong.append(f"{kernel.name}: {difference}")
            right = False
    seconds = time.monotonic() - started
    say({"right": right, "kernels": ran, "error": "; ".join(wrong), "seconds": seconds})


def _take(device: str, index: int) -> torch.device:
    """The device of this child, as torch's current one."""
    if device == "cpu":
        return torch.device("cpu")
    torch.cuda.set_device(index)
    return torch.device(device, index)


def _values(kernel: Kernel, device: torch.device, index: int, spoil: Spoil | None) -> list[int | float]:
    """What a kernel computed, copied back; the copy waits for it."""
    result = kernel.run(device)
    if spoil is not None:
        result = spoil(index, kernel.name, result)
    values: list[int | float] = result.detach().cpu().flatten().tolist()
    return values


def _difference(values: Sequence[int | float], expected: Sequence[int]) -> str:
    """Where values differ from what was expected, else empty. NaN differs from everything."""
    if len(values) != len(expected):
        return f"got {len(values)} values, expected {len(expected)}"
    wrong = [place for place, (got, right) in enumerate(zip(values, expected, strict=True)) if got != right]
    if not wrong:
        return ""
    first = wrong[0]
    count = f"{len(wrong)} of {len(expected)} values are wrong"
    return f"{count}, the first at {first}: got {values[first]:g}, expected {expected[first]}"


def _answer(index: int, ended: children.Ended) -> dict[str, Any]:
    last = ended.said[-1] if ended.said else {}
    if "right" in last and not ended.how:
        return {"index": index, **last}
    begun = [said["begun"] for said in ended.said if "begun" in said]
    where = begun[-1] if begun else "its start"
    return {
        "index": index,
        "right": False if _crashed(ended.how) else None,
        "kernels": begun[:-1],
        "error": _no_answer(ended, where),
        "seconds": ended.seconds,
        "stuck": ended.how in (children.HUNG, children.UNDYING),
    }


def _crashed(how: str) -> bool:
    """Whether a child that did not answer brought itself down."""
    return how.startswith("SIG") and how not in _SENT_BY_OTHERS


def _no_answer(ended: children.Ended, where: str) -> str:
    """What became of a child that did not answer, in words."""
    if ended.how == children.HUNG:
        return f"it hung in {where}, and was killed after {ended.seconds:.1f} s"
    if ended.how == children.UNDYING:
        return f"it did not die of SIGKILL after {where}: it is stuck in the driver"
    if ended.how == f"exit code {RANK_BUG_EXIT}":
        return f"cpinfra's own code failed in {where}; the traceback is in the log of the worker"
    return f"it died in {where}: {ended.how or 'it ended without an answer'}"


# ------------------------------------------------------------------------------------ the kernels


@functools.cache
def catalogue() -> tuple[Kernel, ...]:
    """All kernels with their expected values. Plain Python: nothing is computed on a device here."""
    return (
        *(_elementwise(dtype) for dtype in _ELEMENTWISE_SPAN),
        *(_matmul(dtype) for dtype in _MATMUL_SPAN),
        _reduction(),
        _index(),
        _autograd(),
    )


def _numbers(count: int, span: int, step: int) -> list[int]:
    """Integers from -span to span that do not repeat soon, others for each `step`."""
    return [(place * step + place * place % 97 + step // 3) % (2 * span + 1) - span for place in range(count)]


def _name(kind: str, dtype: torch.dtype) -> str:
    return f"{kind} {str(dtype).removeprefix('torch.')}"


def _elementwise(dtype: torch.dtype) -> Kernel:
    span = _ELEMENTWISE_SPAN[dtype]
    x, y, z = _numbers(_ELEMENTS, span, 7919), _numbers(_ELEMENTS, span, 104729), _numbers(_ELEMENTS, 99, 31)

    def run(device: torch.device) -> torch.Tensor:
        a, b, c = (torch.tensor(values, dtype=dtype).to(device) for values in (x, y, z))
        return a * b + c

    expected = [a * b + c for a, b, c in zip(x, y, z, strict=True)]
    return Kernel(name=_name("elementwise", dtype), run=run, expected=expected)


def _matmul(dtype: torch.dtype) -> Kernel:
    """A product of matrices, for which torch calls cuBLAS."""
    (rows, inner, columns), span = _MATMUL_SHAPE, _MATMUL_SPAN[dtype]
    x, y = _numbers(rows * inner, span, 7919), _numbers(inner * columns, span, 104729)

    def run(device: torch.device) -> torch.Tensor:
        a = torch.tensor(x, dtype=dtype).to(device).reshape(rows, inner)
        return a @ torch.tensor(y, dtype=dtype).to(device).reshape(inner, columns)

    left = [x[row * inner : (row + 1) * inner] for row in range(rows)]
    right = [y[column::columns] for column in range(columns)]
    expected = [sum(map(mul, row, column)) for row in left for column in right]
    return Kernel(name=_name("matmul", dtype), run=run, expected=expected)


def _reduction() -> Kernel:
    """Sums along one dim and maxima along the other."""
    rows, columns = 33, 1025
    x = _numbers(rows * columns, 1000, 7919)

    def run(device: torch.device) -> torch.Tensor:
        a = torch.tensor(x, dtype=torch.float32).to(device).reshape(rows, columns)
        return torch.cat([a.sum(dim=1), a.amax(dim=0)])

    sums = [sum(x[row * columns : (row + 1) * columns]) for row in range(rows)]
    return Kernel(
        name=_name("reduction", torch.float32),
        run=run,
        expected=[*sums, *(max(x[column::columns]) for column in range(columns))],
    )


def _index() -> Kernel:
    """Gather, scatter into a filled tensor, and a transposed copy."""
    order = [place * 977 % _ELEMENTS for place in range(_ELEMENTS)]  # a permutation: 4099 is prime
    x = _numbers(_ELEMENTS, 2**40, 2**33 + 17)
    rows, columns = 32, 64

    def run(device: torch.device) -> torch.Tensor:
        a, places = torch.tensor(x).to(device), torch.tensor(order).to(device)
        scattered = torch.full_like(a, -1).index_copy_(0, places, a)
        transposed = a[: rows * columns].reshape(rows, columns).t().contiguous()
        return torch.cat([a[places], scattered, transposed.flatten()])

    scattered = [0] * _ELEMENTS
    for place, value in zip(order, x, strict=True):
        scattered[place] = value
    transposed = [x[row * columns + column] for column in range(columns) for row in range(rows)]
    expected = [*(x[place] for place in order), *scattered, *transposed]
    return Kernel(name=_name("index and copy", torch.int64), run=run, expected=expected)


def _autograd() -> Kernel:
    """One step along the gradient of the sum of (x w) squared."""
    x, w = _numbers(_ELEMENTS, 3, 7919), _numbers(_ELEMENTS, 8, 104729)

    def run(device: torch.device) -> torch.Tensor:
        weight = torch.tensor(w, dtype=torch.float32).to(device).requires_grad_()
        loss = ((torch.tensor(x, dtype=torch.float32).to(device) * weight) ** 2).sum()
        (gradient,) = torch.autograd.grad(loss, [weight])
        return torch.cat([gradient, weight - gradient])

    gradient = [2 * a * a * b for a, b in zip(x, w, strict=True)]
    stepped = [b - slope for b, slope in zip(w, gradient, strict=True)]
    return Kernel(name=_name("autograd", torch.float32), run=run, expected=[*gradient, *stepped])
