"""What a generation of ranks is asked to do, as JSON that the supervisor sends and every rank reads.

Standard library only.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True, slots=True)
class GenerationSpec:
    """One generation: which ranks, over what, with which checks."""

    generation: int
    dp: int
    cp0: int
    cp1: int
    device: str
    """`cpu` or `cuda`."""
    backend: str
    """`gloo` or `nccl`."""
    gpu_uuids: tuple[str, ...]
    """The visible GPUs, in the order of `cuda:0`, `cuda:1`, ...; none on the CPU."""
    checks: tuple[str, ...]
    salt: int
    faults: tuple[str, ...]
    logs: str
    """Folder for the ranks' logs, in the run folder."""
    patience_s: float
    """How long a rank waits for the others, and the group's own time-out.

    Longer than any deadline of the supervisor, which is the one to judge. For the supervisor's word a rank
    waits without a clock: it dies with the zygote, and that with the supervisor.
    """

    @property
    def world(self) -> int:
        """How many ranks."""
        return self.dp * self.cp0 * self.cp1

    def as_json(self) -> dict[str, Any]:
        """Plain JSON."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> GenerationSpec:
        """The inverse of `as_json`; lists become tuples again."""
        fields: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in data.items()}
        return cls(**fields)

    def digest(self) -> bytes:
        """SHA-256 of what all ranks must agree on before they run: everything but faults and logs."""
        plan = {k: v for k, v in self.as_json().items() if k not in ("faults", "logs")}
        return hashlib.sha256(json.dumps(plan, sort_keys=True).encode()).digest()
