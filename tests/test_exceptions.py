"""Exceptions in words: bounded, whatever a foreign one says or does."""

from __future__ import annotations

from cpinfra.worker.exceptions import TEXT_MAX
from cpinfra.worker.exceptions import TRACEBACK_MAX
from cpinfra.worker.exceptions import text_of
from cpinfra.worker.exceptions import traceback_of


class Mute(RuntimeError):
    """One that does not say what it is."""

    def __str__(self) -> str:
        raise ValueError("no words")


def raised(error: Exception, cause: Exception | None = None) -> Exception:
    """The same after it has been raised."""
    try:
        raise error from cause
    except Exception as caught:  # noqa: BLE001 - whatever was given
        return caught


def test_a_short_text_stands_as_it_is() -> None:
    """Nothing is added to it."""
    assert text_of(RuntimeError("socket closed\nby peer")) == "socket closed\nby peer"
    assert text_of(RuntimeError()) == ""


def test_of_a_long_text_the_middle_is_left_out() -> None:
    """How it begins and how it ends say most."""
    text = text_of(RuntimeError("begin" + 100_000 * "x" + "end"))

    assert (text[:5], text[-3:]) == ("begin", "end")
    assert "x ... x" in text
    assert len(text) == TEXT_MAX + len(" ... ")


def test_a_text_that_cannot_be_had() -> None:
    """It is said that it cannot, and why."""
    assert text_of(Mute()) == "(its text cannot be had: ValueError)"
    assert "Mute" in traceback_of(raised(Mute()))


def test_a_traceback_holds_causes_and_its_end() -> None:
    """The line that raised is last."""
    whole = traceback_of(raised(KeyError("second"), OSError("first")))
    assert whole.index("OSError: first") < whole.index("KeyError: 'second'")

    long = traceback_of(raised(RuntimeError(100_000 * "x" + "end")))
    assert len(long) == TRACEBACK_MAX
    assert long.endswith("end\n")
