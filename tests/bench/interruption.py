"""Ctrl-C and SIGTERM end a benchmark in order: every `with` block ends what it started."""

from __future__ import annotations

import signal


def leave_on_signals() -> None:
    """From now on both raise SystemExit in the main thread, with the status a shell expects."""
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, _leave)


def _leave(number: int, _frame: object) -> None:
    raise SystemExit(128 + number)
