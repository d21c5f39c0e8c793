"""NVML's answer, from a child process that may be killed: read strictly, or an explanation instead."""

from __future__ import annotations

import importlib.util
import json
import pkgutil
import re
import sys
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import child

_LOOK = "run nvidia-smi and see what it says"
_NO_LIBRARY = (
    "install the driver's library libnvidia-ml.so.1; in a container ask for the `utility` capability "
    "(NVIDIA_DRIVER_CAPABILITIES=compute,utility)"
)
_LOST_RULES = "in a container: its device rules were lost (systemd daemon-reload does that); start it again"


class NoAnswerError(Exception):
    """NVML could not be asked, or said no."""

    def __init__(self, state: str, reason: str, remedy: str = _LOOK) -> None:
        super().__init__(reason)
        self.state = state
        """`no-driver`, `no-library` (of the driver), `hung` or `error`."""
        self.reason = reason
        self.remedy = remedy


@dataclass(frozen=True, kw_only=True, slots=True)
class Seen:
    """One GPU as NVML shows it; None is what the driver does not support."""

    index: int
    """In PCI bus order."""
    uuid: str
    name: str
    bus_id: str | None
    """As sysfs writes it."""
    compute_capability: str | None
    """`major.minor`."""
    memory_total_mib: int | None
    memory_used_mib: int | None
    processes: int | None
    """How many compute processes."""
    mig: bool | None
    compute_mode: int | None

    @property
    def label(self) -> str:
        """What people call it."""
        return f"{self.uuid} ({self.name})"


@dataclass(frozen=True, kw_only=True, slots=True)
class Silent:
    """One GPU that is there and does not answer; None is what it did not say before."""

    index: int
    reason: str
    uuid: str | None = None
    name: str | None = None
    bus_id: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Machine:
    """All GPUs of the machine that NVML shows to us."""

    driver_version: str
    seen: tuple[Seen, ...]
    silent: tuple[Silent, ...]
    cuda_driver: str | None
    """Newest CUDA version that the driver supports; None where its library is not here."""


def machine(environment: Mapping[str, str], timeout_s: float, argv: Sequence[str] | None = None) -> Machine:
    """Ask NVML.

    Args:
        environment: handed to the child.
        timeout_s: how long the driver may take, in seconds.
        argv: a program that writes the document that nvml_child.py describes; ours by default.

    Raises:
        NoAnswerError: there is no driver, it hangs, or it gave no answer that can be read.
    """
    command = list(argv) if argv is not None else _command()
    return _read(child.ask(command, environment=environment, timeout_s=timeout_s), timeout_s)


def _command() -> list[str]:
    """Our child, isolated: no module of the user's folder or PYTHONPATH can take the place of another.

    It is handed over as text: in a zip it has no path of its own.

    Isolated mode also hides an nvidia-ml-py found through PYTHONPATH or the user's site folder, so the
    folder where this process would import it from is named.
    """
    spec = importlib.util.find_spec("pynvml")
    folders = [str(Path(spec.origin).parent)] if spec and spec.origin else []
    source = pkgutil.get_data(__package__, "nvml_child.py") or b""
    return [sys.executable, "-I", "-c", source.decode(), *folders]


def _read(answer: child.ChildAnswer, timeout_s: float) -> Machine:
    """Read what the child wrote, strictly.

    Raises:
        NoAnswerError: anything else than NVML's answer.
    """
    if answer.state == "hung":
        left = f"; process {answer.left_behind} does not even die" if answer.left_behind else ""
        reason = f"the NVIDIA driver did not answer within {timeout_s:g} s{left}"
        raise NoAnswerError("hung", reason, "look for Xid messages (dmesg); reset the GPU or reboot")
    if answer.state != "exited" or answer.returncode != 0:
        raise NoAnswerError("error", _how_it_failed(answer))
    try:
        document = json.loads(answer.stdout)
    except ValueError:
        raise _garbled(answer.stdout) from None
    if not isinstance(document, dict):
        raise _garbled(answer.stdout)
    if "error" in document:
        raise _nvml_failure(document["error"], answer.stdout)
    try:
        return _machine_from(document)
    except (KeyError, TypeError, ValueError):
        raise _garbled(answer.stdout) from None


def _how_it_failed(answer: child.ChildAnswer) -> str:
    if answer.state == "unstartable":
        return f"the process that asks NVML could not be started: {answer.reason}"
    if answer.state == "flooded":
        return "the process that asks NVML wrote far more than an answer"
    ended = f"ended by {answer.died_by}" if answer.died_by else f"exit status {answer.returncode}"
    words = answer.stderr.decode(errors="backslashreplace").strip().splitlines()
    return f"the process that asks NVML failed: {ended}" + (f": {words[-1][:300]}" if words else "")


def _garbled(stdout: bytes) -> NoAnswerError:
    got = stdout[:200].decode(errors="backslashreplace")
    reason = f"the process that asks NVML gave no answer that can be read: {got!r}"
    return NoAnswerError("error", reason)


def _nvml_failure(error: Any, stdout: bytes) -> NoAnswerError:
    if not isinstance(error, dict) or not isinstance(error.get("code"), str):
        return _garbled(stdout)
    code, text = error["code"], str(error.get("text", ""))
    state, remedy = _FAILURES.get(code, ("error", _LOOK))
    return NoAnswerError(state, f"NVML: {text} ({code})", remedy)


_FAILURES = {
    "NVML_ERROR_DRIVER_NOT_LOADED": ("no-driver", "load the NVIDIA driver"),
    "NVML_ERROR_LIBRARY_NOT_FOUND": ("no-library", _NO_LIBRARY),
    "NVML_ERROR_LIB_RM_VERSION_MISMATCH": ("error", "the driver was updated under a running system: reboot"),
    "NVML_ERROR_UNKNOWN": ("error", _LOST_RULES),
    "no-pynvml": ("error", f"install nvidia-ml-py for {sys.executable}"),
}


def _machine_from(document: Mapping[str, Any]) -> Machine:
    driver = _typed(document["driver_version"], str)
    entries = _typed(document["gpus"], list)
    seen = tuple(_seen_from(entry) for entry in entries if "error" not in entry)
    silent = tuple(_silent_from(entry) for entry in entries if "error" in entry)
    cuda_driver = _optional(document["cuda_driver"], str)
    return Machine(driver_version=driver, seen=seen, silent=silent, cuda_driver=cuda_driver)


def _silent_from(entry: Mapping[str, Any]) -> Silent:
    return Silent(
        index=_typed(entry["index"], int),
        reason=f"does not answer: {_typed(entry['error'], str)}",
        uuid=_optional(entry.get("uuid"), str),
        name=_optional(entry.get("name"), str),
        bus_id=sysfs_bus_id(_optional(entry.get("bus_id"), str)),
    )


def _seen_from(entry: Mapping[str, Any]) -> Seen:
    total, used = (_optional(entry[name], int) for name in ("memory_total_mib", "memory_used_mib"))
    return Seen(
        index=_typed(entry["index"], int),
        uuid=_typed(entry["uuid"], str),
        name=_typed(entry["name"], str),
        bus_id=sysfs_bus_id(_optional(entry["bus_id"], str)),
        compute_capability=_optional(entry["compute_capability"], str),
        memory_total_mib=total or None,  # a driver that cannot say may say 0
        memory_used_mib=used if total else None,
        processes=_optional(entry["processes"], int),
        mig=_optional(entry["mig"], bool),
        compute_mode=_optional(entry["compute_mode"], int),
    )


def sysfs_bus_id(text: str | None) -> str | None:
    """NVML's PCI address, `00000000:AF:00.0`, as sysfs writes it, `0000:af:00.0`; None if it is none."""
    parts = re.fullmatch(r"([0-9a-fA-F]{4,8}):([0-9a-fA-F]{2}):([0-9a-fA-F]{2})\.([0-7])", text or "")
    if not parts:
        return None
    domain, bus, device, function = (int(part, 16) for part in parts.groups())
    return f"{domain:04x}:{bus:02x}:{device:02x}.{function:x}"


def _typed(value: Any, kind: type) -> Any:
    if type(value) is not kind:
        raise TypeError(f"expected {kind.__name__}, got {value!r}")
    return value


def _optional(value: Any, kind: type) -> Any:
    return None if value is None else _typed(value, kind)
