"""Signals that the supervisor and the worker have agreed on. Standard library only."""

from __future__ import annotations

import signal

STACKS_SIGNAL = signal.SIGRTMIN + 7
"""Asks a rank for the stacks of its threads (faulthandler). A real-time signal that nothing else uses:
glibc keeps the first two, NCCL and schedulers like SIGUSR1 and SIGUSR2."""
