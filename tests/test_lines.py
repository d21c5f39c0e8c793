"""Lines that are broken where there is no room for them."""

from __future__ import annotations

import fcntl
import io
import os
import pty
import struct
import termios

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cpinfra.cli.lines import Line
from cpinfra.cli.lines import columns
from cpinfra.cli.lines import styled
from cpinfra.cli.lines import wrapped
from cpinfra.cli.output import Output

WORDS = st.lists(st.text("ab-/", min_size=1, max_size=30), min_size=1, max_size=30)


def texts(line: Line, width: int) -> list[str]:
    """What becomes of it."""
    return [part.text for part in wrapped([line], width)]


class TestWrapped:
    """Between words alone."""

    def test_two_lines_keep_their_own_indents(self) -> None:
        """What fits stays as it is."""
        lines = [
            styled("  ", "one two three", hang=4),
            styled("four five six", hang=2),
            styled("seven", hang=1),
        ]

        assert [part.text for part in wrapped(lines, 10)] == [
            "  one two",
            "    three",
            "four five",
            "  six",
            "seven",
        ]

    def test_a_long_word_is_not_broken(self) -> None:
        """A path stands out, so that it can be copied, and is not torn from the name before it."""
        assert texts(styled("  got:   /a/long/path-of/many and more", hang=9), 12) == [
            "  got:   /a/long/path-of/many",
            "         and",
            "         more",
        ]

    def test_what_has_no_hang_is_never_broken(self) -> None:
        """Columns of a table, a command."""
        assert texts(styled("run this and that"), 5) == ["run this and that"]

    def test_styles_stay_with_their_words(self) -> None:
        """Also where a styled text is broken in two."""
        line = styled("a ", ("bold one", "bold"), " b", hang=1)

        assert [part.spans for part in wrapped([line], 7)] == [
            (("", ""), ("a ", ""), ("bold", "bold")),
            ((" ", ""), ("one", "bold"), (" b", "")),
        ]

    @given(WORDS, st.integers(10, 100), st.integers(0, 9))
    def test_whatever_the_words(self, words: list[str], width: int, hang: int) -> None:
        """None is lost or broken, and no line is too wide unless by one word alone."""
        found = texts(styled(" ".join(words), hang=hang), width)

        assert " ".join(found).split() == words
        assert all(len(text) <= width or " " not in text[hang:].strip() for text in found)

    def test_an_empty_line_stays_one(self) -> None:
        """Nothing is no reason to leave it out."""
        assert texts(styled("", hang=2), 10) == [""]


class TestColumns:
    """How wide a line may be."""

    @pytest.mark.parametrize(("wide", "told"), [(80, 80), (132, 132), (60, 60), (20, 60), (0, 80)])
    def test_of_a_terminal(self, wide: int, told: int) -> None:
        """Its own width, 60 at least; 80 of one that does not say."""
        leader, follower = pty.openpty()
        fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 24, wide, 0, 0))
        with os.fdopen(follower, "w") as terminal:
            assert columns(Output(terminal)) == told
        os.close(leader)

    def test_elsewhere(self) -> None:
        """100, also where there is no stream at all."""
        assert (columns(Output(io.StringIO())), columns(Output(None))) == (100, 100)
