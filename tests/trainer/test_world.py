"""The rendezvous of ranks that start at different times."""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor

import pytest

from rankwatch_trainer.world import rendezvous
from support.jobs.trainer import DEADLINE_SECONDS
from support.servers.prometheus import poll, reserved_port

pytestmark = pytest.mark.process


def test_rendezvous(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first rank opens the store and waits until the last one connects. Then all share the store."""
    with reserved_port() as port, ThreadPoolExecutor() as ranks:
        monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
        monkeypatch.setenv("MASTER_PORT", str(port))
        first = ranks.submit(rendezvous, 0, 2)
        poll(lambda: _answers(port), DEADLINE_SECONDS, "store of the first rank")
        assert not first.done()
        other = ranks.submit(rendezvous, 1, 2).result()
        first.result().set("word", "heard")
        assert other.get("word") == b"heard"


def _answers(port: int) -> bool:
    with socket.socket() as caller:
        return caller.connect_ex(("127.0.0.1", port)) == 0
