"""Exports to a real OTLP endpoint, also to one that fails."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from rankwatch.conventions.metrics import metric
from rankwatch_agent.runtime.collector import Collection, Series
from rankwatch_agent.runtime.errors import UserError
from rankwatch_agent.runtime.otlp_endpoint import (
    EXPORTER_LOGGER,
    QUIET_SECONDS,
    OtlpSettings,
    QuietFilter,
    build_resource,
)
from rankwatch_agent.runtime.otlp_metrics import OtlpExport
from rankwatch_agent.runtime.reread import load_headers, parse_headers
from rankwatch_agent.runtime.supervisor import Snapshot
from support.agent.process import DEADLINE_SECONDS, ManualClock, load, until, values
from support.servers.otlp import OtlpReceiver, numbers, otlp_receiver, refusing_url
from support.servers.receiver import Mode

FOR_EVER = 3600.0
LOAD = ("system.cpu.logical.count", frozenset[tuple[str, str]]())
SENT = ("rankwatch_otlp_batches_total", "sent")
DROPPED = ("rankwatch_otlp_batches_total", "dropped")
RESOURCE = build_resource(node="n1", cluster="c1", version="1.2.3")


@contextlib.contextmanager
def exporting(
    url: str,
    *collections: Collection,
    timeout: float = DEADLINE_SECONDS,
    max_points: int = 5000,
    headers_file: Path | None = None,
) -> Iterator[OtlpExport]:
    """An export every few milliseconds, stopped at the end."""
    settings = OtlpSettings(
        endpoint=url,
        interval_seconds=0.02,
        timeout_seconds=timeout,
        headers_file=headers_file,
        max_points=max_points,
    )
    export = OtlpExport(lambda: Snapshot(collections or (load(1.5),), ()), settings, RESOURCE)
    export.start()
    try:
        yield export
    finally:
        export.stop(DEADLINE_SECONDS)


def received(points: int) -> Collection:
    receive = metric("rankwatch_network_receive_bytes_total")
    return Collection([Series(receive, (f"eth{number}",), number) for number in range(points)])


def counts(export: OtlpExport) -> dict[tuple[str, ...], float]:
    return values(export.snapshot().collections)


def test_receives_the_snapshot() -> None:
    """The export includes its own counters and a resource that names the agent. It is compressed."""
    with otlp_receiver() as receiver, exporting(receiver.url) as export:
        first, _, last = receiver.wait(3)[:3]
        until(lambda: counts(export)[SENT] >= 3, "the exports are counted")
        assert counts(export)[DROPPED] == 0
    assert first.headers["Content-Encoding"] == "gzip"
    assert first.resource().items() >= {
        ("service.name", "rankwatch-agent"),
        ("service.version", "1.2.3"),
        ("host.name", "n1"),
        ("k8s.cluster.name", "c1"),
    }
    assert numbers(first.metrics())[LOAD] == 1.5
    batches = [
        ("rankwatch.otlp.batches", frozenset({("rankwatch.outcome", each)})) for each in ("sent", "dropped")
    ]
    assert [[numbers(each.metrics())[name] for name in batches] for each in (first, last)] == [[0, 0], [2, 0]]
    assert counts(export)["rankwatch_otlp_last_success_timestamp_seconds",] > 1.7e9


def test_start_time_of_sums() -> None:
    """The start of the agent: the same in every export, and before the time of the point."""
    cpu = Collection([Series(metric("rankwatch_host_cpu_seconds_total"), ("user",), 12.5)])
    with otlp_receiver() as receiver, exporting(receiver.url, cpu):
        exports = receiver.wait(2)
    metrics = [each for export in exports for each in export.metrics() if each.name == "system.cpu.time"]
    first, second, *_ = (point for each in metrics for point in each.sum.data_points)
    assert first.start_time_unix_nano == second.start_time_unix_nano
    assert 0 < first.start_time_unix_nano < first.time_unix_nano < second.time_unix_nano
    assert first.as_double == 12.5


def test_large_snapshot() -> None:
    """It goes out in several batches. All points arrive, and each batch is counted."""
    with otlp_receiver() as receiver, exporting(receiver.url, received(25), max_points=10) as export:
        batches = receiver.wait(3)[:3]
        until(lambda: counts(export)[SENT] >= 3, "the batches are counted")
    arrived = [
        value for batch in batches for (name, _), value in numbers(batch.metrics()).items() if "io" in name
    ]
    assert sorted(arrived) == list(range(25))
    assert all(len(numbers(batch.metrics())) <= 10 for batch in batches)


@pytest.mark.parametrize("mode", [Mode.UNAVAILABLE, Mode.GARBAGE, Mode.REDIRECT, Mode.HANG])
def test_rejected_batches(mode: Mode) -> None:
    """They are dropped and counted. Later batches are sent once the endpoint accepts them."""
    with otlp_receiver(mode) as receiver, exporting(receiver.url, timeout=0.2) as export:
        until(lambda: counts(export)[DROPPED] >= 2, "batches are dropped")
        assert counts(export)[SENT] == 0
        receiver.mode = Mode.ACCEPT
        until(lambda: counts(export)[SENT] >= 1, "a batch is sent")


def test_failure_ends_the_export() -> None:
    """Each further batch could take the whole timeout."""
    with (
        otlp_receiver(Mode.REDIRECT) as receiver,
        exporting(receiver.url, received(8), max_points=5) as export,
    ):
        until(lambda: counts(export)[DROPPED] >= 8, "four exports of two batches are dropped")
        tried = len(receiver.exports)  # asked for first: of an export that is going on nothing is dropped yet
        assert tried <= counts(export)[DROPPED] / 2 + 1


def test_endless_response() -> None:
    """It is not read, so it takes neither time nor memory."""
    with otlp_receiver(Mode.ENDLESS) as receiver, exporting(receiver.url, timeout=FOR_EVER) as export:
        until(lambda: counts(export)[SENT] >= 3, "exports go on")


def test_stop_ends_a_retry() -> None:
    """The exporter would wait for seconds more."""
    with otlp_receiver(Mode.UNAVAILABLE) as receiver, exporting(receiver.url, timeout=FOR_EVER) as export:
        receiver.wait(1)
        export.stop(DEADLINE_SECONDS)
        assert not [thread for thread in threading.enumerate() if thread.name == "otlp"]


def header(receiver: OtlpReceiver, wanted: str) -> str | None:
    """A header of the last export."""
    last = list(receiver.exports)[-1:]
    return next(
        (value for each in last for name, value in each.headers.items() if name.lower() == wanted), None
    )


def replace(path: Path, text: str) -> None:
    """In one step: a file that is being written is empty for a moment."""
    new = path.with_suffix(".new")
    new.write_text(text)
    new.replace(path)


def test_headers_file_changes(tmp_path: Path) -> None:
    """New headers are sent. A file that is broken later leaves the previous headers in use."""
    path = tmp_path / "headers"
    path.write_text("X-Team=one\n")
    with otlp_receiver() as receiver, exporting(receiver.url, headers_file=path):
        until(lambda: header(receiver, "x-team") == "one", "the header arrives")
        replace(path, "X-Team=second\n")
        until(lambda: header(receiver, "x-team") == "second", "the new header arrives")
        replace(path, "broken")
        before = len(receiver.exports)
        receiver.wait(before + 2)
        assert header(receiver, "x-team") == "second"


def test_headers_file_wins_over_netrc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The HTTP library reads ~/.netrc by itself, for every host in it."""
    netrc, headers = tmp_path / "netrc", tmp_path / "headers"
    netrc.write_text("machine 127.0.0.1 login somebody password else\n")
    netrc.chmod(0o600)
    headers.write_text("Authorization=Bearer ours\n")
    monkeypatch.setenv("NETRC", str(netrc))
    with otlp_receiver() as receiver, exporting(receiver.url, headers_file=headers):
        receiver.wait(1)
    assert header(receiver, "authorization") == "Bearer ours"


def test_log_of_a_failing_endpoint(caplog: pytest.LogCaptureFixture) -> None:
    """One sentence of ours without the password in the URL, and one of the exporter with the cause."""
    with (
        refusing_url() as url,
        exporting(url.replace("http://", "http://user:secret@"), timeout=0.05) as export,
    ):
        until(lambda: counts(export)[DROPPED] >= 5, "batches are dropped")
        assert counts(export)[SENT] == 0
    ours = [record for record in caplog.records if record.name.startswith("rankwatch_agent")]
    theirs = [record for record in caplog.records if record.name == EXPORTER_LOGGER.name]
    assert (len(ours), len(theirs)) == (1, 1)
    assert ours[0].getMessage().startswith("could not send metrics over OTLP to 127.0.0.1:")
    assert "secret" not in caplog.text
    assert not EXPORTER_LOGGER.filters


def test_exporter_logs_once_a_minute() -> None:
    """The cause may change, and a log may be rotated."""
    clock = ManualClock()
    quiet = QuietFilter(clock)
    record = logging.makeLogRecord({})
    assert [quiet.filter(record), quiet.filter(record)] == [True, False]
    clock.now += QUIET_SECONDS
    assert quiet.filter(record)


def test_header_lines() -> None:
    """A value may hold an equals sign. Empty lines and comments are skipped."""
    text = "# credentials\n\nAuthorization=Basic dXNlcjo=\nX-Scope-OrgID = team \n"
    assert parse_headers(text) == {"Authorization": "Basic dXNlcjo=", "X-Scope-OrgID": "team"}


@pytest.mark.parametrize("line", ["secret", "=secret", "a b=secret", "name=secret\x00", "name=secr\u00e9t"])
def test_wrong_header_line(tmp_path: Path, line: str) -> None:
    """The error names its number and does not show the secret."""
    path = tmp_path / "headers"
    path.write_text(f"ok=1\n{line}\n", encoding="utf-8")
    with pytest.raises(UserError) as raised:
        load_headers(path)
    assert str(raised.value) == f"could not use otlp_headers_file {path}: expected NAME=VALUE in line 2"


def test_unreadable_headers_file(tmp_path: Path) -> None:
    """It is missing, or not text: the error is raised before anything is sent."""
    with (
        refusing_url() as url,
        pytest.raises(UserError, match=r"could not read otlp_headers_file .*: No such file"),
        exporting(url, headers_file=tmp_path / "missing"),
    ):
        pass
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(UserError, match="could not read otlp_headers_file"):
        load_headers(tmp_path / "binary")
