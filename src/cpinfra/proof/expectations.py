"""What must become of each twin: the table by which the self-test judges. Standard library only."""

from __future__ import annotations

from dataclasses import dataclass

from ..outcome import Outcome
from ..worker.injection import DATA_TWINS


@dataclass(frozen=True, kw_only=True, slots=True)
class Told:
    """What must be told of a fault, or what was."""

    outcome: str | None
    """Of the check on which it was planted; None outside of any."""
    kind: str | None
    """Of the hang, or `slow`; None for neither."""
    ranks: tuple[int, ...]
    """Those that are named."""
    text: str
    """The same in words, and all that is beyond it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Expectation:
    """What must be said of one twin."""

    outcome: Outcome
    """Of the check on which it was planted."""
    hang: str | None = None
    """The kind of hang that must be told, of the twin's rank and of no other; None: none may be told."""
    slow: bool = False
    """Whether the twin's rank must be told as slow."""
    names_rank: bool = False
    """Whether the twin's rank, and no other, must be named among those that raised in the check."""

    @property
    def kind(self) -> str | None:
        """Of the hang that must be told, or `slow`; None: neither may be."""
        return self.hang or ("slow" if self.slow else None)

    def told(self, rank: int | None, check: str | None) -> Told:
        """The same of one planted fault.

        Args:
            rank: that of the twin; None for a data twin.
            check: on which it was planted; None: outside of any.
        """
        return Told(
            outcome=self.outcome.value if check is not None else None,
            kind=self.kind,
            ranks=() if rank is None else (rank,),
            text=self._text(rank, check),
        )

    def _text(self, rank: int | None, check: str | None) -> str:
        outcome = f"{check or 'every check'} {self.outcome.value}"
        hang = f"{self.hang} of rank {rank}" if self.hang else "no hang"
        slow = [f"rank {rank} slow"] if self.slow else []
        named = [f"rank {rank} named in the reason"] if self.names_rank else []
        return ", ".join([hang, *slow, outcome, *named])


def _hang(kind: str, outcome: Outcome = Outcome.FAIL) -> Expectation:
    return Expectation(outcome=outcome, hang=kind)


_CONTROL = {
    "skip": _hang("never-entered"),
    "swap-order": _hang("mismatched-operation"),
    "wrong-shape": _hang("mismatched-shape"),
    "wrong-dtype": _hang("mismatched-dtype"),
    "delay": Expectation(outcome=Outcome.PASS, slow=True),
    "raise": Expectation(outcome=Outcome.FAIL, names_rank=True),
    "exit": _hang("process-died"),
    "kill": _hang("process-died"),
    "stop": _hang("process-stopped"),
    "stall-inside": _hang("stuck-inside-backend"),
    # Outside of the checks: these run in a generation without the fault, or have run before it acts.
    "never-join": _hang("never-joined", Outcome.PASS),
    "stall-init": _hang("stuck-in-init", Outcome.PASS),
    "stall-teardown": _hang("stuck-in-teardown", Outcome.PASS),
}

EXPECTED = {**dict.fromkeys(DATA_TWINS, Expectation(outcome=Outcome.FAIL)), **_CONTROL}
"""By twin."""
