"""The verdict over everything that was learnt, with what models require compared by `packaging`."""

from __future__ import annotations

from collections.abc import Sequence

from ..node import judge as node
from ..node.judge import UNFINISHED
from ..node.judge import Judged
from ..node.judge import results
from ..node.learnt import Learnt
from ..outcome import Finding
from ..planning.settle import Settled
from ..software import requirements

__all__ = ["UNFINISHED", "Judged", "judge", "results"]


def judge(settled: Settled, learnt: Learnt, more: Sequence[Finding] = ()) -> Judged:
    """Judge what was learnt; see `node.judge.judge`."""
    return node.judge(settled, learnt, more, of_model=requirements.findings)
