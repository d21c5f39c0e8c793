"""Does this torch fit these GPUs and this driver: each rule on both sides, on cases from the field."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cpinfra.hardware.gpus import Unavailable
from cpinfra.outcome import Finding
from cpinfra.outcome import Severity
from cpinfra.software import architectures
from cpinfra.software import consistency
from cpinfra.software import cuda_advice
from cpinfra.software.architectures import Fit

ARCHS = ["sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120"]
OLD_ARCHS = ["sm_50", "sm_60", "sm_70", "sm_75", "sm_80", "sm_86", "sm_90"]


def software(**changes: Any) -> dict[str, Any]:
    """What a sound CUDA build says of itself."""
    return {
        "python": "/envs/fold/bin/python",
        "torch": "2.13.0+cu130",
        "cuda_build": "13.0",
        "hip_build": None,
        "cuda_driver": "13.0",
        "arch_list": ARCHS,
        "nccl": {"compiled": "2.28.9", "loaded": "2.28.9", "path": "/envs/fold/nvidia/nccl/lib/libnccl.so.2"},
        "backends": {"gloo": True, "nccl": True},
        **changes,
    }


def gpus(*capabilities: Any, name: str = "NVIDIA H200") -> list[dict[str, Any]]:
    """GPUs of these compute capabilities."""
    return [
        {"index": index, "uuid": f"GPU-{index}", "name": name, "compute_capability": capability}
        for index, capability in enumerate(capabilities)
    ]


def ran(*rights: bool | None, error: str = "") -> list[dict[str, Any]]:
    """Answers of kernels, one for each GPU."""
    return [
        {
            "index": index,
            "uuid": f"GPU-{index}",
            "right": right,
            "kernels": [],
            "error": error,
            "seconds": 1.0,
        }
        for index, right in enumerate(rights)
    ]


def judge(
    facts: Mapping[str, Any],
    shown: Sequence[Mapping[str, Any]],
    *,
    kernels: Sequence[Mapping[str, Any]] | None = (),
    driver_version: str | None = "580.82.07",
    wanted_device: str = "cuda",
) -> tuple[bool | None, dict[str, Finding]]:
    """(Whether it fits, findings by id); kernels ran right on each GPU unless others are given."""
    answers = ran(*[True] * len(shown)) if kernels == () else kernels
    fits, found = consistency.judge(
        facts, shown, driver_version=driver_version, kernels=answers, wanted_device=wanted_device
    )
    assert len({finding.id for finding in found}) == len(found)
    return fits, {finding.id: finding for finding in found}


def test_what_fits_is_consistent_without_a_finding() -> None:
    """Eight GPUs, a driver of the same CUDA, kernels that ran right."""
    assert judge(software(), gpus(*["9.0"] * 8)) == (True, {})


# ------------------------------------------------------------------------------------- the build


def test_a_cpu_build_on_a_host_with_gpus_is_contradicted() -> None:
    """A solver that took the CPU build says nothing of it; the finding names GPUs and the driver's CUDA."""
    fits, found = judge(
        software(
            torch="2.13.0+cpu",
            cuda_build=None,
            arch_list=[],
            nccl=None,
            backends={"gloo": True, "nccl": False},
        ),
        gpus("9.0", "9.0"),
        kernels=None,
    )

    assert (fits, list(found)) == (False, ["torch-cpu-only"])
    finding = found["torch-cpu-only"]
    assert finding.severity is Severity.BLOCKING
    assert "2 GPU(s) (NVIDIA H200; GPU-0, GPU-1)" in finding.what
    assert "torch built for CUDA 13" in finding.remedy
    assert finding.command.startswith("/envs/fold/bin/python -c ")


CPU_BUILD: dict[str, Any] = {
    "torch": "2.13.0+cpu",
    "cuda_build": None,
    "cuda_driver": None,
    "arch_list": [],
    "nccl": None,
}


def test_a_cpu_build_on_a_host_without_gpus_is_consistent() -> None:
    """No rule on CUDA applies where the CPU is wanted, and none leaves a finding."""
    facts = software(**CPU_BUILD, backends={"gloo": True, "nccl": False})

    assert judge(facts, [], kernels=None, driver_version=None, wanted_device="cpu") == (True, {})


def test_a_cpu_build_that_leaves_gpus_idle_is_told_where_the_cpu_is_wanted() -> None:
    """It keeps nobody from rehearsing."""
    fits, found = judge(software(**CPU_BUILD), gpus("9.0"), kernels=None, wanted_device="cpu")

    assert (fits, list(found)) == (True, ["torch-cpu-only"])
    assert found["torch-cpu-only"].severity is Severity.WARNING


def test_a_cpu_build_where_gpus_are_wanted_and_none_is_shown_is_contradicted() -> None:
    """It could not use any."""
    assert judge(software(**CPU_BUILD), [], kernels=None)[0] is False


def test_a_build_whose_cuda_is_not_told_is_not_taken_for_a_cpu_build() -> None:
    """No answer is no None."""
    fits, found = judge(software(cuda_build={"unavailable": "not asked"}), gpus("9.0"))

    assert (fits, list(found)) == (None, ["cuda-build-unknown"])
    assert found["cuda-build-unknown"].got == "no answer"


def test_rocm_is_one_blocking_sentence() -> None:
    """Whatever else would be said of such a build."""
    facts = software(torch="2.13.0+rocm7.1", cuda_build=None, hip_build="7.1.5", nccl=None, backends=None)
    fits, found = judge(facts, gpus("9.0"), kernels=None)

    assert (fits, list(found)) == (False, ["rocm-unsupported"])
    assert found["rocm-unsupported"].severity is Severity.BLOCKING
    assert found["rocm-unsupported"].got == "torch 2.13.0+rocm7.1, ROCm 7.1.5"


def test_a_cuda_build_is_not_judged_by_cuda_where_the_cpu_is_wanted() -> None:
    """A rehearsal beside GPUs that do not fit."""
    assert judge(software(cuda_driver="11.4"), gpus("3.5"), kernels=None, wanted_device="cpu") == (True, {})


# ------------------------------------------------------------------------------------ the driver

DRIVERS = [
    ("13.0", "13.0", "580.82.07", True, None),
    ("12.8", "13.0", "580.82.07", True, None),  # an older build on a newer driver
    ("12.8", "12.4", "550.54.15", True, "cuda-minor-newer"),
    ("13.0", "12.4", "550.54.15", False, "driver-too-old"),  # the wheel for CUDA 13 that fell back to the CPU
    ("13.0", "12.8", "570.124.06", False, "driver-too-old"),
    ("12.1", "11.4", "470.57.02", False, "driver-too-old"),
    ("10.2", "10.1", "418.87.00", False, "driver-too-old"),  # before minor version compatibility
    ("10.2", "10.2", "440.33.01", True, None),
]


@pytest.mark.parametrize(("build", "driver", "version", "fits", "name"), DRIVERS)
def test_the_drivers_cuda_needs_the_major_version_of_torchs(
    build: str, driver: str, version: str, fits: bool, name: str | None
) -> None:
    """A newer minor version of the build is fine from CUDA 11 on, and said."""
    answer, found = judge(software(cuda_build=build, cuda_driver=driver), gpus("9.0"), driver_version=version)

    assert (answer, list(found)) == (fits, [name] if name is not None else [])
    for finding in found.values():
        assert finding.severity is (Severity.INFO if fits else Severity.BLOCKING)
        assert finding.got == f"torch for CUDA {build}; driver {version}, for CUDA {driver}"


def test_a_driver_too_old_has_three_remedies() -> None:
    """A newer driver, an older build, and the compat package where nothing else can be done."""
    remedy = judge(software(cuda_driver="12.4"), gpus("9.0"))[1]["driver-too-old"].remedy

    assert "update the driver to 580 or newer" in remedy
    assert "a torch built for CUDA 12" in remedy
    assert "cuda-compat-13-0" in remedy
    assert "data-centre GPUs alone" in remedy


@pytest.mark.parametrize(
    ("version", "fits", "name"),
    [
        ("580.82.07", True, None),
        ("570.124.06", False, "driver-too-old"),
        (None, None, "cuda-driver-unknown"),
        ("unknown", None, "cuda-driver-unknown"),
    ],
)
def test_where_cuda_does_not_tell_the_drivers_version_decides(
    version: str | None, fits: bool | None, name: str | None
) -> None:
    """By the least branch for a major version of CUDA; without either nothing is known."""
    told = {"unavailable": "a child that asked libcuda.so.1 for its version ended: hung"}
    answer, found = judge(software(cuda_driver=told), gpus("9.0"), driver_version=version)

    assert (answer, list(found)) == (fits, [name] if name is not None else [])
    if name == "cuda-driver-unknown":
        assert found[name].got == told["unavailable"]
        assert found[name].severity is Severity.WARNING


# --------------------------------------------------------------------------------- architectures

FITS = [
    (["sm_90"], "9.0", Fit.BINARY),
    (["sm_80"], "8.6", Fit.BINARY),  # an older minor version
    (["sm_86"], "8.0", Fit.NONE),  # never a newer one
    (["sm_80"], "8.9", Fit.BINARY),
    (["sm_80"], "9.0", Fit.NONE),  # never another major version
    (OLD_ARCHS, "12.0", Fit.NONE),  # an RTX 5090 with a wheel for CUDA 12.4
    ([*OLD_ARCHS, "compute_90"], "12.0", Fit.PTX),
    (["compute_90"], "9.0", Fit.PTX),
    (["compute_90"], "8.9", Fit.NONE),
    (["sm_80", "compute_80"], "8.6", Fit.BINARY),  # compiled code before PTX
    (["sm_90a"], "9.0", Fit.BINARY),
    (["sm_90a"], "9.1", Fit.NONE),
    (["compute_90a"], "10.0", Fit.NONE),
    (["sm_100a"], "10.3", Fit.NONE),
    (["sm_100"], "10.3", Fit.BINARY),
    (["sm_100f"], "10.0", Fit.BINARY),
    (["sm_100f"], "10.3", Fit.BINARY),
    (["sm_103f"], "10.0", Fit.NONE),
    (["sm_103f"], "10.3", Fit.BINARY),
    (["sm_100f"], "12.0", Fit.NONE),
    (["compute_100f"], "10.3", Fit.PTX),
    (["compute_100f"], "11.0", Fit.NONE),
    (["sm_110f"], "11.0", Fit.BINARY),
    (["sm_120f"], "12.1", Fit.BINARY),
    (["sm_121f"], "12.0", Fit.NONE),
    (["sm_100"], "12.0", Fit.NONE),
    (["sm_120"], "12.1", Fit.BINARY),
    (["sm_70"], "7.5", Fit.BINARY),
    (["sm_80"], "8.7", Fit.NONE),  # code for others does not run on a Tegra
    (["sm_87"], "8.9", Fit.NONE),  # nor the other way round
    (["sm_87"], "8.7", Fit.BINARY),
    (["compute_80"], "8.7", Fit.PTX),
    (["sm_100f"], "10.1", Fit.NONE),
    (["gfx942"], "9.0", Fit.UNKNOWN),
    (["gfx942", "sm_90"], "9.0", Fit.BINARY),
    ([], "9.0", Fit.NONE),
]


@pytest.mark.parametrize(("entries", "capability", "expected"), FITS)
def test_which_gpu_runs_which_code(entries: list[str], capability: str, expected: Fit) -> None:
    """By NVIDIA's rules of compatibility."""
    gpu = architectures.capability(capability)

    assert gpu is not None
    assert architectures.fit(entries, gpu) is expected


@given(major=st.integers(3, 30), minor=st.integers(0, 9), suffix=st.sampled_from(["", "a", "f"]))
def test_code_for_a_gpu_itself_runs_on_it(major: int, minor: int, suffix: str) -> None:
    """With any suffix, compiled or as PTX."""
    assert architectures.fit([f"sm_{major}{minor}{suffix}"], (major, minor)) is Fit.BINARY
    assert architectures.fit([f"compute_{major}{minor}{suffix}"], (major, minor)) is Fit.PTX


@given(st.lists(st.text(max_size=12), max_size=4), st.tuples(st.integers(0, 20), st.integers(0, 9)))
def test_no_list_of_texts_is_too_odd(entries: list[str], gpu: tuple[int, int]) -> None:
    """What cannot be read is unknown, not an error."""
    assert architectures.fit(entries, gpu) in Fit


@pytest.mark.parametrize("text", ["9", "9.0a", "", "sm_90", None, 9.0, {"unavailable": "NVML"}])
def test_what_is_no_compute_capability(text: object) -> None:
    """It is not guessed."""
    assert architectures.capability(text) is None


def test_a_gpu_without_code_is_contradicted_and_the_right_build_named() -> None:
    """All GPUs of one capability are one finding; is_available() would be true here."""
    facts = software(torch="2.5.1+cu124", cuda_build="12.4", arch_list=OLD_ARCHS)
    error = "elementwise float32: RuntimeError: CUDA error: no kernel image is available for execution"
    fits, found = judge(
        facts, gpus("12.0", "12.0", name="NVIDIA GeForce RTX 5090"), kernels=ran(False, False, error=error)
    )

    assert fits is False
    finding = found["arch-missing"]
    assert finding.severity is Severity.BLOCKING
    assert "2 GPU(s) (NVIDIA GeForce RTX 5090; GPU-0, GPU-1)" in finding.what
    assert finding.got == f"{' '.join(OLD_ARCHS)} (torch 2.5.1+cu124); compute capability 12.0"
    assert finding.expected == "sm_12Y with Y at most 0, or compute_XY with XY at most 120"
    assert "torch built for CUDA 12.8 or newer" in finding.remedy
    assert "get_arch_list" in finding.command


@pytest.mark.parametrize(
    ("capability", "words"),
    [("7.0", "CUDA 12.6 or older"), ("10.3", "CUDA 12.9 or newer"), ("13.5", "a newer torch")],
)
def test_the_build_that_is_named_depends_on_the_gpu(capability: str, words: str) -> None:
    """Old GPUs need an old build, and of what is not known yet nothing is invented."""
    remedy = judge(software(arch_list=["sm_90"]), gpus(capability), kernels=ran(False))[1][
        "arch-missing"
    ].remedy

    assert words in remedy


def test_kernels_that_ran_right_outrank_the_list() -> None:
    """What was measured is not contradicted by what was listed; it is still told."""
    fits, found = judge(software(arch_list=["sm_80"]), gpus("8.7"))

    assert (fits, list(found)) == (True, ["arch-missing"])
    assert found["arch-missing"].severity is Severity.WARNING
    assert "its kernels ran right" in found["arch-missing"].what


def test_one_gpu_that_fits_does_not_vouch_for_another() -> None:
    """Two models in one host: the finding is on the one that does not fit."""
    shown = [*gpus("9.0"), {"index": 1, "uuid": "GPU-1", "name": "Tesla P40", "compute_capability": "6.1"}]
    fits, found = judge(software(), shown, kernels=ran(True, False, error="no kernel image"))

    assert fits is False
    assert "Tesla P40; GPU-1" in found["arch-missing"].what
    assert "GPU-0" not in found["arch-missing"].what


@pytest.mark.parametrize(
    ("build", "kernels", "fits", "name", "severity"),
    [
        ("12.4", (None,), None, "arch-ptx-only", Severity.INFO),
        ("12.8", (None,), False, "arch-ptx-too-new", Severity.BLOCKING),
        ("12.8", (True,), True, "arch-ptx-only", Severity.INFO),
    ],
)
def test_ptx_serves_if_the_driver_is_no_older_than_its_toolkit(
    build: str, kernels: tuple[bool | None], fits: bool | None, name: str, severity: Severity
) -> None:
    """Unless kernels have run all the same."""
    facts = software(cuda_build=build, cuda_driver="12.4", arch_list=["sm_80", "compute_80"])
    answer, found = judge(facts, gpus("9.0"), kernels=ran(*kernels, error="no answer"))

    assert answer is fits
    assert found[name].severity is severity


@pytest.mark.parametrize(
    ("changes", "capability", "name"),
    [
        ({"arch_list": None}, "9.0", "arch-list-unknown"),
        ({"arch_list": {"unavailable": "the child died"}}, "9.0", "arch-list-unknown"),
        ({"arch_list": []}, "9.0", "arch-list-unknown"),
        ({"arch_list": ["sm_next"]}, "9.0", "arch-list-unknown"),
        ({}, {"unavailable": "NVML does not say"}, "capability-unknown"),
        ({}, Unavailable(why="NVML does not say"), "capability-unknown"),
    ],
)
def test_an_unknown_architecture_is_settled_by_kernels_alone(
    changes: dict[str, Any], capability: Any, name: str
) -> None:
    """Without them it stays unknown, and is never a fit."""
    assert judge(software(**changes), gpus(capability)) == (True, {})

    fits, found = judge(software(**changes), gpus(capability), kernels=None)

    assert fits is None
    assert set(found) == {name, "kernels-unknown"}
    assert name != "capability-unknown" or found[name].got == "NVML does not say"


def test_gpus_that_are_not_known_fit_nothing() -> None:
    """Where GPUs are wanted and the driver shows none."""
    fits, found = judge(software(), [], kernels=None)

    assert (fits, set(found)) == (None, {"gpus-unknown", "kernels-unknown"})


# ---------------------------------------------------------------------------------- NCCL and gloo


def nccl(compiled: Any, loaded: Any, path: Any = "/usr/lib/x86_64-linux-gnu/libnccl.so.2") -> dict[str, Any]:
    """NCCL as the worker tells it."""
    return {"compiled": compiled, "loaded": loaded, "path": path}


@pytest.mark.parametrize(
    ("compiled", "loaded", "fits", "name"),
    [
        ("2.28.9", "2.28.9", True, None),
        ("2.27.3", "2.30.4", True, "nccl-differs"),
        ("2.27.3", "2.27.5", True, "nccl-differs"),
        ("2.27.5", "2.27.3", True, "nccl-differs"),
        ("2.18.5", "2.8.4", None, "nccl-older"),  # the system's NCCL without ncclCommRegister
        ("3.0.0", "2.30.4", None, "nccl-older"),
        (None, "2.30.4", None, "nccl-unknown"),
        ("2.27.3", None, None, "nccl-unknown"),
    ],
)
def test_nccl_should_be_the_one_that_torch_was_compiled_for(
    compiled: Any, loaded: Any, fits: bool | None, name: str | None
) -> None:
    """Another one is told with both versions and its path; an older one may lack what torch calls."""
    answer, found = judge(software(nccl=nccl(compiled, loaded)), gpus("9.0"))

    assert (answer, list(found)) == (fits, [name] if name is not None else [])
    for finding in found.values():
        assert finding.severity is Severity.WARNING
    if name in ("nccl-differs", "nccl-older"):
        assert (
            found[name].got
            == f"compiled for {compiled}, loaded {loaded} from /usr/lib/x86_64-linux-gnu/libnccl.so.2"
        )


def test_the_file_of_another_nccl_may_be_unknown() -> None:
    """It is said, and no path made up."""
    found = judge(software(nccl=nccl("2.27.3", "2.30.4", None)), gpus("9.0"))[1]

    assert found["nccl-differs"].got.endswith("from an unknown file")


@pytest.mark.parametrize("told", [None, {"unavailable": "not asked"}])
def test_an_nccl_that_is_not_told_is_unknown(told: Any) -> None:
    """Where torch is said to have it."""
    assert judge(software(nccl=told), gpus("9.0"))[0] is None


def test_a_cuda_build_without_nccl_is_contradicted_once() -> None:
    """The rule on versions has nothing to add, as on a Tegra."""
    fits, found = judge(software(nccl=None, backends={"gloo": True, "nccl": False}), gpus("9.0"))

    assert (fits, list(found)) == (False, ["backend-missing"])
    assert found["backend-missing"].severity is Severity.BLOCKING
    assert "nccl" in found["backend-missing"].what


@pytest.mark.parametrize(
    ("wanted_device", "fits", "severity"),
    [("cpu", False, Severity.BLOCKING), ("cuda", True, Severity.WARNING)],
)
def test_gloo_is_needed_where_ranks_run_on_the_cpu(
    wanted_device: str, fits: bool, severity: Severity
) -> None:
    """On GPUs its absence is told."""
    facts = software(backends={"gloo": False, "nccl": True})
    answer, found = judge(facts, gpus("9.0"), wanted_device=wanted_device)

    assert (answer, found["backend-missing"].severity) == (fits, severity)
    assert "gloo" in found["backend-missing"].what


@pytest.mark.parametrize("backends", [None, {"unavailable": "no distributed"}, {}])
def test_backends_that_are_not_told_are_unknown(backends: Any) -> None:
    """On the CPU as well."""
    fits, found = judge(software(backends=backends), [], kernels=None, wanted_device="cpu")

    assert (fits, list(found)) == (None, ["backends-unknown"])


# ----------------------------------------------------------------------------------- what was tried


def test_wrong_kernels_are_blocking_with_uuid_and_words() -> None:
    """Two GPUs that fail alike are one finding, a third with another error has its own words."""
    answers = [
        *ran(False, True, False, error="matmul float16: 1 of 2560 values are wrong"),
        {"index": 3, "uuid": "GPU-3", "right": False, "error": "CUDA error: an illegal memory access"},
    ]
    fits, found = consistency.judge(
        software(), gpus(*["9.0"] * 4), driver_version=None, kernels=answers, wanted_device="cuda"
    )

    assert fits is False
    assert [(finding.id, finding.got) for finding in found] == [
        ("kernels-wrong", "GPU-0, GPU-2: matmul float16: 1 of 2560 values are wrong"),
        ("kernels-wrong", "GPU-3: CUDA error: an illegal memory access"),
    ]
    assert {finding.severity for finding in found} == {Severity.BLOCKING}


@pytest.mark.parametrize("right", [None, {"unavailable": "it hung"}])
def test_kernels_without_an_answer_are_no_fit_and_no_contradiction(right: Any) -> None:
    """They block, since nothing else shows that the GPU computes."""
    answers = [
        {"index": 0, "right": right, "error": "it hung in matmul float32, and was killed after 60.0 s"}
    ]
    fits, found = judge(software(), gpus("9.0"), kernels=answers)

    assert (fits, list(found)) == (None, ["kernels-unanswered"])
    assert found["kernels-unanswered"].severity is Severity.BLOCKING
    assert found["kernels-unanswered"].got.startswith("visible GPU 0: it hung")


def test_a_contradiction_outranks_what_is_unknown() -> None:
    """Both are told."""
    fits, found = judge(software(cuda_driver="12.4", nccl=nccl(None, None)), gpus("9.0"))

    assert (fits, set(found)) == (False, {"driver-too-old", "nccl-unknown"})


OLD_DRIVER = "CUDA initialization: The NVIDIA driver on your system is too old (found version 12040)"


@pytest.mark.parametrize(
    ("told", "fits", "name", "got"),
    [
        ({"usable": True, "device_count": 1, "warnings": [], "error": ""}, True, None, ""),
        (
            {"usable": False, "device_count": 0, "warnings": [OLD_DRIVER], "error": ""},
            False,
            "cuda-unusable",
            OLD_DRIVER,
        ),
        ({"usable": False, "warnings": [], "error": ""}, False, "cuda-unusable", "False, without a word"),
        ({"usable": None, "warnings": [], "error": "it hung"}, None, "cuda-usable-unknown", "it hung"),
    ],
)
def test_torchs_own_word_is_judged_where_it_was_asked_for(
    told: dict[str, Any], fits: bool | None, name: str | None, got: str
) -> None:
    """With the warnings that it gave, which a silent fall-back to the CPU leaves as the only trace."""
    answer, found = judge(software(cuda_usable=told), gpus("9.0"))

    assert (answer, list(found)) == (fits, [name] if name is not None else [])
    assert [finding.got for finding in found.values()] == ([got] if name is not None else [])


@pytest.mark.parametrize(
    ("words", "advice"),
    [
        ("CUDA error: no kernel image is available for execution on the device", "has code for this GPU"),
        ("Error 804: forward compatibility was attempted on non supported HW", "compat"),
        ("Error 802: system not yet initialized", "fabric"),
        ("Error 803: system has unsupported display driver / cuda driver combination", "reboot"),
        ("CUDA out of memory. Tried to allocate 20.00 MiB", "nvidia-smi"),
        ("RuntimeError: No CUDA GPUs are available", "CUDA_VISIBLE_DEVICES"),
        ("CUDA error: the provided PTX was compiled with an unsupported toolchain.", "update the driver"),
        ("CUDA unknown error - this may be due to an incorrectly set up environment", "Xid"),
        ("matmul float16: 1 of 2560 values are wrong", "leave it out"),
        ("it hung in matmul float32", "Xid"),
        ("something that nobody has seen", "Xid"),
    ],
)
def test_each_word_of_cuda_has_its_own_remedy(words: str, advice: str) -> None:
    """802, 803 and 804 are three different troubles."""
    assert advice in cuda_advice.remedy(words)
