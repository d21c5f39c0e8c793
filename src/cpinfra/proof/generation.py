"""What the supervisor knows of one generation: a state that messages and looks at the ledger change."""

from __future__ import annotations

from dataclasses import dataclass
from dataclasses import field
from pathlib import Path
from typing import Any

from ..worker.channel import Message
from ..worker.ledger import Ledger
from ..worker.signals import RANK_BUG_EXIT
from ..worker.spec import GenerationSpec
from .timeline import Track
from .timeline import from_ledger

Answer = dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Exit:
    """How and when a rank ended."""

    text: str
    at: float
    """CLOCK_MONOTONIC seconds at which the zygote collected it."""
    expected: bool
    """After it had reported and been released, with exit code 0."""


@dataclass(kw_only=True, slots=True)
class Generation:
    """One set of ranks forked together."""

    spec: GenerationSpec
    torch_path: str = ""
    """Folder of the torch that its ranks run."""
    folder: Path | None = None
    pids: tuple[int, ...] = ()
    ledger: Ledger | None = None
    answers: dict[str, dict[int, Answer]] = field(default_factory=dict)
    troubles: dict[int, Message] = field(default_factory=dict)
    exits: dict[int, Exit] = field(default_factory=dict)
    reported: set[int] = field(default_factory=set)
    released: bool = False
    judged: bool = False
    refused: Message | None = None
    """Why the zygote did not fork it."""

    @property
    def world(self) -> int:
        """How many ranks."""
        return self.spec.world

    @property
    def all_reported(self) -> bool:
        """Whether every rank has finished its checks."""
        return len(self.reported) == self.world

    @property
    def all_gone(self) -> bool:
        """Whether every rank has ended, or none was ever forked."""
        return self.refused is not None or (bool(self.pids) and len(self.exits) == self.world)

    @property
    def broken(self) -> bool:
        """Whether a rank died, said that its group can be used no more, or made other calls than the rest."""
        unexpected = any(not gone.expected for gone in self.exits.values())
        return unexpected or bool(self.troubles) or bool(self.broken_answers()) or bool(self.diverged)

    @property
    def diverged(self) -> str:
        """The first check by whose end ranks had not made the same calls; empty as long as there is none."""
        return next((check for check in self.answers if len(set(self.histories(check).values())) > 1), "")

    def histories(self, check: str) -> dict[int, str]:
        """Rank -> digest of all calls that it had made by the end of a check, of those that came to it."""
        answers = self.answers.get(check, {})
        return {rank: answer["calls"]["digest"] for rank, answer in answers.items() if not answer["broken"]}

    @property
    def news(self) -> tuple[int, ...]:
        """Changes whenever a rank has said or suffered something."""
        answered = sum(len(by_rank) for by_rank in self.answers.values())
        return answered, len(self.troubles), len(self.exits), len(self.reported)

    def broken_answers(self) -> list[Answer]:
        """Answers that end the generation: something was raised in the middle of a check."""
        return [
            answer for by_rank in self.answers.values() for answer in by_rank.values() if answer["broken"]
        ]

    @property
    def raised(self) -> frozenset[int]:
        """Ranks that left a check or a stage by an exception."""
        return frozenset([*self.troubles, *(int(answer["rank"]) for answer in self.broken_answers())])

    @property
    def raised_in_torch(self) -> frozenset[int]:
        """Ranks that left an operation or a stage of torch's by an exception."""
        troubled = [rank for rank, trouble in self.troubles.items() if trouble["kind"] == "door"]
        answered = [int(answer["rank"]) for answer in self.broken_answers() if answer["error"]["site"]]
        return frozenset([*troubled, *answered])

    def complete(self, check: str) -> bool:
        """Whether every rank has answered for a check, unharmed."""
        answers = self.answers.get(check, {})
        unharmed = not any(answer["broken"] for answer in answers.values())
        return len(answers) == self.world and unharmed and self.diverged != check

    def absorb(self, message: Message, now: float) -> None:
        """Take in one message of this generation."""
        event, rank = message["event"], message.get("rank", -1)
        if self.judged and event != "exited":
            return  # what ranks say once they are being ended is about their ending
        if event == "forked":
            self.pids = tuple(message["pids"])
            self.folder = Path(message["folder"])
            self.ledger = Ledger(self.folder / "ledger")
        elif event in ("no-room", "fork-unsafe", "cannot-fork"):
            self.refused = message
        elif event == "answer":
            self.answers.setdefault(message["check"], {})[rank] = message
        elif event == "trouble":
            self.troubles[rank] = message
        elif event == "reported":
            self.reported.add(rank)
        elif event == "exited":
            self._note_exit(message, now)

    def _note_exit(self, message: Message, now: float) -> None:
        ours = message["code"] == RANK_BUG_EXIT
        if ours and not self.judged:
            told = {
                "type": "an error of ours",
                "text": "its traceback is in the rank's log",
                "kind": "ours",
            }
            self.troubles.setdefault(message["rank"], {**message, **told})
        expected = ours or (self.released and message["code"] == 0)
        text = message["signal"] or f"exit code {message['code']}"
        at = message.get("at_s", now)  # by the zygote's clock, which is ours: it was not late to see it
        self.exits[message["rank"]] = Exit(text=text, at=at, expected=expected)

    def tracks(self) -> dict[int, Track]:
        """What every rank has recorded in the ledger."""
        if self.ledger is None:
            return {}
        return {rank: from_ledger(rank, self.ledger.view(rank)) for rank in range(self.world)}

    def calls_entered(self) -> dict[int, int]:
        """Rank -> how many operations it has entered."""
        return {rank: track.entered() for rank, track in self.tracks().items()}

    def close(self) -> None:
        """Unmap the ledger."""
        if self.ledger is not None:
            self.ledger.close()
            self.ledger = None
