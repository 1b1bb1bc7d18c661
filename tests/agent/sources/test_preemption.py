"""Notices of preemption, asked of a local server that answers as the clouds do."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from rankwatch_agent.runtime.collector import Schedule
from rankwatch_agent.runtime.errors import CollectError
from rankwatch_agent.runtime.node_events import NodeEvents
from rankwatch_agent.sources.preemption import PreemptionCollector

AWS = '{"action": "terminate", "time": "2026-11-23T08:22:00Z"}'
AZURE = '{"DocumentIncarnation": 1, "Events": [{"EventType": "Preempt", "NotBefore": "Mon, 23 Nov 2026"}]}'


class Metadata:
    """A metadata server: one answer for each cloud, 404 where there is none."""

    def __init__(self) -> None:
        self.answer = ""
        self.moved_to = ""
        """Where every request is sent to."""
        self.asked: list[tuple[str, str, dict[str, str]]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.asked.append((self.command, self.path, dict(self.headers)))
                body = "t0ken" if self.command == "PUT" else outer.answer
                self.send_response(302 if outer.moved_to else 200 if body else 404)
                if outer.moved_to:
                    self.send_header("Location", outer.moved_to)
                self.end_headers()
                self.wfile.write(body.encode())

            def do_PUT(self) -> None:
                self.do_GET()

            def log_message(self, *_: object) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def collector(self, cloud: str, events: NodeEvents) -> PreemptionCollector:
        address = f"http://127.0.0.1:{self.server.server_port}"
        return PreemptionCollector(
            cloud=cloud, events=events, schedule=Schedule(5, 5), server=address, wall=lambda: 1000.0
        )


@pytest.fixture
def metadata() -> Iterator[Metadata]:
    found = Metadata()
    yield found
    found.server.shutdown()
    found.server.server_close()


@pytest.mark.parametrize(
    ("cloud", "before", "after", "text"),
    [
        ("aws", "", AWS, "AWS: terminate at 2026-11-23T08:22:00Z"),
        ("gcp", "FALSE", "TRUE", "Google Cloud: this machine is being preempted"),
        ("azure", '{"Events": []}', AZURE, "Azure: Preempt, not before Mon, 23 Nov 2026"),
    ],
)
def test_notice(cloud: str, before: str, after: str, text: str, metadata: Metadata) -> None:
    """One notice is one event, with the time at which it was seen first."""
    events = NodeEvents()
    collector = metadata.collector(cloud, events)
    metadata.answer = before
    assert collector.collect().series == ()
    metadata.answer = after
    for _ in range(2):
        ((series),) = collector.collect().series
        assert (series.labels, series.value) == ((cloud,), 1000.0)
    assert [each.text for each in events.notices] == [text]


def test_headers(metadata: Metadata) -> None:
    """AWS wants a token, the others a header, so that no redirected request reaches them."""
    for cloud, header in (
        ("aws", "X-Aws-Ec2-Metadata-Token"),
        ("gcp", "Metadata-Flavor"),
        ("azure", "Metadata"),
    ):
        metadata.answer = ""
        metadata.collector(cloud, NodeEvents()).collect()
        assert header.lower() in {each.lower() for each in metadata.asked[-1][2]}


@pytest.mark.parametrize("cloud", ["aws", "gcp", "azure"])
def test_redirect(cloud: str, metadata: Metadata) -> None:
    """What answers in place of the metadata server sends neither token nor question to another address."""
    metadata.answer, events = {"aws": AWS, "gcp": "TRUE", "azure": AZURE}[cloud], NodeEvents()
    metadata.moved_to = f"http://localhost:{metadata.server.server_port}/elsewhere"
    with pytest.raises(CollectError, match="302"):
        metadata.collector(cloud, events).collect()
    assert not any("elsewhere" in path for _, path, _ in metadata.asked)
    assert events.notices == ()


@pytest.mark.parametrize("cloud", ["aws", "gcp", "azure"])
@pytest.mark.parametrize("answer", ["[]", "{", "\x00", "[" * 5000, "<html>"])
def test_nonsense(cloud: str, answer: str, metadata: Metadata) -> None:
    """What makes no sense is an error of the collector, and never a notice."""
    metadata.answer = answer
    events = NodeEvents()
    collector = metadata.collector(cloud, events)
    with contextlib.suppress(CollectError):
        collector.collect()
    assert events.notices == ()


def test_no_server() -> None:
    collector = PreemptionCollector(
        cloud="gcp", events=NodeEvents(), schedule=Schedule(5, 5), server="http://127.0.0.1:1"
    )
    with pytest.raises(CollectError, match="could not ask"):
        collector.collect()
