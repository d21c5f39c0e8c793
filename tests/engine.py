"""Runs the engine for tests: real ranks on gloo, through the supervisor itself."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import cpinfra
from cpinfra.proof import catalogue
from cpinfra.proof import delivery
from cpinfra.proof import run_folder
from cpinfra.proof.catalogue import CheckInfo
from cpinfra.proof.contract import Proof
from cpinfra.proof.contract import ProofRequest
from cpinfra.proof.engine import Engine
from cpinfra.proof.supervisor import Supervisor

PACKAGE = Path(cpinfra.__file__).parent


@dataclass(frozen=True, kw_only=True)
class Ran:
    """A proof, and the events by which it was told."""

    proof: Proof
    events: list[dict[str, Any]]
    folder: Path

    def outcomes(self) -> dict[str, str]:
        """Outcome by check."""
        return {name: result.outcome.value for name, result in self.proof.results.items()}

    def named(self, event: str) -> list[dict[str, Any]]:
        """The events of one name."""
        return [told for told in self.events if told["event"] == event]


def prove(
    folder: Path,
    *,
    only: str = "*",
    faults: Sequence[str] = (),
    python: str = sys.executable,
    mesh: tuple[int, int, int] = (1, 2, 2),
    budget_s: float | None = None,
    on_event: Any = None,
    late: Sequence[str] = (),
    leave_s: float | None = None,
    gpu_uuids: tuple[str, ...] = (),
) -> Ran:
    """Run the checks that match `only` over `mesh` (dp, cp0, cp1); `late` replaces what DTensor needs.

    `leave_s` replaces how long ranks may take to leave; kernels are tried on `gpu_uuids`, if there are any.
    """
    events: list[dict[str, Any]] = []

    def take(event: dict[str, Any]) -> None:
        events.append(event)
        if on_event is not None:
            on_event(event)

    found = (info for info in catalogue.catalogue() if fnmatch(info.id, only))
    checks = tuple(replace(info, needs=tuple(late)) if info.needs and late else info for info in found)
    dp, cp0, cp1 = mesh
    request = ProofRequest(
        run="main",
        python=python,
        dp=dp,
        cp0=cp0,
        cp1=cp1,
        device="cpu",
        gpu_uuids=gpu_uuids,
        kernels=bool(gpu_uuids),
        checks=checks,
        faults=tuple(faults),
        budget_s=budget_s,
    )
    home = run_folder.create(folder, os.environ)
    try:
        whole = Engine(request, home, take)
        if leave_s is not None:
            whole.budgets = replace(whole.budgets, leave_s=leave_s)
        with whole:
            proof = Supervisor(whole, request).run()
    finally:
        home.close()
    return Ran(proof=proof, events=events, folder=folder)


class Bench:
    """One zygote on which proofs are run one after the other."""

    def __init__(self, folder: Path, *, mesh: tuple[int, int, int]) -> None:
        self.events: list[dict[str, Any]] = []
        self._home = run_folder.create(folder, os.environ)
        dp, cp0, cp1 = mesh
        self._request = ProofRequest(
            run="main",
            python=sys.executable,
            dp=dp,
            cp0=cp0,
            cp1=cp1,
            device="cpu",
            gpu_uuids=(),
            checks=catalogue.catalogue(),
        )
        self._engine = Engine(self._request, self._home, self.events.append)

    def __enter__(self) -> Bench:
        self._engine.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        try:
            self._engine.__exit__(*error)
        finally:
            self._home.close()

    def prove(self, check: str, *faults: str) -> Proof:
        """Run one check with these faults; one that the catalogue does not know is the worker's own."""
        known = {info.id: info for info in catalogue.catalogue()}
        info = known.get(check) or CheckInfo(id=check, tier="smoke", claim="", min_ranks=2, file="")
        request = replace(self._request, checks=(info,), faults=faults)
        return Supervisor(self._engine, request).run()


def altered_worker(monkeypatch: Any, folder: Path, changes: dict[str, str]) -> None:
    """Have the engine stage a worker whose files were changed: path in the package -> text appended to it."""
    source = folder / "cpinfra"
    shutil.copytree(PACKAGE, source, ignore=shutil.ignore_patterns("__pycache__", "_shipped"))
    for name, text in changes.items():
        with (source / name).open("a") as file:
            file.write(text)
    monkeypatch.setattr(delivery, "stage", lambda run: delivery.build_zip(source, run))
