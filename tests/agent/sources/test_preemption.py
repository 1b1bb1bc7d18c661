"""Notices of preemption, asked of a local server that answers as the clouds do."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from rankwatch_agent.runtime.collector import Schedule
from rankwatch_agent.runtime.errors import CollectError
from rankwatch_agent.runtime.node_events import NodeEvents
from rankwatch_agent.sources.preemption import PreemptionCollector
from support.servers.loopback import Handler, serving_http

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

        class Metadata(Handler):
            def answer(self) -> None:
                outer.asked.append((self.command, self.path, dict(self.headers)))
                body = ("t0ken" if self.command == "PUT" else outer.answer).encode()
                if outer.moved_to:
                    self.head(len(body), 302, Location=outer.moved_to)
                    self.wfile.write(body)
                else:
                    self.reply(body, 200 if body else 404)

        self.handler = Metadata
        self.address = ""

    def collector(self, cloud: str, events: NodeEvents) -> PreemptionCollector:
        server = f"http://{self.address}"
        return PreemptionCollector(
            cloud=cloud, events=events, schedule=Schedule(5, 5), server=server, wall=lambda: 1000.0
        )


@pytest.fixture
def metadata() -> Iterator[Metadata]:
    found = Metadata()
    with serving_http(found.handler) as found.address:
        yield found


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


@pytest.mark.parametrize(
    ("cloud", "header"),
    [("aws", "x-aws-ec2-metadata-token"), ("gcp", "metadata-flavor"), ("azure", "metadata")],
)
def test_headers(cloud: str, header: str, metadata: Metadata) -> None:
    """AWS wants a token, the others a header, so that no redirected request reaches them."""
    metadata.collector(cloud, NodeEvents()).collect()
    assert header in {each.lower() for each in metadata.asked[-1][2]}


@pytest.mark.parametrize("cloud", ["aws", "gcp", "azure"])
def test_redirect(cloud: str, metadata: Metadata) -> None:
    """What answers in place of the metadata server sends neither token nor question to another address."""
    metadata.answer, events = {"aws": AWS, "gcp": "TRUE", "azure": AZURE}[cloud], NodeEvents()
    metadata.moved_to = f"http://{metadata.address.replace('127.0.0.1', 'localhost')}/elsewhere"
    with pytest.raises(CollectError, match="302"):
        metadata.collector(cloud, events).collect()
    assert not any("elsewhere" in path for _, path, _ in metadata.asked)
    assert events.notices == ()


@pytest.mark.parametrize("cloud", ["aws", "gcp", "azure"])
@pytest.mark.parametrize("answer", ["[]", "{", "\x00", "[" * 5000, "<html>"])
def test_nonsense(cloud: str, answer: str, metadata: Metadata) -> None:
    """What makes no sense is an error of the collector, and never a notice."""
    metadata.answer, events = answer, NodeEvents()
    with contextlib.suppress(CollectError):
        metadata.collector(cloud, events).collect()
    assert events.notices == ()


def test_no_server() -> None:
    collector = PreemptionCollector(
        cloud="gcp", events=NodeEvents(), schedule=Schedule(5, 5), server="http://127.0.0.1:1"
    )
    with pytest.raises(CollectError, match="could not ask"):
        collector.collect()
