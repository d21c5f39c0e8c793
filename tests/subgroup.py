"""A check of our own over a group of two inside four ranks, to be appended to the worker's."""

from __future__ import annotations

NAME = "collective.test_pairs"

PAIRS = '''

def _pairs_trials(space: TrialSpace) -> Sequence[Trial]:
    dtypes = ("int64", "float32", "float64", "int32", "int64")
    drafts = [Draft(dtype=dtype, shape=(67,), form="tensor", reduction="sum") for dtype in dtypes]
    return number(space, "collective.test_pairs", drafts, rounds=_ROUNDS)


@check(
    "collective.test_pairs",
    tier="smoke",
    claim="all_reduce along cp1 gives each row of the mesh its own sum.",
    trials=_pairs_trials,
    mesh="square",
    min_ranks=4,
    twins=("shifted", "bit-flip"),
)
def pairs(run: CheckRun, trial: Trial) -> None:
    """One all_reduce among the ranks of a row."""
    mesh = run.door.device_mesh((run.cp0, run.cp1), ("cp0", "cp1"))
    row = run.door.group(mesh, "cp1")
    contributions = Contributions.of(trial, sources=row.size)
    tensor = contributions.of_rank(row.rank).to(run.device)
    run.door.all_reduce(tensor, reduction=trial.reduction, group=row)
    run.compare(tensor, contributions.reduced(), what="the sum of the row")
'''
"""For `engine.altered_worker`, as `{"worker/checks/collective.py": PAIRS}`: five trials on 2 x 2 ranks."""
