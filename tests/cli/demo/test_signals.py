"""Signals that end the demo."""

from __future__ import annotations

import contextlib
import signal

import pytest

from rankwatch_cli.commands.demo import EndSignals
from rankwatch_cli.demo.workspace import Workspace


@pytest.mark.process
def test_lost_exception() -> None:
    """Python may lose the exception of a signal handler; Ctrl-C must still end the demo at the next check."""
    signals = EndSignals()
    with Workspace(signals.check) as workspace:
        workspace.check()
        with contextlib.suppress(KeyboardInterrupt):
            signals.handle(signal.SIGINT, None)
        with pytest.raises(KeyboardInterrupt):
            workspace.check()


def test_sigterm_status() -> None:
    """A shell expects 128 + 15, at once and again if the first exception was lost."""
    signals = EndSignals()
    signals.check()
    with pytest.raises(SystemExit, match="143"):
        signals.handle(signal.SIGTERM, None)
    with pytest.raises(SystemExit, match="143"):
        signals.check()
