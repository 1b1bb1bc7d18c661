"""The HTTP server under normal and hostile clients."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from email.message import Message
from http import HTTPStatus

import pytest

from rankwatch_agent.runtime.connections import (
    CONNECTIONS_PER_REQUEST,
    LOCAL,
    SLOW_SECONDS,
    Connections,
    client_of,
)
from rankwatch_agent.runtime.errors import UserError
from rankwatch_agent.runtime.exposition import Exposition
from rankwatch_agent.runtime.pages import build_probes, build_routes
from rankwatch_agent.runtime.server import EXHAUSTED_SECONDS, MetricsServer, Page, Route, plain_page
from rankwatch_agent.runtime.supervisor import Snapshot
from support.agent.process import DEADLINE_SECONDS, ManualClock, fetch, until
from support.processes.exhaustion import no_descriptors
from support.servers.routes import outlive, serving


def page(text: str) -> Callable[[Message], Page]:
    return lambda headers: plain_page(HTTPStatus.OK, text)


def agent_routes(*pending: str) -> dict[str, Route]:
    return build_routes(lambda: Snapshot((), pending), Exposition({"node": "n1"}))


HELLO = {"/": Route(page("hello"))}


def large(size: int) -> Route:
    """A page of so many bytes."""
    return Route(lambda headers: Page(HTTPStatus.OK, b"x" * size, {}))


def test_pages() -> None:
    """The index links to the others."""
    with serving(agent_routes()) as (_, address):
        assert b"process_cpu_seconds_total" in fetch(address, "/metrics?x=1").body
        assert fetch(address, "/healthz").body == b"ok\n"
        assert fetch(address, "/readyz").status == 200
        assert b'href="/metrics"' in fetch(address, "/").body


def test_probes_alone() -> None:
    """Their own listener answers them and nothing else."""
    with serving(build_probes(lambda: Snapshot((), ()))) as (_, address):
        assert fetch(address, "/healthz").status == fetch(address, "/readyz").status == 200
        assert fetch(address, "/metrics").status == 404


def test_readiness_names_pending_collectors() -> None:
    """Liveness does not depend on them."""
    with serving(agent_routes("disk", "ranks")) as (_, address):
        ready = fetch(address, "/readyz")
        assert fetch(address, "/healthz").status == 200
    assert (ready.status, ready.body) == (503, b"waiting for the first run of: disk, ranks\n")


def test_methods_and_unknown_paths() -> None:
    """HEAD gets the headers of GET with Content-Length and no body; 404, and 405 with the allowed methods."""
    with serving(HELLO) as (_, address):
        head, refused = (fetch(address, "/", method=each) for each in ("HEAD", "POST"))
        assert [fetch(address, path).status for path in ("/nothing", "//[")] == [404, 404]
    assert (head.status, head.headers["Content-Length"], head.body) == (200, "6", b"")
    assert (refused.status, refused.headers["Allow"]) == (405, "GET, HEAD")


def test_too_many_requests() -> None:
    """They get 503 while liveness still answers: a busy node is alive."""
    entered, release = threading.Event(), threading.Event()

    def slow(headers: Message) -> Page:
        entered.set()
        release.wait(DEADLINE_SECONDS)
        return plain_page(HTTPStatus.OK, "done")

    routes = {"/slow": Route(slow), "/alive": Route(page("ok"), bounded=False)}
    with serving(routes, max_requests=1) as (_, address):
        first: list[int] = []
        client = threading.Thread(target=lambda: first.append(fetch(address, "/slow").status))
        client.start()
        assert entered.wait(DEADLINE_SECONDS)
        assert fetch(address, "/slow").status == 503
        assert fetch(address, "/alive").status == 200
        release.set()
        client.join()
        assert first == [200]
        until(lambda: fetch(address, "/slow").status == 200, "the next one is let in")


def test_silent_connections_give_way() -> None:
    """Silent clients cannot take all connections: the oldest of them gives way to each new one."""
    with serving(HELLO, max_requests=4) as (server, address), idle_clients() as idle:
        silent = [idle(server) for _ in range(4 * CONNECTIONS_PER_REQUEST)]
        assert fetch(address, "/").status == 200
        assert silent[0].recv(1) == b""


def test_silent_client() -> None:
    """It is cut after a short time, however it keeps the connection alive."""
    clock = ManualClock()
    with serving(HELLO, monotonic=clock) as (server, address), idle_clients() as idle:
        silent = idle(server)
        silent.sendall(b"GET / HT")
        outlive(silent, clock, seconds=SLOW_SECONDS)
        assert silent.recv(1) == b""
        assert fetch(address, "/").status == 200


def test_slow_readers_give_way() -> None:
    """Clients that ask and do not read the response cannot take all requests."""
    clock = ManualClock()
    with (
        serving({**HELLO, "/big": large(20_000_000)}, max_requests=1, monotonic=clock) as (server, address),
        idle_clients() as idle,
    ):
        slow = idle(server)
        slow.sendall(b"GET /big HTTP/1.0\r\n\r\n")
        assert slow.recv(1)
        assert fetch(address, "/").status in (0, 503)
        clock.now += 1.5 * SLOW_SECONDS
        assert fetch(address, "/").status == 200


def test_client_of() -> None:
    """All of this machine's addresses are one client, and so is an IPv6 network of 64 bits."""
    assert client_of("127.0.0.1", "127.0.0.1") == client_of("127.9.9.9", "127.0.0.1") == LOCAL
    assert client_of("::1", "::1") == client_of("::ffff:127.0.0.2", "::ffff:127.0.0.1") == LOCAL
    assert client_of("10.0.0.7", "10.0.0.7") == LOCAL
    assert client_of("10.0.0.8", "10.0.0.7") == "10.0.0.8"
    assert client_of("fd00::1:2%eth0", "fd00::9") == client_of("fd00::3:4", "fd00::9") == "fd00::/64"


def test_crowding_client() -> None:
    """A client that takes its whole share takes no place from another one."""
    connections = Connections(max_requests=16, life_seconds=60.0, monotonic=ManualClock())
    with contextlib.ExitStack() as stack:

        def opened(client: str) -> tuple[socket.socket, bool]:
            made = stack.enter_context(socket.socket())
            admitted = connections.admit(made, client)
            connections.asked(made)
            return made, admitted

        crowd = [opened("local") for _ in range(18)]
        assert [admitted for _, admitted in crowd] == [True] * 16 + [False] * 2
        assert [connections.begin_answer(each) for each, _ in crowd[:5]] == [True] * 4 + [False]
        prometheus, admitted = opened("10.0.0.8")
        assert admitted
        assert connections.begin_answer(prometheus)
        connections.end_answer(crowd[0][0])
        assert connections.begin_answer(crowd[4][0])


def test_client_breaks_off() -> None:
    """Gone before the response, or not speaking HTTP."""
    with serving({"/": large(10_000_000)}) as (server, address):
        for words in (b"GET / HTTP/1.0\r\n\r\n", b"\x00\xff\r\n\r\n", b"GET /" + b"a" * 70_000 + b"\r\n\r\n"):
            with (
                socket.create_connection(server.listening_address(), timeout=DEADLINE_SECONDS) as client,
                contextlib.suppress(ConnectionError),  # closed with words of ours unread, it is reset
            ):
                client.sendall(words)
                client.recv(1)
        assert len(fetch(address, "/").body) == 10_000_000


def test_failing_page(caplog: pytest.LogCaptureFixture) -> None:
    """It costs only its own request: the slot is free again, and the log reports the bug."""

    def broken(headers: Message) -> Page:
        raise RuntimeError("a bug")

    with serving({**HELLO, "/broken": Route(broken)}, max_requests=1) as (server, address):
        for _ in range(3):
            with socket.create_connection(server.listening_address()) as client:
                client.sendall(b"GET /broken HTTP/1.0\r\n\r\n")
                assert client.recv(1) == b""
        until(lambda: fetch(address, "/").status == 200, "the slot is free")
    assert "could not answer a request from" in caplog.text
    assert "RuntimeError: a bug" in caplog.text


def test_address_in_use() -> None:
    with serving({}) as (server, address), pytest.raises(UserError, match="could not listen on"):
        MetricsServer(server.listening_address(), {}, max_requests=1, request_timeout_seconds=1)
    assert address.startswith("127.0.0.1:")


@contextmanager
def idle_clients() -> Iterator[Callable[[MetricsServer], socket.socket]]:
    """Opens connections that say nothing, and closes them at the end."""
    with contextlib.ExitStack() as opened:
        yield lambda server: opened.enter_context(
            socket.create_connection(server.listening_address(), timeout=DEADLINE_SECONDS)
        )


def test_no_file_descriptors() -> None:
    """The connection waits in the queue, and each failed attempt is followed by a pause."""
    server = MetricsServer(("127.0.0.1", 0), {}, max_requests=1, request_timeout_seconds=60.0)
    with socket.create_connection(server.listening_address()):
        began = time.monotonic()
        with no_descriptors(), pytest.raises(OSError, match="Too many open files"):
            server.get_request()
        assert time.monotonic() - began >= EXHAUSTED_SECONDS
        server.get_request()[0].close()
    server.server_close()
