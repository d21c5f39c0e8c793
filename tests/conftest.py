"""What holds for every test."""

from __future__ import annotations

import signal


def pytest_configure() -> None:
    """A shell has its background jobs ignore Ctrl-C, and what they start inherits that: tests send it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
