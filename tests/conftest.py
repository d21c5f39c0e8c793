"""What holds for every test."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest


def pytest_configure() -> None:
    """A shell has its background jobs ignore Ctrl-C, and what they start inherits that: tests send it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _handlers() -> Iterator[None]:
    """Signals as they were before: the command line ignores them at its end, and the next test sends them."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.getsignal(number) for number in numbers}
    yield
    for number, handler in before.items():
        if handler is not None:  # None: it was not set from Python
            signal.signal(number, handler)
