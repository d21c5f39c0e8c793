"""What the worker says of its torch and NCCL, without touching CUDA."""

from __future__ import annotations

import ctypes
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from cpinfra.report.convert import software_from
from cpinfra.worker import children
from cpinfra.worker import software

SOURCES = Path(software.__file__).parents[2]
_GET_VERSION = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_int))


def nccl(number: int, status: int = 0) -> Any:
    """A library whose `ncclGetVersion` answers this."""

    def get_version(into: Any) -> int:
        into[0] = number
        return status

    return SimpleNamespace(ncclGetVersion=_GET_VERSION(get_version))


@pytest.fixture
def libraries(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str | None]]:
    """Puts libraries into the global scope and into torch's place; returns the names that are opened."""

    def _libraries(in_scope: Any, of_torch: Any) -> list[str | None]:
        opened: list[str | None] = []

        def load(name: str | None) -> Any:
            opened.append(name)
            found = in_scope if name is None else of_torch
            if found is None:
                raise OSError(f"{name}: cannot open shared object file")
            return found

        monkeypatch.setattr(ctypes, "CDLL", load)
        monkeypatch.setattr(software, "_object_of", lambda function: "/where/it/lies.so")
        return opened

    return _libraries


@pytest.mark.parametrize(
    ("number", "text"),
    [(22703, "2.27.3"), (23004, "2.30.4"), (20901, "2.9.1"), (30000, "3.0.0"), (21210, "2.12.10")],
)
def test_the_number_of_a_loaded_nccl_is_decoded(
    libraries: Callable[..., list[str | None]], number: int, text: str
) -> None:
    """As nccl.h packs it: major, two digits of minor, two of patch."""
    libraries(nccl(number), None)

    assert software._loaded_nccl() == (text, "/where/it/lies.so")


@pytest.mark.parametrize(
    ("packed", "text"),
    [(2 << 32 | 27 << 16 | 3, "2.27.3"), (2 << 32 | 30 << 16 | 104, "2.30.104"), ((2, 14, 3), "2.14.3")],
)
def test_the_number_of_the_compiled_nccl_is_decoded(packed: int | tuple[int, ...], text: str) -> None:
    """As torch packs it, which is not how NCCL does; older torch gives a tuple."""
    assert software._version(packed) == text


def test_what_is_in_the_global_scope_comes_before_torchs_own(
    libraries: Callable[..., list[str | None]],
) -> None:
    """A preloaded library is the one that torch calls."""
    opened = libraries(nccl(23004), nccl(22703))

    assert software._loaded_nccl()[0] == "2.30.4"
    assert opened == [None]


@pytest.mark.parametrize("in_scope", [SimpleNamespace(), nccl(23004, status=3)], ids=["absent", "fails"])
def test_torchs_own_is_asked_where_the_global_scope_has_none(
    libraries: Callable[..., list[str | None]], in_scope: Any
) -> None:
    """Or where that one does not answer."""
    opened = libraries(in_scope, nccl(22703))

    assert software._loaded_nccl()[0] == "2.27.3"
    assert opened == [None, str(Path(torch.__file__).parent / "lib" / "libtorch_cuda.so")]


def test_where_no_nccl_is_loaded_neither_version_nor_path_is_made_up(
    libraries: Callable[..., list[str | None]],
) -> None:
    """Neither in the global scope nor with torch."""
    libraries(SimpleNamespace(), None)

    assert software._loaded_nccl() == (None, None)


def test_a_function_is_traced_to_the_object_that_holds_it() -> None:
    """By the path from which it was mapped; what lies in no object has none."""
    libc = software._object_of(ctypes.CDLL(None).getpid)

    assert libc is not None
    assert Path(libc).is_file()
    assert libc in Path("/proc/self/maps").read_text()
    assert software._object_of(ctypes.c_void_p(8)) is None


IN_SCOPE = """
import ctypes, json, sys
ctypes.CDLL(sys.argv[1], ctypes.RTLD_GLOBAL)
from cpinfra.report.convert import software_from
from cpinfra.worker import children
from cpinfra.worker import software
print(json.dumps(software._loaded_nccl()))
"""


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_a_library_opened_before_torch_is_the_loaded_one(tmp_path: Path) -> None:
    """Version and path of what the symbol really resolves to, in a process of its own."""
    library = tmp_path / "libnccl with space.so"
    (tmp_path / "nccl.c").write_text("int ncclGetVersion(int *v) { *v = 23105; return 0; }\n")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, tmp_path / "nccl.c"], check=True, timeout=60)

    ended = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", IN_SCOPE, library],
        env={**os.environ, "PYTHONPATH": str(SOURCES)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout) == ["2.31.5", str(library)]


def test_nccl_is_told_as_compiled_and_as_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The two may differ, which is what a later rule is about."""
    monkeypatch.setattr(dist, "is_nccl_available", lambda: True)
    monkeypatch.setattr(torch._C, "_nccl_version", lambda: 2 << 32 | 27 << 16 | 3, raising=False)
    monkeypatch.setattr(software, "_loaded_nccl", lambda: ("2.30.4", "/mine/libnccl.so"))

    assert software._nccl() == {"compiled": "2.27.3", "loaded": "2.30.4", "path": "/mine/libnccl.so"}


def test_what_a_torch_with_nccl_was_compiled_against_may_be_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not taken from what is loaded."""
    monkeypatch.setattr(dist, "is_nccl_available", lambda: True)
    monkeypatch.delattr(torch._C, "_nccl_version", raising=False)
    monkeypatch.setattr(software, "_loaded_nccl", lambda: ("2.30.4", "/mine/libnccl.so"))

    told = software._nccl()

    assert told is not None
    assert told["compiled"] is None


def test_a_cpu_build_has_neither_nccl_nor_architectures(monkeypatch: pytest.MonkeyPatch) -> None:
    """All the other facts are there, as JSON; no library is looked into."""
    monkeypatch.setattr(dist, "is_nccl_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.delattr(torch._C, "_cuda_getArchFlags", raising=False)
    monkeypatch.setattr(software, "_loaded_nccl", lambda: pytest.fail("looked for NCCL"))

    told = software.describe()

    assert json.loads(json.dumps(told)) == told
    assert (told["cuda_build"], told["nccl"], told["arch_list"]) == (None, None, [])
    assert told["backends"] == {"gloo": dist.is_gloo_available(), "nccl": False}
    assert (told["python"], told["python_version"]) == (sys.executable, platform.python_version())
    assert (told["torch"], told["torch_path"]) == (torch.__version__, str(Path(torch.__file__).parent))
    assert [file["what"] for file in told["files"]] == ["torch"]


def test_architectures_are_asked_for_in_a_child(monkeypatch: pytest.MonkeyPatch) -> None:
    """The question initialises CUDA, which would spoil every later fork of this process."""
    asked: list[int] = []

    def flags() -> str:
        asked.append(os.getpid())
        return "sm_80 sm_90 compute_90"

    monkeypatch.setattr(torch._C, "_cuda_getArchFlags", flags, raising=False)

    assert software._arch_list() == ["sm_80", "sm_90", "compute_90"]
    assert asked == []


def test_architectures_that_could_not_be_asked_for_are_unknown_and_not_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A child that died has not said that there are none."""
    monkeypatch.setattr(torch._C, "_cuda_getArchFlags", lambda: os._exit(1), raising=False)

    assert software._arch_list() is None


# ------------------------------------------------------------------------------------- the driver


@pytest.fixture
def cuda_build(monkeypatch: pytest.MonkeyPatch) -> None:
    """A torch that was built for CUDA, as far as it says."""
    monkeypatch.setattr(torch.version, "cuda", "13.0")


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[str], Any]], None]:
    """Has the driver's library loaded by this function; all others stay as they are."""

    def _driver(load: Callable[[str], Any]) -> None:
        real = ctypes.CDLL

        def load_any(name: Any, *rest: Any, **options: Any) -> Any:
            return load(name) if name == "libcuda.so.1" else real(name, *rest, **options)

        monkeypatch.setattr(ctypes, "CDLL", load_any)

    return _driver


Driver = Callable[[Callable[[str], Any]], None]


def libcuda(number: int, status: int = 0) -> Any:
    """A driver's library whose `cuDriverGetVersion` answers this."""

    def get_version(into: Any) -> int:
        into[0] = number
        return status

    return SimpleNamespace(cuDriverGetVersion=_GET_VERSION(get_version))


@pytest.mark.parametrize(
    ("number", "text"), [(13000, "13.0"), (12040, "12.4"), (12080, "12.8"), (11080, "11.8"), (13020, "13.2")]
)
def test_the_number_of_the_drivers_cuda_is_decoded(
    driver: Driver, cuda_build: None, number: int, text: str
) -> None:
    """As cuda.h packs it: major times 1000, minor times 10."""
    driver(lambda _: libcuda(number))

    assert software._cuda_driver() == text


def no_library(name: str) -> Any:
    """As on a host without a driver."""
    raise OSError(f"{name}: cannot open shared object file")


@pytest.mark.parametrize("load", [no_library, lambda _: SimpleNamespace()], ids=["absent", "another-library"])
def test_without_a_driver_there_is_no_version_of_it(
    driver: Driver, cuda_build: None, load: Callable[[str], Any]
) -> None:
    """Neither where the library is absent nor where it is not the driver's."""
    driver(load)

    assert software._cuda_driver() is None


def test_a_driver_that_answers_with_an_error_is_unavailable(driver: Driver, cuda_build: None) -> None:
    """A stub library, which CUDA's toolkit brings, answers 34."""
    driver(lambda _: libcuda(0, status=34))

    assert software._cuda_driver() == {"unavailable": "cuDriverGetVersion answered error 34"}


def kill_own_process(_: str) -> Any:
    """As a library may whose kernel module is another."""
    os.kill(os.getpid(), signal.SIGKILL)


def wait_for_ever(_: str) -> Any:
    """As a driver may."""
    while True:
        signal.pause()


@pytest.mark.parametrize(("load", "how"), [(kill_own_process, "SIGKILL"), (wait_for_ever, "hung")])
def test_a_driver_that_dies_or_hangs_does_so_in_a_child(
    monkeypatch: pytest.MonkeyPatch, driver: Driver, cuda_build: None, load: Callable[[str], Any], how: str
) -> None:
    """Then it is unavailable and not absent."""
    driver(load)
    monkeypatch.setattr(software, "_DRIVER_S", 0.5)

    told = software._cuda_driver()

    assert told == {"unavailable": f"a child that asked libcuda.so.1 for its version ended: {how}"}


@pytest.mark.parametrize(("is_there", "text"), [(False, None), (True, "12.8")])
def test_a_cpu_build_asks_only_where_a_driver_is(
    monkeypatch: pytest.MonkeyPatch, driver: Driver, tmp_path: Path, is_there: bool, text: str | None
) -> None:
    """A fork costs it more than all the other questions; on a host with GPUs the answer names a remedy."""
    forks: list[float] = []
    real = children.ask

    def ask(works: Sequence[children.Work], bound_s: float) -> list[children.Ended]:
        forks.append(bound_s)
        return real(works, bound_s)

    monkeypatch.setattr(children, "ask", ask)
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setattr(software, "_DRIVER_DEVICES", (str(tmp_path / "none"), str(tmp_path / "nvidiactl")))
    driver(lambda _: libcuda(12080))
    if is_there:
        (tmp_path / "nvidiactl").touch()

    assert software._cuda_driver() == text
    assert len(forks) == int(is_there)


# -------------------------------------------------------------------------------------- the files


def test_files_are_known_by_size_and_time(tmp_path: Path) -> None:
    """torch's version file and the loaded NCCL, in ns as the file system has them."""
    library = tmp_path / "libnccl.so.2"
    library.write_bytes(b"12345")
    os.utime(library, ns=(1, 1_700_000_000_123_456_789))

    version, nccl_file = software._files({"compiled": "2.28.9", "loaded": "2.28.9", "path": str(library)})

    assert version["what"] == "torch"
    assert version["path"] == str(Path(torch.__file__).parent / "version.py")
    assert version["bytes"] == Path(version["path"]).stat().st_size
    assert nccl_file == {
        "what": "nccl",
        "path": str(library),
        "bytes": 5,
        "modified_ns": 1_700_000_000_123_456_789,
    }


@pytest.mark.parametrize("nccl_facts", [None, {"path": None}, {"path": "/nonexistent/libnccl.so.2"}])
def test_a_file_that_cannot_be_looked_at_is_left_out(nccl_facts: dict[str, Any] | None) -> None:
    """Nothing is made up for it."""
    assert [file["what"] for file in software._files(nccl_facts)] == ["torch"]


def test_what_the_worker_says_fits_the_report() -> None:
    """Its words are taken over as they are."""
    section = software_from(sys.executable, software.describe(), missing="not asked")

    assert isinstance(section.files, list)
    assert section.files[0].what == "torch"
