"""The demo reads the agent's metrics."""

from __future__ import annotations

import socket
import threading

import pytest

from rankwatch_alerts import RuleConfig
from rankwatch_cli.demo.parts import read_steps, start_agent, wait_until
from rankwatch_cli.demo.workspace import DemoError, Workspace

_BROKEN_OFF = b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nrankwatch_steps_total{ra"


def test_broken_answer() -> None:
    """If the agent dies while it answers, the demo ends with one sentence, as if the agent had not
    answered."""
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
