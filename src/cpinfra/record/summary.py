"""The whole of a report in less than 40 lines of plain text. Pure.

Each section shows its first entry, whatever the report: where there is much to tell, every section gets fewer
lines, and what is left out is counted.
"""

from __future__ import annotations

import re
import textwrap
from collections import Counter
from collections.abc import Iterator
from collections.abc import Sequence
from dataclasses import dataclass

from .. import report
from ..text import lines
from ..text import one_line
from ..text import ranks_text
from . import words

COLUMNS = 100
LINES = 39
_LIMIT = 280
_LINES_OF_ONE = 3
"""Lines that the sentence of an entry may take, and its command."""
_LEAST_LINES = 3
"""Of a section, below its title: its first entry cut to two lines, and how many there are besides."""
_KIND_LIMIT = 60
_WHERE_LIMIT = 93
"""Of a hang: so that neither is broken, and both have room in one entry."""
_NO_TEXT = "(no text)"
_NO_ROOM = "    (its command is too long for here: see the report)"
_WORDS = re.compile(r"""(?:[^\s'"]|'[^']*'|"[^"]*"|['"])+""")
"""Of a command, with what is quoted in one piece."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Section:
    """A title, and what stands below it."""

    title: str
    entries: Sequence[Sequence[str]]
    """Each a sentence, and perhaps a command."""
    most_lines: int
    """How many there may be below the title."""
    least_lines: int = _LEAST_LINES
    """How few, where there is no room."""


def summary(made: report.Report) -> str:
    """Less than 40 lines of at most 100 columns, with a final newline."""
    head, sections = list(_head(made)), _sections(made)
    found = [*head, *_shown(sections, fewer=0)]
    fewer = 0
    while len(found) > LINES:
        fewer += 1  # ends: by the least of all of them there is room
        found = [*head, *_shown(sections, fewer=fewer)]
    return "".join(f"{line}\n" for line in found or ["This report holds nothing that is shown here."])


def _sections(made: report.Report) -> list[_Section]:
    """All that may stand below the head."""
    unpassed = [[_unpassed(one)] for one in words.alike(made.checks or ())]
    hang = [[one] for one in _hang(made.hang)]
    title = words.hang_title(made.hang) if made.hang is not None else ""
    blocking = [_blocking(one) for one in _blockers(made)]
    steps = [[one.why, one.command] for one in made.next or ()]
    return [
        _Section(title="Not right", entries=[[one] for one in _not_right(made)], most_lines=12),
        _Section(title="Not passed", entries=unpassed, most_lines=6),
        _Section(title=title, entries=hang, most_lines=8, least_lines=4),
        _Section(title="Blocking", entries=blocking, most_lines=7),
        _Section(title="Needed from you for a SLURM job", entries=_questions(made), most_lines=3),
        _Section(title="Next", entries=steps, most_lines=6),
    ]


def _shown(sections: Sequence[_Section], *, fewer: int) -> Iterator[str]:
    """The sections, each with so many lines fewer than it may have at most."""
    for one in sections:
        yield from _section(one.title, one.entries, most_lines=max(one.least_lines, one.most_lines - fewer))


def _head(made: report.Report) -> Iterator[str]:
    """Of each section that was made what it comes to."""
    if words.made_by(made) == "selftest":
        yield from _broken(f"Self-test: {words.selftest(made)}", "", "  ")
        not_reached = words.not_reached(made)
        if not_reached:
            yield from _broken(f"Not reached: {not_reached}", "", "  ")
    if made.verdict is not None:
        scope = f", scope {made.scope}" if made.scope is not None else ""
        yield _cut(f"Verdict: {made.verdict}{scope}")
        yield _cut(f"  {words.meaning(made.verdict)}")
    left_out = words.left_out(made)
    if left_out:
        yield from _broken(f"Left out: {left_out}", "", "  ")
    if made.host is not None or made.hardware is not None:
        yield _cut(f"Machine: {_machine(made)}")
    if made.software is not None:
        yield from map(_cut, _software(made.software))
    if made.plan is not None:
        yield _cut(f"Free GPUs: {_said(made.plan.gpus_free)}{_chosen(made.plan)}")
    for run in made.runs[:2]:
        ranks = f"{words.mesh(run.mesh)} on {run.device}, {_said(run.backend)}"
        yield _cut(f"Run {run.id}: {ranks}{_passed(made, run)}")
    if isinstance(made.recipe, report.Recipe):
        where = (
            "under Launch in cp_infra.md" if words.made_by(made) == "build" else "under recipe in its JSON"
        )
        mesh = words.mesh(made.recipe.mesh)
        yield _cut(f"Launch: {mesh}: {words.standing(made, made.recipe)}; how: {where}")


def _chosen(plan: report.Plan) -> str:
    """The mesh that the free GPUs can test, where their number is known."""
    if not isinstance(plan.gpus_free, int):
        return ""
    chosen = words.mesh(plan.chosen) if plan.chosen is not None else "none: it takes 4 GPUs"
    return f"; mesh that they can test: {chosen}"


def _passed(made: report.Report, run: report.Run) -> str:
    """How many of its checks passed, but for those that the user left out; nothing for a self-test."""
    checks = [check for check in made.checks if check.run == run.id and not words.by_choice(check)]
    passed = [check for check in checks if check.outcome == "pass"]
    return f": {len(passed)} of {len(checks)} checks passed" if words.made_by(made) != "selftest" else ""


def _not_right(made: report.Report) -> Iterator[str]:
    """Faults that were missed or blamed wrong, and false alarms."""
    for row in made.selftest:
        if row.got is not None and row.expected is not None and row.status == "missed":
            acted = "" if row.fired else "it did not act; "
            told = f"got {acted}{_brief(row.got.text)}; expected {_brief(row.expected.text)}"
            yield f"{row.fault} {f'on {row.check}' if row.check else 'outside of checks'}: {told}"
    for alarm in made.control.false_alarms if made.control is not None else ():
        yield f"false alarm: {_brief(alarm)}"


def _blockers(made: report.Report) -> list[report.Blocking]:
    """What blocks; in a part of a report that lists it nowhere else, the blocking findings."""
    if "blocking" in made.model_fields_set:
        return made.blocking
    found = [one for one in words.findings(made) if one.severity == "blocking"]
    return [
        report.Blocking(
            id=one.id,
            what=f"{one.what}: got {one.got}",
            remedy=one.remedy,
            command=one.command,
            needs_from_user=[],
        )
        for one in found
    ]


def _machine(made: report.Report) -> str:
    parts = []
    if isinstance(made.host, report.Host):
        free = made.host.disk.free_gib
        disk = f"{free:.0f} GiB of disk free" if isinstance(free, float | int) else f"disk {_said(free)}"
        parts = [_said(made.host.hostname), f"{_said(made.host.cpus.affinity)} CPUs", disk]
    if isinstance(made.hardware, report.Hardware):
        models = Counter(_said(gpu.name) for gpu in made.hardware.gpus)
        gpus = ", ".join(f"{number} x {name}" for name, number in models.items()) or "no GPU"
        parts += [gpus, f"driver {_said(made.hardware.driver_version)}"]
    elif made.hardware is not None:
        parts.append(f"GPUs {_said(made.hardware)}")
    return ", ".join(parts) or "this report does not tell"


def _software(made: report.Software) -> Iterator[str]:
    nccl = made.nccl.loaded if isinstance(made.nccl, report.Nccl) else made.nccl
    yield f"Software: torch {_said(made.torch)} in {one_line(made.python)}"
    yield f"  CUDA build {_said(made.cuda_build)}, NCCL {_said(nccl)}"


def _unpassed(group: Sequence[report.Check]) -> str:
    first = group[0]
    ids = ", ".join(one_line(check.id) for check in group)
    return f"{first.outcome} {ids}: {_brief(first.reason)}; {_brief(first.remedy)}"


def _hang(hang: report.Hang | None) -> list[str]:
    if hang is None:
        return []
    blamed = f"culprit {ranks_text(hang.culprit_ranks)}" if hang.culprit_ranks else "no culprit could be told"
    where = one_line(words.where(hang), limit=_WHERE_LIMIT)
    found = [f"{one_line(hang.kind, limit=_KIND_LIMIT)} {where}, {blamed}"]
    return [*found, *map(_culprit, hang.culprits)]


def _culprit(one: report.Culprit) -> str:
    what = f"rank {one.rank}: {one_line(one.kind, limit=_KIND_LIMIT)}{words.place(one, one_line)}"
    return f"{what}: got {_said(one.got)}, expected {_said(one.expected)}"


def _blocking(one: report.Blocking) -> list[str]:
    told = f"{one_line(one.id)}: {_brief(one.what)}; {_brief(one.remedy)}"
    return [told, "" if one.command in one.remedy else one.command]


def _questions(made: report.Report) -> list[list[str]]:
    """All in one entry: what each is about, and what takes the answer."""
    asked = {question.key: question for one in made.blocking or () for question in one.needs_from_user}
    named = [f"{one_line(one.key)} ({one_line(one.option)})" for one in asked.values()]
    return [[", ".join(named)]] if named else []


def _section(title: str, entries: Sequence[Sequence[str]], *, most_lines: int) -> Iterator[str]:
    """A title and its entries, the first and as many others as fit; those left out are counted.

    Args:
        title: what stands above.
        entries: each a sentence, and perhaps a command.
        most_lines: how many there may be below the title; 3 at least.
    """
    if not entries:
        return
    yield title
    shown: list[str] = []
    for place, entry in enumerate(entries):
        block = _entry(*entry)
        room = most_lines - len(shown) - (0 if place == len(entries) - 1 else 1)
        if len(block) > room and place == 0:
            block = _short(*entry)
        if len(block) > room:
            shown.append(f"  ... {len(entries) - place} more: see the report")
            break
        shown += block
    yield from shown


def _entry(text: str, command: str = "") -> list[str]:
    """A sentence, with its command behind it, or below it where there is no room: never broken."""
    shown = _brief(text) or _NO_TEXT
    whole = f"  - {shown}: {one_line(command)}" if command else f"  - {shown}"
    if len(whole) <= COLUMNS:
        return [whole]
    found = _wrapped(shown)
    return [*found, *_command(one_line(command))] if command else found


def _short(text: str, command: str = "") -> list[str]:
    """An entry in two lines at most."""
    return [_cut(f"  - {_brief(text) or _NO_TEXT}"), *([_NO_ROOM] if command else [])]


def _command(command: str) -> list[str]:
    """A command that can be copied: broken between its words only, or not shown at all."""
    shown = ["   "]
    for word in _WORDS.findall(command):
        if len(shown[-1]) + len(word) + 3 > COLUMNS and shown[-1].strip():
            shown[-1] += " \\"
            shown.append("     ")
        shown[-1] += f" {word}"
    whole = len(shown) <= _LINES_OF_ONE and all(len(line) <= COLUMNS for line in shown)
    return shown if whole else [_NO_ROOM]


def _wrapped(text: str) -> list[str]:
    return _broken(text, "  - ", "    ")


def _broken(text: str, first: str, others: str) -> list[str]:
    """A text in at most `_LINES_OF_ONE` lines, each behind its indent."""
    found = textwrap.wrap(
        text, COLUMNS, initial_indent=first, subsequent_indent=others, break_on_hyphens=False
    )
    if len(found) <= _LINES_OF_ONE:
        return found
    return [*found[: _LINES_OF_ONE - 1], _cut(f"{found[_LINES_OF_ONE - 1][: COLUMNS - 4]} ...")]


def _said(value: object) -> str:
    """A value of the report, or that there is none and why."""
    why = getattr(value, "unavailable", None)
    return one_line(value) if why is None else f"unavailable ({one_line(why, limit=40)})"


def _brief(text: str) -> str:
    """Foreign text on one line; of a traceback its end."""
    found = lines(text)
    if any(line.startswith("Traceback (most recent call last)") for line in found):
        found = found[-1:]
    return one_line(" / ".join(line.strip() for line in found), limit=_LIMIT)


def _cut(text: str, limit: int = COLUMNS) -> str:
    return one_line(text, limit=limit)
