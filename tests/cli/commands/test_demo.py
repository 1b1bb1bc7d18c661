"""`rankwatch demo` checks its options and extras before it starts anything, reads the agent's metrics, and
ends by signals."""

from __future__ import annotations

import contextlib
import signal
import socket
import threading
from pathlib import Path

import pytest

from rankwatch_agent.runtime.errors import UserError
from rankwatch_alerts import RuleConfig
from rankwatch_cli.commands.demo import EndSignals, main
from rankwatch_cli.demo.parts import read_steps, start_agent, wait_until
from rankwatch_cli.demo.workspace import DemoError, Workspace


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--ranks", "2"], "expected at least 3"),
        (["--healthy", "nan"], "--healthy is nan"),
        (["--healthy", "-5"], "--healthy is -5"),
        (["--deadline", "0"], "--deadline is 0"),
        (["--healthy", "3", "--keep"], "--keep goes with"),
        (["--result", "/nonexistent/x.json"], "could not write --result"),
    ],
)
def test_invalid_options(arguments: list[str], message: str) -> None:
    """They are refused with one sentence before any process starts."""
    with pytest.raises(UserError, match=message):
        main(arguments)


def test_missing_extras(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """One error names all missing extras, so that the user installs them with one command."""
    monkeypatch.setattr("rankwatch_cli.commands.demo.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"pip install '\.\[agent,alerts,trainer\]'"):
        main(["--result", str(tmp_path / "x.json")])


_BROKEN_OFF = b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nrankwatch_steps_total{ra"


def test_broken_answer() -> None:
    """If the agent dies while it answers, the demo ends with one sentence, as if there were no answer."""
    with socket.create_server(("127.0.0.1", 0)) as dying:
        answering = threading.Thread(target=_break_off, args=(dying,))
        answering.start()
        with pytest.raises(DemoError, match=r"could not read http://127\.0\.0\.1:.*/metrics: IncompleteRead"):
            read_steps(f"127.0.0.1:{dying.getsockname()[1]}")
        answering.join()


def _break_off(server: socket.socket) -> None:
    connection, _ = server.accept()
    with connection:
        connection.recv(65536)
        connection.sendall(_BROKEN_OFF)


@pytest.mark.process
def test_state_goes_with_the_demo() -> None:
    """Every demo calls its run the same: the account of one must not go on in the next."""
    with Workspace(lambda: None) as workspace:
        start_agent(workspace, RuleConfig.for_demo())
        account = workspace.directory / "state" / "goodput.json"
        wait_until(workspace, account.exists, "the agent to keep its state")
    assert not account.exists()


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
