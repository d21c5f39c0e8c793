"""Signals and exit codes that the supervisor and the worker have agreed on. Standard library only."""

from __future__ import annotations

import signal

STACKS_SIGNAL = signal.SIGRTMIN + 7
"""Asks a rank for the stacks of its threads (faulthandler). A real-time signal that nothing else uses:
glibc keeps the first two, NCCL and schedulers like SIGUSR1 and SIGUSR2."""

RANK_BUG_EXIT = 70
"""Exit code of a rank, or of a model's import, whose own code failed in a way that it could not report
(EX_SOFTWARE)."""

RESULT_LOST_EXIT = 71
"""Exit code of a model's import that closed the descriptor of its own answer (EX_OSERR)."""
