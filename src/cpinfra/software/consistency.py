"""Whether the torch that was found fits the GPUs, the driver and its own libraries.

Pure; standard library only. Each rule judges one thing and says True (fits), False (contradicted) or None
(could not be told); nothing that could not be told counts as a fit.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from ..outcome import Finding
from ..outcome import Severity
from . import architectures
from . import cuda_advice
from .architectures import Capability
from .architectures import Fit
from .evidence import Case
from .evidence import ask
from .evidence import dotted
from .evidence import these
from .evidence import unknown
from .evidence import version

Judgement = tuple[bool | None, list[Finding]]

_LEAST_DRIVER = {11: 450, 12: 525, 13: 580}
"""The oldest driver branch for a major version of CUDA: NVIDIA, CUDA Compatibility, table 1
(https://docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html)."""

_FIRST_WITH_MINOR_COMPATIBILITY = 11
"""The same page: from CUDA 11 on a build runs on any driver of its major version."""

_ANOTHER = "or name another interpreter with --python"


def judge(
    software: Mapping[str, Any],
    gpus: Sequence[Mapping[str, Any]],
    *,
    driver_version: str | None,
    kernels: Sequence[Mapping[str, Any]] | None,
    wanted_device: str,
) -> Judgement:
    """Whether everything fits, and what was found.

    Args:
        software: what the worker said of itself (`worker.software.describe`).
            `cuda_usable`, the answer of `worker.kernels.cuda_usable`, is judged where it is there.
        gpus: the GPUs, each with `index`, `uuid`, `name` and `compute_capability` as the report has them.
        driver_version: that of the NVIDIA driver; None where it is not known.
        kernels: answers of `worker.kernels.run_all`, each with the `uuid` of its GPU; None where no kernels
            were run.
        wanted_device: `cuda`, or `cpu`, to which the rules on CUDA do not apply.

    Returns:
        True only if each rule could be judged and none was contradicted; False if one was contradicted; else
        None. What contradicts and what could not be told is among the findings.
    """
    case = Case(
        software=software,
        gpus=gpus,
        driver_version=driver_version,
        kernels=kernels,
        wants_gpus=wanted_device != "cpu",
    )
    return _all_of(rule(case) for rule in _rules_for(case))


def _rules_for(case: Case) -> Sequence[Callable[[Case], Judgement]]:
    """The rules that apply: a build that is the wrong one altogether is not judged any further."""
    if case.text("hip_build") is not None:
        return (_rocm,)
    if case.software.get("cuda_build", "") is None and (case.wants_gpus or case.gpus):
        return (_cpu_only, _gloo)
    if not case.wants_gpus:
        return (_gloo,)
    return (_driver, _architectures, _nccl_backend, _nccl_versions, _gloo, _cuda_usable, _kernels)


def _all_of(judgements: Iterable[Judgement]) -> Judgement:
    answers: list[bool | None] = []
    found: list[Finding] = []
    for answer, findings in judgements:
        answers.append(answer)
        found += findings
    if False in answers:
        return False, found
    return (None if None in answers else True), found


# ------------------------------------------------------------------------------------- the build


def _rocm(case: Case) -> Judgement:
    """cpinfra knows CUDA and the CPU alone."""
    return False, [
        Finding(
            id="rocm-unsupported",
            severity=Severity.BLOCKING,
            what="this torch was built for ROCm, which cpinfra does not support",
            got=f"torch {case.text('torch')}, ROCm {case.text('hip_build')}",
            expected="a torch built for CUDA, or for the CPU alone",
            remedy="name an interpreter with such a torch: --python",
        )
    ]


def _cpu_only(case: Case) -> Judgement:
    """A build without CUDA leaves GPUs idle, and no message of torch says so."""
    finding = Finding(
        id="torch-cpu-only",
        severity=Severity.BLOCKING if case.wants_gpus else Severity.WARNING,
        what=f"this torch was built without CUDA, on a host with {these(case.gpus)}",
        got=f"torch {case.text('torch')}",
        expected="a torch built for CUDA",
        remedy=f"install {_build_for_driver(case)} there, {_ANOTHER}; to rehearse without GPUs: --rehearse",
        command=ask(case, "torch.version.cuda"),
    )
    return not case.wants_gpus, [finding]


def _build_for_driver(case: Case) -> str:
    """A build that this driver can run."""
    driver = version(case.text("cuda_driver"))
    return f"a torch built for CUDA {driver[0]}" if driver is not None else "a CUDA build of torch"


# ------------------------------------------------------------------------------------ the driver


def _driver(case: Case) -> Judgement:
    """The driver's CUDA must have the major version of torch's, or a newer one."""
    build = version(case.text("cuda_build"))
    driver = version(case.text("cuda_driver"))
    if build is None:
        return None, [
            unknown("cuda-build-unknown", "the CUDA version of this torch", case.text("cuda_build"))
        ]
    if driver is None:
        return _driver_by_branch(case, build)
    if build[0] > driver[0] or (build[0] < _FIRST_WITH_MINOR_COMPATIBILITY and build[:2] > driver[:2]):
        return False, [_driver_too_old(case, build)]
    return True, [_minor_newer(case)] if build[:2] > driver[:2] else []


def _driver_by_branch(case: Case, build: tuple[int, ...]) -> Judgement:
    """Where CUDA's own answer is missing, the driver's version decides, as far as it can."""
    least, branch = _LEAST_DRIVER.get(build[0]), version(case.driver_version)
    if least is None or branch is None:
        name = "the newest CUDA version that the driver supports"
        return None, [unknown("cuda-driver-unknown", name, case.software.get("cuda_driver"))]
    return (True, []) if branch[0] >= least else (False, [_driver_too_old(case, build)])


def _driver_too_old(case: Case, build: tuple[int, ...]) -> Finding:
    least = _LEAST_DRIVER.get(build[0])
    newer = f"update the driver to {least} or newer" if least is not None else "update the driver"
    return Finding(
        id="driver-too-old",
        severity=Severity.BLOCKING,
        what="this torch was built for a CUDA that the driver does not support; torch itself only warns "
        "and goes on without GPUs",
        got=f"torch for CUDA {case.text('cuda_build')}; driver {_driver_words(case)}",
        expected=f"a driver for CUDA {build[0]}, or a torch for a CUDA that the driver supports",
        remedy=f"{newer}, or install {_build_for_driver(case)}; on data-centre GPUs alone, where the driver "
        f"cannot be updated: the package cuda-compat-{build[0]}-{build[1]}, its folder on LD_LIBRARY_PATH",
        command="nvidia-smi",
    )


def _minor_newer(case: Case) -> Finding:
    return Finding(
        id="cuda-minor-newer",
        severity=Severity.INFO,
        what="this torch was built for a newer minor version of CUDA than the driver has, which is supported",
        got=f"torch for CUDA {case.text('cuda_build')}; driver {_driver_words(case)}",
        expected="the same major version",
        remedy="none is needed; kernels that are compiled at run time from PTX may need a newer driver",
    )


def _driver_words(case: Case) -> str:
    cuda = case.text("cuda_driver")
    known = [case.driver_version or "of unknown version", f"for CUDA {cuda}" if cuda is not None else ""]
    return ", ".join(filter(None, known))


# --------------------------------------------------------------------------------- architectures


def _architectures(case: Case) -> Judgement:
    """Each GPU must find code for itself in torch; kernels that ran right outrank the list."""
    entries = case.software.get("arch_list")
    if not case.gpus:
        return None, [unknown("gpus-unknown", "which GPUs this torch would run on", "no GPU")]
    if not isinstance(entries, list) or not entries:
        return _unless_all_ran(
            case, case.gpus, unknown("arch-list-unknown", "torch's architectures", entries)
        )
    by_capability: dict[Capability | None, list[Mapping[str, Any]]] = {}
    for gpu in case.gpus:
        by_capability.setdefault(architectures.capability(gpu.get("compute_capability")), []).append(gpu)
    return _all_of(_architecture(case, entries, key, gpus) for key, gpus in by_capability.items())


def _architecture(
    case: Case, entries: Sequence[str], capability: Capability | None, gpus: Sequence[Mapping[str, Any]]
) -> Judgement:
    """Judge all GPUs of one compute capability."""
    if capability is None:
        what = f"the compute capability of {these(gpus)}"
        told = gpus[0].get("compute_capability")
        return _unless_all_ran(case, gpus, unknown("capability-unknown", what, told))
    fit = architectures.fit(entries, capability)
    if fit is Fit.BINARY:
        return True, []
    if fit is Fit.PTX:
        return _from_ptx(case, gpus)
    if fit is Fit.UNKNOWN:
        finding = unknown("arch-list-unknown", f"whether this torch serves {these(gpus)}", " ".join(entries))
        return _unless_all_ran(case, gpus, finding)
    return _no_code(case, entries, capability, gpus)


def _unless_all_ran(case: Case, gpus: Sequence[Mapping[str, Any]], finding: Finding) -> Judgement:
    """What could not be told from lists is told by kernels that ran right."""
    return (True, []) if all(map(case.ran_right, gpus)) else (None, [finding])


def _from_ptx(case: Case, gpus: Sequence[Mapping[str, Any]]) -> Judgement:
    """The driver compiles PTX at first use, but not what a newer toolkit made.

    That is cudaErrorUnsupportedPtxVersion (222) of the CUDA runtime.
    """
    build, driver = version(case.text("cuda_build")), version(case.text("cuda_driver"))
    newer = build is not None and driver is not None and build[:2] > driver[:2]
    blocks = newer and not all(map(case.ran_right, gpus))
    remedy = "for a quick start install a torch with compiled code for these GPUs"
    finding = Finding(
        id="arch-ptx-too-new" if blocks else "arch-ptx-only",
        severity=Severity.BLOCKING if blocks else Severity.INFO,
        what=f"this torch has no compiled code for {these(gpus)}: the driver compiles it at first use"
        + (", which it cannot do for a newer CUDA than its own" if blocks else ""),
        got=f"torch for CUDA {case.text('cuda_build')}; driver {_driver_words(case)}",
        expected="compiled code, or a driver at least as new as torch's CUDA",
        remedy=f"update the driver, or install {_build_for_driver(case)}" if blocks else remedy,
    )
    return not blocks, [finding]


def _no_code(
    case: Case, entries: Sequence[str], capability: Capability, gpus: Sequence[Mapping[str, Any]]
) -> Judgement:
    ran = all(map(case.ran_right, gpus))
    finding = Finding(
        id="arch-missing",
        severity=Severity.WARNING if ran else Severity.BLOCKING,
        what=f"this torch lists no code for {these(gpus)}" + (", yet its kernels ran right" if ran else ""),
        got=f"{' '.join(entries)} (torch {case.text('torch')}); compute capability {dotted(capability)}",
        expected=architectures.wanted(capability),
        remedy=f"install {architectures.build_for(capability)}, {_ANOTHER}",
        command=ask(case, "torch.cuda.get_arch_list()"),
    )
    return ran, [finding]


# -------------------------------------------------------------------------------- NCCL and gloo


def _nccl_backend(case: Case) -> Judgement:
    """A CUDA build without NCCL cannot connect ranks on GPUs."""
    return _backend(case, "nccl", Severity.BLOCKING)


def _gloo(case: Case) -> Judgement:
    """Ranks on the CPU need gloo; those on GPUs do without."""
    answer, found = _backend(case, "gloo", Severity.WARNING if case.wants_gpus else Severity.BLOCKING)
    return (True if case.wants_gpus and answer is False else answer), found


def _backend(case: Case, backend: str, severity: Severity) -> Judgement:
    backends = case.software.get("backends")
    has = backends.get(backend) if isinstance(backends, Mapping) else None
    if has is True:
        return True, []
    if has is None:
        return None, [unknown("backends-unknown", f"whether this torch has {backend}", backends)]
    finding = Finding(
        id="backend-missing",
        severity=severity,
        what=f"this torch was built without {backend}",
        got=f"torch {case.text('torch')}",
        expected=f"a torch whose torch.distributed has {backend}",
        remedy=f"install another build of torch there, {_ANOTHER}",
        command=ask(case, f"torch.distributed.is_{backend}_available()"),
    )
    return False, [finding]


def _nccl_versions(case: Case) -> Judgement:
    """The library that is loaded should be the one that torch was compiled against."""
    backends = case.software.get("backends")
    if isinstance(backends, Mapping) and backends.get("nccl") is False:
        return True, []  # the rule on backends has said so
    nccl = case.software.get("nccl")
    facts = nccl if isinstance(nccl, Mapping) else {}
    compiled, loaded = version(facts.get("compiled")), version(facts.get("loaded"))
    if compiled is None or loaded is None:
        what = "the NCCL that torch was compiled against, or the one that is loaded"
        return None, [unknown("nccl-unknown", what, nccl)]
    if compiled == loaded:
        return True, []
    return (None if loaded[:2] < compiled[:2] else True), [
        _other_nccl(facts, older=loaded[:2] < compiled[:2])
    ]


def _other_nccl(nccl: Mapping[str, Any], *, older: bool) -> Finding:
    path = nccl.get("path")
    where = path if isinstance(path, str) else "an unknown file"
    trouble = ": functions that torch calls may be absent, which shows only at the call" if older else ""
    return Finding(
        id="nccl-older" if older else "nccl-differs",
        severity=Severity.WARNING,
        what=f"torch runs with {'an older' if older else 'another'} NCCL than it was compiled for{trouble}",
        got=f"compiled for {nccl['compiled']}, loaded {nccl['loaded']} from {where}",
        expected=f"NCCL {nccl['compiled']}" + (" or newer" if older else ""),
        remedy="if it is not wanted, take its folder off LD_LIBRARY_PATH and LD_PRELOAD; what is proven is "
        "proven with the loaded one alone, so programs must load the same",
        command="env | grep -E 'LD_LIBRARY_PATH|LD_PRELOAD'",
    )


# --------------------------------------------------------------------------------- what was tried


def _cuda_usable(case: Case) -> Judgement:
    """Torch's own opinion, with the warnings that it gave; without it the kernels decide."""
    told = case.software.get("cuda_usable")
    if not isinstance(told, Mapping) or told.get("usable") is True:
        return True, []
    words = (
        "; ".join([*told.get("warnings", ()), *filter(None, [told.get("error")])]) or "False, without a word"
    )
    if told.get("usable") is None:
        return None, [unknown("cuda-usable-unknown", "whether torch takes CUDA for usable", words)]
    finding = Finding(
        id="cuda-unusable",
        severity=Severity.BLOCKING,
        what="torch takes CUDA for unusable, and would go on without GPUs",
        got=words,
        expected="torch.cuda.is_available() is True, without a warning",
        remedy=cuda_advice.remedy(words),
        command=ask(case, "torch.cuda.is_available()"),
    )
    return False, [finding]


def _kernels(case: Case) -> Judgement:
    """Real kernels on each GPU, which decide where lists only promise."""
    if not case.kernels:
        return None, [unknown("kernels-unknown", "whether kernels run on these GPUs", "none were run")]
    by_error: dict[tuple[bool | None, str], list[str]] = {}
    for answer in case.kernels:
        if answer.get("right") is not True:
            right = False if answer.get("right") is False else None
            by_error.setdefault((right, str(answer.get("error"))), []).append(_which(answer))
    return _all_of(_failed(case, right, error, gpus) for (right, error), gpus in by_error.items())


def _which(answer: Mapping[str, Any]) -> str:
    return str(answer.get("uuid") or f"visible GPU {answer.get('index')}")


def _failed(case: Case, right: bool | None, error: str, gpus: Sequence[str]) -> Judgement:
    finding = Finding(
        id="kernels-wrong" if right is False else "kernels-unanswered",
        severity=Severity.BLOCKING,
        what=f"torch's kernels {'failed' if right is False else 'gave no answer'} on {len(gpus)} GPU(s)",
        got=f"{', '.join(gpus)}: {error}",
        expected="the right values of each kernel",
        remedy=cuda_advice.remedy(error),
        command=ask(case, "torch.ones(8, device='cuda').sum()"),
    )
    return right, [finding]
