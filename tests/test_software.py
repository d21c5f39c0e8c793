"""What the worker says of its torch and NCCL, without touching CUDA."""

from __future__ import annotations

import ctypes
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

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
