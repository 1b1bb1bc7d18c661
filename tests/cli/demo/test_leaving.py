"""Signals that end the demo."""

from __future__ import annotations

import contextlib
import signal

import pytest

from rankwatch_cli.demo.signals import Leaving
from rankwatch_cli.demo.workspace import Workspace


def test_a_signal_whose_exception_is_lost_ends_the_demo_at_its_next_look_at_the_parts() -> None:
    """Python raises an error that it is just wording in its stead; Ctrl-C must be heard all the same."""
    leaving = Leaving()
    with Workspace(leaving.check) as workspace:
        workspace.check()
        with contextlib.suppress(KeyboardInterrupt):
            leaving.hear(signal.SIGINT, None)
        with pytest.raises(KeyboardInterrupt):
            workspace.check()


def test_sigterm_ends_the_demo_with_the_status_a_shell_expects() -> None:
    """At once, and again where that was lost."""
    leaving = Leaving()
    leaving.check()
    with pytest.raises(SystemExit, match="143"):
        leaving.hear(signal.SIGTERM, None)
    with pytest.raises(SystemExit, match="143"):
        leaving.check()
