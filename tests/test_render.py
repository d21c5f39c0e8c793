from __future__ import annotations

import io
import os
import pty
from pathlib import Path
from typing import Any

import pytest

import processes
from cpinfra import report
from cpinfra.cli import exit_codes
from cpinfra.cli import render
from cpinfra.cli import summary
from cpinfra.judging.store import Answer
from cpinfra.outcome import ExitCode
from cpinfra.outcome import Finding
from cpinfra.outcome import Scope
from cpinfra.outcome import Severity
from cpinfra.outcome import Verdict
from cpinfra.text import lines
from cpinfra.text import one_line


def check(name: str, said: str = "pass", **words: Any) -> report.Check:
    """A check of the report; one that did not pass has words of its own."""
    given = {} if said == "pass" else {"reason": f"why {name}", "remedy": f"help for {name}"}
    plain = {"tier": "smoke", "run": "main", "ranks": [0], "seconds": 0.5, "reason": "", "remedy": ""}
    return report.Check(
        **{"id": name, "outcome": said, "evidence": {"comparisons": 7}, **plain, **given, **words}
    )


def culprit(rank: int) -> report.Culprit:
    """A culprit with facts of its own."""
    words = {key: f"{key}{rank}" for key in ("kind", "operation", "group", "site", "expected", "got")}
    return report.Culprit(rank=rank, **words)


def hang(*ranks: int, **words: Any) -> report.Hang:
    """A hang with those culprits."""
    facts: dict[str, Any] = {
        "check": "p2p.ring",
        "kind": "never-entered",
        "culprit_ranks": list(ranks),
        "culprits": [culprit(rank) for rank in ranks],
        "waiting_ranks": [4, 5],
        "stacks": {},
        "seconds_to_verdict": 1.25,
    }
    return report.Hang(**{**facts, **words})


def finding(name: str, severity: Severity) -> report.FindingFacts:
    """A finding with words of its own."""
    words = {key: f"{key} of {name}" for key in ("what", "got", "expected", "remedy", "command")}
    return report.finding_from(Finding(id=name, severity=severity, **words))


def answer(
    *,
    verdict: Verdict = Verdict.FAILED,
    code: ExitCode = ExitCode.FAILED,
    path: Path | None = Path("/runs/1/report.json"),
    **parts: Any,
) -> Answer:
    """What the proof came to, with these sections."""
    why = report.Unavailable(unavailable="why")
    whole: dict[str, Any] = {
        "verdict": verdict.value,
        "scope": "rehearsal",
        "plan": report.Plan(gpus_free=why, configs=[], chosen=None, slots=why),
        "hardware": why,
        "software": report.software_from("/p", {}, missing="m"),
        "runs": [],
        "checks": [],
        "hang": None,
        "recipe": why,
        "findings": [],
        "blocking": [],
        "logs": [],
    }
    made = report.Report.made(**{**whole, **parts})
    return Answer(verdict=verdict, scope=Scope.REHEARSAL, exit_code=code, report=made, report_path=path)


def shown(made: Answer, *, brief: bool = False) -> list[str]:
    """The summary as plain lines."""
    return [line.text for line in summary.of(made, brief=brief)]


class TestSummary:
    """What stands at the end."""

    def test_every_check_in_one_table(self) -> None:
        """Outcome, seconds and comparisons, aligned, whatever the length of the names."""
        text = shown(answer(checks=[check("a.b"), check("longer.name", "fail", seconds=12.25)]))

        assert text[1] == "  a.b          pass        0.500 s         7 comparisons"
        assert text[2] == "  longer.name  fail       12.250 s         7 comparisons"

    def test_two_failing_checks_keep_their_own_words(self) -> None:
        """Reason and remedy below each name, for all that did not pass and for none that did."""
        checks = [check("a", "fail"), check("b"), check("c", "unknown"), check("d", "skip")]
        text = shown(answer(checks=checks))

        assert text[5:14] == [
            "  a: fail",
            "      reason:   why a",
            "      remedy:   help for a",
            "  c: unknown",
            "      reason:   why c",
            "      remedy:   help for c",
            "  d: skip",
            "      reason:   why d",
            "      remedy:   help for d",
        ]
        assert "  b: pass" not in text

    @pytest.mark.parametrize("left_out", [("b",), ("b", "c")])
    def test_what_the_user_left_out_is_said_once(self, left_out: tuple[str, ...]) -> None:
        """In a line of its own; one that the mesh has no place for stays in the table."""
        skipped = [check(name, "skip", reason="not named by --only") for name in left_out]
        text = shown(answer(checks=[check("a"), *skipped, check("d", "skip")]))

        assert [line.split()[0] for line in text[1:3]] == ["a", "d"]
        assert text[3] == "  d: skip"
        assert [line for line in text if "b" in line.split()] == []
        assert f"Left out: {', '.join(left_out)}, d; nothing is said of what they test" in text
        alone = shown(answer(checks=[check("a"), skipped[0]]))
        assert "Left out: b; nothing is said of what it tests" in alone

    def test_what_keeps_a_verdict_from_being_proven(self) -> None:
        """A check that was skipped on request is required all the same."""
        skipped = check("b", "skip", reason="left out by --skip")
        made = answer(verdict=Verdict.NOT_PROVEN, code=ExitCode.NOT_PROVEN, checks=[check("a"), skipped])

        assert any(
            "what --skip leaves out keeps the verdict from being proven" in line for line in shown(made)
        )

    def test_two_culprits_keep_their_own_facts(self) -> None:
        """Kind, operation, site, got and expected of each rank, and who waited."""
        text = shown(answer(hang=hang(1, 3)))
        start = text.index("Hang: never-entered, kind1, kind3 in p2p.ring, told after 1.25 s")

        assert text[start + 1 : start + 8] == [
            "  rank 1: kind1 in operation1 at site1",
            "      got:      got1",
            "      expected: expected1",
            "  rank 3: kind3 in operation3 at site3",
            "      got:      got3",
            "      expected: expected3",
            "  waiting: 4, 5",
        ]

    def test_what_others_raised_is_told_beside_a_hang(self) -> None:
        """Two ranks keep their own texts."""
        text = shown(answer(hang=hang(1, raised={"2": "ValueError: a", "3": "KeyError: b"})))
        start = text.index("  waiting: 4, 5")

        assert text[start + 1 : start + 3] == [
            "  rank 2 raised ValueError: a",
            "  rank 3 raised KeyError: b",
        ]

    def test_what_is_no_hang_is_not_called_one(self) -> None:
        """A death, ranks that part; where the place is the one that was due, it says so."""
        titles = {"process-died": "Death", "diverged": "Divergence", "process-stopped": "Hang"}
        for kind, title in titles.items():
            text = shown(answer(hang=hang(kind=kind)))
            assert f"{title}: {kind} in p2p.ring, told after 1.25 s" in text
        due = culprit(1).model_copy(update={"kind": "never-entered"})
        text = shown(answer(hang=hang(1, culprits=[due])))
        assert "  rank 1: never-entered, where operation1 at site1 was due" in text

    @pytest.mark.parametrize("kind", ["process-stopped", "process-died"])
    def test_of_a_rank_that_says_no_more_it_is_not_told_that_it_was_inside(self, kind: str) -> None:
        """It may have been stopped or have died on its way to the operation."""
        text = shown(answer(hang=hang(1, culprits=[culprit(1).model_copy(update={"kind": kind})])))

        assert f"  rank 1: {kind} in or before operation1 at site1" in text

    def test_why_a_culprit_has_no_stack(self) -> None:
        """Of each by itself, before the stacks of others; who has one gets no excuse."""
        stopped, ended = report.Unavailable(unavailable="it was stopped"), report.Unavailable(unavailable="y")
        stacks: dict[str, report.Unavailable | str] = {"0,4": "ranks 0,4: the same 1 frame", "7": "frames"}
        told = hang(1, 2, 3, 7, stacks={**stacks, "1": stopped, "2": ended})
        text = shown(answer(hang=told))
        start = text.index("  rank 1: no stack: it was stopped")

        assert text[start : start + 6] == [
            "  rank 1: no stack: it was stopped",
            "  rank 2: no stack: y",
            "  rank 3: no stack: it was not recorded",
            "  rank 7 stands at",
            "    frames",
            "  ranks 0,4: the same 1 frame",
        ]

    def test_what_else_is_known_of_a_hang(self) -> None:
        """Who was lost to it and how, who entered what, and what to do."""
        sides = [report.Side(ranks=[0, 2], entered="all_reduce"), report.Side(ranks=[1], entered="barrier")]
        text = shown(answer(hang=hang(victims={"1": "SIGABRT", "3": "SIGPIPE"}, sides=sides, remedy="look")))

        for line in [
            "  ranks 0, 2 entered all_reduce",
            "  rank 1 entered barrier",
            "  lost to it: rank 1: SIGABRT",
            "  lost to it: rank 3: SIGPIPE",
            "      remedy:   look",
        ]:
            assert line in text

    def test_stacks_are_whole_for_culprits_and_without_their_middle_for_others(self) -> None:
        """The innermost lines, and those of the check."""
        frame = '  File "/a/b.py", line {0} in f{0}'
        whole = "Current thread 0x1 (most recent call first):\n" + "\n".join(map(frame.format, range(20)))
        others = "\n".join(["ranks 0,2: the same 12 frames", *(f"  c.py:{n} in g" for n in range(12))])
        text = shown(answer(hang=hang(1, stacks={"1": whole, "0,2": others})))

        start = text.index("  rank 1 stands at")
        assert text[start + 1 : start + 21] == [f"    b.py:{number} in f{number}" for number in range(20)]
        assert text[start + 21 : start + 31] == [
            "  ranks 0,2: the same 12 frames",
            *[f"    c.py:{number} in g" for number in range(4)],
            "    ... 4 more",
            *[f"    c.py:{number} in g" for number in range(8, 12)],
        ]

    def test_a_hang_without_a_culprit_or_a_check(self) -> None:
        """Nobody is accused where nothing tells."""
        text = "\n".join(
            shown(answer(hang=hang(check=None, seconds_to_verdict=report.Unavailable(unavailable="x"))))
        )

        assert "Hang: never-entered outside of the checks, told\n" in text
        assert "no rank is to blame" in text

    def test_two_findings_keep_their_own_words(self) -> None:
        """What is merely info takes one line; of the others got, expected, remedy and command are shown."""
        findings = [
            finding("quiet", Severity.INFO),
            finding("odd", Severity.WARNING),
            finding("bad", Severity.BLOCKING),
        ]
        text = shown(answer(findings=findings))
        start = text.index("Findings")

        assert text[start + 1 : start + 8] == [
            "  info quiet: what of quiet",
            "  warning odd: what of odd",
            "      got:      got of odd",
            "      expected: expected of odd",
            "      remedy:   remedy of odd",
            "      command:  command of odd",
            "  blocking bad: what of bad",
        ]

    @pytest.mark.parametrize(
        ("verdict", "code", "meaning"),
        [
            (Verdict.PROVEN, ExitCode.OK, "Exit code: 0 (proven, or rehearsed"),
            (Verdict.REHEARSED, ExitCode.OK, "Exit code: 0 (proven, or rehearsed"),
            (Verdict.FAILED, ExitCode.FAILED, "Exit code: 1 (failed)"),
            (Verdict.NOT_PROVEN, ExitCode.NOT_PROVEN, "Exit code: 3 (not proven)"),
            (Verdict.NOT_PROVEN, ExitCode.INTERRUPTED, "Exit code: 130 (interrupted)"),
        ],
    )
    def test_the_end_says_verdict_code_and_place(
        self, verdict: Verdict, code: ExitCode, meaning: str
    ) -> None:
        """Also alone, beside a JSON document."""
        text = shown(answer(verdict=verdict, code=code), brief=True)

        assert len(text) == 3
        assert text[0].startswith(f"Verdict: {verdict.value}, scope rehearsal: ")
        assert text[1].startswith(meaning)
        assert text[2] == "Report: /runs/1/report.json"

    def test_each_command_says_what_its_own_codes_mean(self) -> None:
        """Without a GPU `prove` rehearses with 0 by itself, and `build` only where that was asked for."""
        done = answer(code=ExitCode.OK)
        of_prove = [line.text for line in summary.of(done)]
        of_build = [line.text for line in summary.of(done, codes=exit_codes.BUILD)]

        assert "Exit code: 0 (proven, or rehearsed where that was asked for or there is no GPU)" in of_prove
        assert "Exit code: 0 (proven, or rehearsed with --rehearse)" in of_build
        assert set(exit_codes.BUILD) == set(exit_codes.PROVE)

    def test_a_report_that_lies_nowhere(self) -> None:
        """It is said, not left out."""
        assert shown(answer(path=None))[-1] == "Report: no folder could take it; see the findings"

    def test_foreign_lines_stay_within_their_paragraph(self) -> None:
        """A traceback keeps its lines, indented; control characters are escaped; too much is cut."""
        reason = "Traceback:\n\tline\x1b[2J\r\n" + "x" * 5000
        text = shown(answer(checks=[check("a", "fail", reason=reason)]))

        assert text[3] == "      reason:   Traceback:"
        assert text[4].strip() == "line\\x1b[2J"
        assert text[5].endswith("... (all of it is in the report)")
        assert len(text[5]) < 2100
        assert all(line.isprintable() for line in text)


class TestEvents:
    """One line per event."""

    @pytest.mark.parametrize(
        ("event", "line"),
        [
            (
                {"t": 0.5, "event": "check", "id": "a", "outcome": "pass", "seconds": 0.25, "comparisons": 9},
                "    0.500 s  a pass (0.250 s, 9 comparisons)",
            ),
            (
                {"t": 12, "event": "check", "id": "a", "outcome": "fail", "reason": "x\ny", "seconds": 1.0},
                "   12.000 s  a fail: x\\ny (1.000 s, unknown comparisons)",
            ),
            (
                {"t": 1, "event": "exited", "rank": 2, "code": None, "signal": "SIGKILL"},
                "    1.000 s  rank 2 ended by SIGKILL",
            ),
            (
                {"t": 1, "event": "exited", "rank": 3, "code": 1, "signal": None},
                "    1.000 s  rank 3 ended by exit code 1",
            ),
            (
                {"t": 1, "event": "hang", "sentence": "rank 1: x; rank 2: y"},
                "    1.000 s  rank 1: x; rank 2: y",
            ),
            (
                {"t": 1, "event": "fired", "fault": "kill:2@5", "rank": 2},
                "    1.000 s  planted fault kill:2@5 acts on rank 2",
            ),
            (
                {"t": 1, "event": "fired", "fault": "wrong-chunk", "rank": 2},
                "    1.000 s  planted fault wrong-chunk first acts on rank 2",
            ),
            ({"t": 1, "event": "new", "a": [1, 2], "b": "\x1b"}, "    1.000 s  new a=1, 2 b=\\x1b"),
            ({"event": "hang", "kind": "k"}, "             hang kind=k"),
            ({}, "             event"),
        ],
    )
    def test_in_words(self, event: dict[str, Any], line: str) -> None:
        """Known ones in words, unknown ones and incomplete ones with all that they hold."""
        assert render.line_of(event) == line

    def test_a_long_reason_is_cut(self) -> None:
        """All of it is in the summary and the report."""
        line = render.line_of({"event": "check", "id": "a", "outcome": "fail", "reason": "x" * 9999})

        assert len(line) < 500

    def test_what_goes_as_it_should_takes_no_line(self) -> None:
        """A rank that ends well, nothing imported, nothing left: 64 ranks would drown the rest."""
        silent: list[dict[str, Any]] = [
            {"event": "exited", "rank": 1, "code": 0, "signal": None},
            {"event": "imported", "modules": []},
            {"event": "end", "processes_left": []},
        ]
        told: list[dict[str, Any]] = [
            {"event": "exited", "rank": 1, "code": 1, "signal": None},
            {"event": "imported", "modules": ["m"]},
            {"event": "end", "processes_left": [7]},
        ]

        assert [render.worth_a_line(event) for event in silent + told] == [False] * 3 + [True] * 3


class TestScreen:
    """Where it is shown."""

    def test_off_a_terminal(self) -> None:
        """Everything on stdout, in order, without colour."""
        out, err = io.StringIO(), io.StringIO()
        screen = render.Screen(out, err, as_json=False)
        screen.reporter.announce("first\x1b[31m")
        screen.reporter.engine_started()
        screen.reporter.event({"t": 1, "event": "hang", "sentence": "s"})
        screen.close()
        screen.finish(answer(), lambda _: summary.of(answer()))

        assert out.getvalue().splitlines()[:2] == ["first\\x1b[31m", "    1.000 s  s"]
        assert "\x1b" not in out.getvalue()
        assert err.getvalue() == ""

    def test_off_a_terminal_nothing_is_wider_than_100_columns(self) -> None:
        """But for what a person copies, which stays in one piece."""
        out = io.StringIO()
        screen = render.Screen(out, None, as_json=False)
        command = "run " * 60 + "it"
        odd = finding("odd", Severity.WARNING).model_copy(update={"got": "got " * 60, "command": command})
        path = Path("/a b" * 50)
        reasons = [check(name, "fail", reason=f"{name} " * 200) for name in ("why", "how")]
        made = answer(checks=reasons, findings=[odd], hang=hang(*range(50)), path=path)
        screen.finish(made, lambda _: summary.of(made))
        text = out.getvalue().splitlines()

        assert [line for line in text if len(line) > 100] == [f"      command:  {command}", f"Report: {path}"]
        assert [line.count("why") for line in text if line.startswith(" " * 16 + "why")] == [21] * 4 + [15]

    def test_on_a_terminal_the_cursor_is_never_hidden(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A picture is drawn and removed, and whoever is killed meanwhile leaves the cursor where it was."""
        monkeypatch.setenv("TERM", "xterm-256color")
        leader, follower = pty.openpty()
        os.set_blocking(leader, False)
        seen: list[bytes] = []

        def shown(text: bytes) -> bool:
            try:
                seen.append(os.read(leader, 1 << 16))
            except BlockingIOError:
                pass
            return text in b"".join(seen)

        with os.fdopen(follower, "w") as terminal:
            screen = render.Screen(terminal, terminal, as_json=False)
            screen.reporter.engine_started()
            screen.reporter.event({"t": 1, "event": "hang", "sentence": "a note"})
            processes.wait_until(lambda: shown(b"a note"), "the picture")
            screen.close()
            screen.finish(answer(), lambda _: summary.of(answer()))
            processes.wait_until(lambda: shown(b"/runs/1/report.json"), "the summary")
        os.close(leader)

        assert b"\x1b[?25" not in b"".join(seen)

    def test_as_json(self) -> None:
        """The document alone on stdout; progress and the verdict on stderr."""
        out, err = io.StringIO(), io.StringIO()
        screen = render.Screen(out, err, as_json=True)
        screen.reporter.announce("first")
        made = answer()
        screen.finish(made, lambda lost: summary.of(made, brief=screen.brief, lost=lost))

        assert out.getvalue() == made.report.text()
        assert err.getvalue().splitlines()[0] == "first"
        assert len(err.getvalue().splitlines()) == 4

    @pytest.mark.parametrize(
        ("before", "told", "code"),
        [
            (ExitCode.OK, "Exit code: 3 (the document was lost, whatever it says)", 3),
            (ExitCode.FAILED, "Exit code: 1 (failed)", 1),
        ],
    )
    def test_a_document_that_is_lost(self, before: ExitCode, told: str, code: int) -> None:
        """Is known before the end is told: never a 0, and each code that is worse stays."""
        err = io.StringIO()
        made = answer(verdict=Verdict.PROVEN if code == 3 else Verdict.FAILED, code=before)
        with Path("/dev/full").open("w") as full:
            screen = render.Screen(full, err, as_json=True)
            ended = screen.finish(made, lambda lost: summary.of(made, brief=screen.brief, lost=lost))

        assert ended == code
        assert [line for line in err.getvalue().splitlines() if line.startswith("Exit code")] == [told]
        assert err.getvalue().splitlines()[-1] == (
            "cpinfra: output lost (No space left on device); the report lies at /runs/1/report.json"
        )


class TestText:
    """Foreign text made safe."""

    @pytest.mark.parametrize(
        ("text", "safe"),
        [
            ("plain é 漢", "plain é 漢"),
            ("a\nb\tc\r", "a\\nb\\tc\\r"),
            ("\x1b]0;title\x07", "\\x1b]0;title\\x07"),
            ("\x9b31m\x7f", "\\x9b31m\\x7f"),
            ("\u202egnp\u2028", "\\u202egnp\\u2028"),
            ("\udcff", "\\udcff"),
            ("", ""),
        ],
    )
    def test_one_line(self, text: str, safe: str) -> None:
        """Letters stay; whatever moves a cursor, turns text around or breaks a line is an escape."""
        assert one_line(text) == safe

    def test_limit(self) -> None:
        """What is too long says so."""
        assert one_line("x" * 20, limit=10) == "xxxxxxx..."
        assert one_line("x" * 10, limit=10) == "x" * 10

    def test_lines(self) -> None:
        """Line by line, tabs as blanks, empty ones dropped."""
        assert lines("a\n\n\tb\x1b\r\nc") == ["a", "    b\\x1b", "c"]
