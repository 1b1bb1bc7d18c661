"""Spans go to a real OTLP receiver, also to one that fails, and to a file."""

from __future__ import annotations

import contextlib
import json
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme

from rankwatch_agent.agent import Agent
from rankwatch_agent.runtime.config import AgentConfig
from rankwatch_agent.runtime.otlp_endpoint import OtlpSettings, build_resource
from rankwatch_spans import sending
from rankwatch_spans.queue import SpanLink, SpanQueue, TraceSpan
from rankwatch_spans.sending import MAX_BATCH, OtlpSpans, SpanFile, SpanSender, SpanSink, build_sender
from rankwatch_spans.source import sending as service
from support.agent.process import DEADLINE_SECONDS, FakeCollector, fetch, load, until
from support.servers.otlp import refusing_url
from support.servers.receiver import Mode
from support.servers.spans import SpanReceiver, check_traces, span_receiver

IMPATIENT_SECONDS = 0.75
"""Less than the first pause of the exporter, so that it hands back at once what was refused."""
RESOURCE = build_resource(node="n1", cluster="c1", version="1.2.3")


def span(number: int, *, parental: bool = False) -> TraceSpan:
    attributes, links = {"rankwatch.step": number}, (SpanLink(8, 9, "attempt"),)
    return TraceSpan(7, number, 0, "step", 10, 20, attributes, links, parental=parental)


@pytest.fixture
def queue() -> SpanQueue:
    return SpanQueue(1000)


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sending, "_RETRY_SECONDS", 0.05)
    monkeypatch.setattr(sending, "_PAUSE_SECONDS", 0.02)
    monkeypatch.setattr(sending, "_GATHER_SECONDS", 0.0)


@contextlib.contextmanager
def sender(queue: SpanQueue, *sinks: SpanSink) -> Iterator[SpanSender]:
    started = SpanSender(queue, sinks, RESOURCE)
    started.start()
    try:
        yield started
    finally:
        started.stop(DEADLINE_SECONDS)


def to(url: str, timeout: float = DEADLINE_SECONDS, headers_file: Path | None = None) -> OtlpSpans:
    return OtlpSpans(
        OtlpSettings(endpoint=url, interval_seconds=1.0, timeout_seconds=timeout, headers_file=headers_file)
    )


def test_spans_arrive(queue: SpanQueue, tmp_path: Path) -> None:
    """With their ids, attributes, links and times, and with the headers of the metrics."""
    headers = tmp_path / "headers"
    headers.write_text("X-Scope-OrgID=team\n")
    with span_receiver() as receiver, sender(queue, to(receiver.url, headers_file=headers)):
        queue.add([span(1), span(2)._replace(parent=1, error="lost", links=())])
        until(lambda: queue.sent == 2, "both are sent")
    first, second = receiver.spans
    assert (first.trace, first.span, first.parent) == (f"{7:032x}", f"{1:016x}", "")
    assert (first.start, first.end, first.attributes, first.failed) == (10, 20, {"rankwatch.step": 1}, False)
    assert first.links == ((f"{8:032x}", f"{9:016x}"),)
    assert (second.parent, second.failed) == (first.span, True)
    assert receiver.headers[0]["x-scope-orgid"] == "team"


@pytest.mark.parametrize("mode", [Mode.UNAVAILABLE, Mode.REDIRECT, Mode.NOT_FOUND])
def test_refused_spans_come_later(queue: SpanQueue, mode: Mode) -> None:
    """A receiver that says no does not have them, so they are kept and sent again, each once."""
    with span_receiver(mode) as receiver, sender(queue, to(receiver.url, timeout=IMPATIENT_SECONDS)):
        queue.add(map(span, range(1, 6)))
        until(lambda: receiver.requests >= 2, "the receiver refuses")
        receiver.mode = Mode.ACCEPT
        until(lambda: queue.sent == 5, "all arrive")
    check_traces(receiver.spans)
    assert (len(receiver.spans), queue.dropped) == (5, 0)


@pytest.mark.parametrize(
    ("mode", "first", "requests", "taken"),
    [
        *((mode, span(1), 2, {1, 2}) for mode in (Mode.HANG, Mode.DRIBBLE, Mode.GARBAGE)),
        (Mode.INVALID, span(1), 2, {2}),
        (Mode.ACCEPT, span(1)._replace(start=1 << 70, end=1 << 70), 1, {2}),
    ],
    ids=["hangs", "dribbles", "answers garbage", "calls it invalid", "cannot be encoded"],
)
def test_batch_that_is_given_up(
    queue: SpanQueue, mode: Mode, first: TraceSpan, requests: int, taken: set[int]
) -> None:
    """A receiver without a proper answer may have it: once lost is better than twice there. It holds up
    nothing behind it."""
    with span_receiver(mode) as receiver, sender(queue, to(receiver.url, timeout=2.0)):
        queue.add([first])
        until(lambda: queue.dropped == 1, "the batch is given up")
        receiver.mode = Mode.ACCEPT
        queue.add([span(2)])
        until(lambda: queue.sent == 1, "the next one arrives")
        assert receiver.requests == requests
    check_traces(receiver.spans)
    assert {int(each.span, 16) for each in receiver.spans} == taken


@pytest.mark.parametrize("mode", [Mode.HANG, Mode.DRIBBLE])
def test_slow_receiver_of_traces(mode: Mode) -> None:
    """Scrapes, those who make spans, and the end do not wait for it. What does not fit is dropped."""
    queue = SpanQueue(MAX_BATCH)
    spans = [span(number) for number in range(1, MAX_BATCH + 1)]
    with span_receiver(mode) as receiver:
        config = AgentConfig(
            listen="127.0.0.1:0", node="n1", traces_endpoint=receiver.url, otlp_timeout_seconds=3600
        )
        services = [service(build_sender(config, queue), lambda: queue.add(spans))]
        with Agent(config, [FakeCollector(act=lambda: load(2.5))], services=services) as agent:
            queue.add(spans)
            until(lambda: receiver.requests == 1, "the receiver has a batch")
            queue.add([*spans, *spans])

            def metrics() -> str:
                return fetch(agent.address, "/metrics").body.decode()

            until(lambda: 'rankwatch_host_cpus{node="n1"} 2.5\n' in metrics(), "the collector has run")
        assert not receiver.released.is_set()
        assert (len(queue), queue.dropped) == (MAX_BATCH, 2 * MAX_BATCH)


LARGE = span(1)._replace(attributes={"rankwatch.run": "x" * 5000})


@pytest.mark.parametrize(
    ("first", "sent", "dropped"),
    [(span(1), 199, 0), (LARGE, 198, 1)],
    ids=["batches are halved", "one span is too large"],
)
def test_receiver_of_small_requests(queue: SpanQueue, first: TraceSpan, sent: int, dropped: int) -> None:
    """It gets all spans in several, but one that is larger than it takes."""
    with span_receiver(Mode.TOO_LARGE) as receiver:
        receiver.most = 3000
        queue.add([first, *map(span, range(2, 200))])
        with sender(queue, to(receiver.url)):
            until(lambda: queue.sent == sent, "all others arrive")
    check_traces(receiver.spans)
    assert (len(receiver.spans), queue.dropped) == (sent, dropped)


def test_receiver_that_wants_a_pause(queue: SpanQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is left alone for as long as it says, and no longer than is sensible."""
    monkeypatch.setattr(sending, "_MOST_PAUSE_SECONDS", 1000.0)
    pauses: list[float] = []
    with (
        span_receiver(Mode.TOO_MANY) as receiver,
        sender(queue, to(receiver.url, timeout=IMPATIENT_SECONDS)) as started,
    ):
        receiver.retry_after = "86400"
        wait = started._stopping.wait
        monkeypatch.setattr(started._stopping, "wait", lambda seconds: pauses.append(seconds) or wait(0.02))
        queue.add([span(1)])
        until(lambda: 1000.0 in pauses, "it waits")
        receiver.mode = Mode.ACCEPT
        until(lambda: queue.sent == 1, "it arrives")
    assert len(receiver.spans) == 1


def test_unknown_certificate(queue: SpanQueue, caplog: pytest.LogCaptureFixture) -> None:
    """The receiver has not got the spans: they are kept, and the log says why."""
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    receiver = SpanReceiver(Mode.ACCEPT)
    receiver.secure(context)
    with receiver.listening(), sender(queue, to(receiver.url)):
        queue.add([span(1)])
        until(lambda: "certificate" in caplog.text, "the log says so")
        until(lambda: len(queue) == 1, "it waits")
    assert (receiver.requests, queue.dropped) == (0, 0)


@pytest.mark.parametrize("mode", [Mode.NOT_FOUND, Mode.REDIRECT])
def test_log_names_the_reason(queue: SpanQueue, mode: Mode, caplog: pytest.LogCaptureFixture) -> None:
    """One line: the receiver without credentials, its answer, and for a wrong path what to look at."""
    with span_receiver(mode) as receiver:
        url = receiver.url.replace("http://", "http://user:secret@")
        with sender(queue, to(url)):
            queue.add([span(1)])
            until(lambda: receiver.requests >= 2, "the receiver refuses")
    (line,) = [each.getMessage() for each in caplog.records if each.name == sending.__name__]
    assert f"127.0.0.1:{receiver.server_port}" in line
    assert "secret" not in line
    expected = {Mode.NOT_FOUND: "404; does the address lack /v1/traces?", Mode.REDIRECT: "redirect"}[mode]
    assert expected in line


def test_receiver_dies_and_returns(queue: SpanQueue) -> None:
    """What was refused meanwhile arrives afterwards."""
    with span_receiver() as first:
        address = ("127.0.0.1", first.server_port)
        with sender(queue, to(first.url, timeout=IMPATIENT_SECONDS)):
            queue.add([span(1)])
            until(lambda: queue.sent == 1, "it arrives")
            first.shutdown()
            first.server_close()
            queue.add([span(2)])
            until(lambda: len(queue) == 1 or queue.sent == 1, "it waits")
            with span_receiver(address=address) as second:
                until(lambda: queue.sent == 2, "it arrives at the next receiver")
    check_traces([*first.spans, *second.spans])


def test_queue_is_bounded() -> None:
    """Without a receiver the oldest go first, and those that others have as parents last."""
    queue = SpanQueue(100)
    queue.add([span(1, parental=True)])
    queue.add(map(span, range(2, 500)))
    assert (len(queue), queue.dropped) == (100, 399)
    left = {each.span for each in queue.take(100)}
    assert left == {1, *range(401, 500)}
    queue.add(span(number, parental=True) for number in range(500))
    assert len(queue) == 100


def test_missing_receiver_costs_no_more() -> None:
    """The thread ends although nobody listens."""
    queue = SpanQueue(10)
    with refusing_url() as url, sender(queue, to(url, timeout=0.2)):
        queue.add(map(span, range(1, 50)))
        until(lambda: queue.dropped >= 39, "the queue is full")


def test_file(queue: SpanQueue, tmp_path: Path) -> None:
    """One line of OTLP's JSON for each batch, with hexadecimal ids."""
    path = tmp_path / "traces" / "spans.jsonl"
    with sender(queue, SpanFile(path, 1 << 20)):
        queue.add([span(1)])
        until(lambda: queue.sent == 1, "it is written")
    found = json.loads(path.read_text())["resourceSpans"][0]
    (written,) = found["scopeSpans"][0]["spans"]
    assert written == written | {
        "traceId": f"{7:032x}",
        "spanId": f"{1:016x}",
        "startTimeUnixNano": "10",
        "attributes": [{"key": "rankwatch.step", "value": {"intValue": "1"}}],
    }
    assert written["links"][0]["spanId"] == f"{9:016x}"
    assert {"key": "host.name", "value": {"stringValue": "n1"}} in found["resource"]["attributes"]


def test_file_rotates(tmp_path: Path) -> None:
    """Both files together stay below the limit, and hold whole lines."""
    path = tmp_path / "spans.jsonl"
    queue = SpanQueue(100_000)
    limit = 40_000
    with sender(queue, SpanFile(path, limit)):
        for round_ in range(30):
            queue.add(span(1 + round_ * 20 + each) for each in range(20))
            until(lambda: not len(queue), "it is written")
    files = sorted(tmp_path.iterdir())
    assert [each.name for each in files] == ["spans.jsonl", "spans.jsonl.1"]
    assert sum(each.stat().st_size for each in files) <= limit
    for each in files:
        assert all(json.loads(line) for line in each.read_text().splitlines())


def test_file_that_cannot_be_written(queue: SpanQueue, tmp_path: Path) -> None:
    """It is counted, and nothing else happens."""
    (tmp_path / "file").write_text("")
    with sender(queue, SpanFile(tmp_path / "file" / "spans", 1 << 20)):
        queue.add([span(1)])
        until(lambda: queue.dropped == 1, "it is dropped")
