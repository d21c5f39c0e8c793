"""Proofs and builds with the fake engine, on a machine whose GPUs are given."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

import fake_engine
from cpinfra import build
from cpinfra.build import BuildRequest
from cpinfra.build import ProveRequest
from cpinfra.hardware.gpus import BusyGpu
from cpinfra.hardware.gpus import Gpu
from cpinfra.hardware.gpus import GpuAnswer
from cpinfra.hardware.gpus import ShownGpu
from cpinfra.hardware.gpus import Unavailable
from cpinfra.judging.store import Answer
from cpinfra.mesh import UsageProblem
from cpinfra.planning import settle
from cpinfra.proof import environment
from cpinfra.proof.contract import ProofRequest

ABSENT = GpuAnswer(
    state="absent", reason="no NVIDIA driver and no NVIDIA GPU on the PCI bus", remedy="get one"
)
HIDDEN = GpuAnswer(state="hidden", reason="CUDA_VISIBLE_DEVICES='' hides every GPU", remedy="unset it")
NOT_LOADED = GpuAnswer(
    state="no-driver",
    reason="NVML: Driver Not Loaded; the PCI bus shows 2 NVIDIA GPU(s): 0000:17:00.0, 0000:65:00.0",
    remedy="load the driver (modprobe nvidia)",
)
LOST = GpuAnswer(
    state="none",
    reason="the NVIDIA driver is there and shows no GPU; the PCI bus shows 1 NVIDIA GPU(s): 0000:17:00.0",
    remedy="see dmesg",
)
BUSY = GpuAnswer(
    state="none",
    busy=(
        BusyGpu(index=0, label="GPU-0 (H200)", reason="it runs 1"),
        BusyGpu(index=1, label="GPU-1 (H200)", reason="it runs 2"),
    ),
    reason="none of 2 GPU(s) may be used: GPU-0 (H200): it runs 1; GPU-1 (H200): it runs 2",
    remedy="wait",
)
HUNG = GpuAnswer(state="hung", reason="the NVIDIA driver did not answer within 20 s", remedy="reboot")
BROKEN = GpuAnswer(state="error", reason="NVML: Unknown Error", remedy="start the container again")


def free(number: int) -> GpuAnswer:
    """So many usable GPUs."""
    unknown = Unavailable(why="w")
    gpus = tuple(
        Gpu(index=n, uuid=f"GPU-{n}", name="H200", memory_total_mib=143771, memory_used_mib=unknown)
        for n in range(number)
    )
    return GpuAnswer(
        state="gpus",
        gpus=gpus,
        driver_version="580.1",
        cuda_driver="13.0",
        shown=tuple(_shown(gpu) for gpu in gpus),
    )


def _shown(gpu: Gpu) -> ShownGpu:
    return ShownGpu(
        index=gpu.index,
        uuid=gpu.uuid,
        name=gpu.name,
        compute_capability="9.0",
        memory_total_mib=gpu.memory_total_mib,
        memory_used_mib=gpu.memory_used_mib,
        state="free",
        reasons=(),
        numa_node=Unavailable(why="w"),
        pci_bus_id=f"0000:{gpu.index:02x}:00.0",
        mig=False,
    )


class Told:
    """Remembers what the user was told."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.events: list[str] = []

    def announce(self, text: str) -> None:
        """A sentence."""
        self.lines.append(text)

    def engine_started(self) -> None:
        """Told among the events."""
        self.events.append("(started)")

    def event(self, event: dict[str, Any]) -> None:
        """An event."""
        self.events.append(event["event"])


class Bench:
    """Proves and builds with the fake engine, on a machine whose GPUs are given."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.told = Told()
        self.requests: list[ProofRequest] = []
        self.asked = 0
        """How often the driver was asked."""
        self._monkeypatch = monkeypatch
        for name in os.environ:
            if name.startswith(environment.TOLD_PREFIXES) or name in environment.HARDENING:
                monkeypatch.delenv(name)
        bench = self

        class Recorder(fake_engine.FakeEngine):
            def __enter__(self) -> fake_engine.FakeEngine:
                bench.requests.append(self.request)
                return super().__enter__()

        fake_engine.put_in(monkeypatch, engine=Recorder)

    @property
    def docs(self) -> Path:
        """Where builds put their documents."""
        return self.folder / "docs"

    def prove(self, gpus: GpuAnswer = ABSENT, engine: str = "pass", **options: Any) -> Answer:
        """Run `prove`."""
        return build.prove(ProveRequest(**self._prepared(gpus, engine, options)), self.told)

    def build(self, gpus: GpuAnswer = ABSENT, engine: str = "pass", **options: Any) -> Answer:
        """Run `build`."""
        options.setdefault("docs", str(self.docs))
        return build.build(BuildRequest(**self._prepared(gpus, engine, options)), self.told)

    def _prepared(self, gpus: GpuAnswer, engine: str, options: dict[str, Any]) -> dict[str, Any]:
        def ask(_environment: Any, _timeout_s: float, **_options: Any) -> GpuAnswer:
            self.asked += 1
            return gpus

        self._monkeypatch.setenv("FAKE_ENGINE", engine)
        self._monkeypatch.setattr(settle, "usable_gpus", ask)
        return {"run_dir": str(self.folder / "run"), "python": sys.executable, **options}

    def refused(self, gpus: GpuAnswer = ABSENT, command: str = "prove", **options: Any) -> tuple[str, ...]:
        """What a request is refused with; nothing may have been written or started."""
        with pytest.raises(UsageProblem) as caught:
            getattr(self, command)(gpus, **options)
        assert list(self.folder.iterdir()) == []
        assert self.requests == []
        assert self.told.lines == []
        return caught.value.messages
