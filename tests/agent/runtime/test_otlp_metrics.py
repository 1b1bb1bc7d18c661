"""Metrics go to a real OTLP endpoint, also to one that fails, as points in batches of limited size."""

from __future__ import annotations

import contextlib
import logging
import math
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from opentelemetry.sdk.metrics.export import Gauge, Metric, Sum
from opentelemetry.sdk.metrics.export import Histogram as OtelHistogram

from rankwatch.conventions.metrics import metric
from rankwatch_agent.runtime.collector import Collection, Histogram, Series
from rankwatch_agent.runtime.errors import UserError
from rankwatch_agent.runtime.otlp_endpoint import (
    EXPORTER_LOGGER,
    QUIET_SECONDS,
    OtlpSettings,
    QuietFilter,
    build_resource,
)
from rankwatch_agent.runtime.otlp_metrics import OtlpExport, TimeRange, metric_batches
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
RANGE = TimeRange(1_000, 2_000)
RECEIVED = metric("rankwatch_network_receive_bytes_total")
TRANSMITTED = metric("rankwatch_network_transmit_bytes_total")
BOXES = metric("rankwatch_blackboxes")
STATE = metric("rankwatch_rank_state")
DURATION = metric("rankwatch_step_duration_seconds")


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
    return Collection([Series(RECEIVED, (f"eth{number}",), number) for number in range(points)])


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


def metrics(*series: Series) -> dict[str, Metric]:
    (batch,) = metric_batches([Collection(series)], RANGE)
    return {each.name: each for each in batch}


def attributes(point: object) -> Mapping[str, str]:
    found = getattr(point, "attributes", None)
    assert isinstance(found, dict)
    return found


def test_direction_becomes_an_attribute() -> None:
    """Bytes received and sent are one monotonic sum since the start of the agent."""
    (found,) = metrics(Series(RECEIVED, ("eth0",), 7), Series(TRANSMITTED, ("eth0",), 9)).values()
    assert isinstance(found.data, Sum)
    assert (found.name, found.unit, found.data.is_monotonic) == ("system.network.io", "By", True)
    assert [(dict(attributes(point)), point.value) for point in found.data.data_points] == [
        ({"network.io.direction": "receive", "network.interface.name": "eth0"}, 7.0),
        ({"network.io.direction": "transmit", "network.interface.name": "eth0"}, 9.0),
    ]
    assert {(p.start_time_unix_nano, p.time_unix_nano) for p in found.data.data_points} == {RANGE}


def test_non_monotonic_sums() -> None:
    """Sizes that the conventions add up are sums that may fall. All other gauges are gauges."""
    memory = metric("rankwatch_gpu_memory_used_bytes")
    found = metrics(Series(memory, ("GPU-1",), 5), Series(BOXES, (), 1.5))
    used, boxes = found["hw.gpu.memory.usage"].data, found["rankwatch.blackboxes"].data
    assert isinstance(used, Sum) and not used.is_monotonic
    assert dict(attributes(used.data_points[0])) == {"hw.id": "GPU-1", "hw.type": "gpu"}
    assert isinstance(boxes, Gauge)
    assert boxes.data_points[0].value == 1.5


def test_histogram() -> None:
    """Buckets of Prometheus are cumulative and end in +Inf, those of OTLP are not. No min and max."""
    buckets = ((0.1, 2), (1.0, 5), (math.inf, 6))
    collection = Collection((), (Histogram(DURATION, ("run-1",), buckets, 4.5),))
    ((found,),) = metric_batches([collection], RANGE)
    assert isinstance(found.data, OtelHistogram)
    (point,) = found.data.data_points
    assert (point.bucket_counts, point.explicit_bounds) == ([2, 3, 1], [0.1, 1.0])
    assert (point.count, point.sum, point.min, point.max) == (6, 4.5, None, None)


def test_batch_size() -> None:
    """A metric may span several batches, and a batch may hold several metrics. No point is lost."""
    series = [Series(RECEIVED, (f"eth{number}",), number) for number in range(7)]
    series += [Series(STATE, ("run", str(number), "running"), 1) for number in range(6)]
    batches = list(metric_batches([Collection(series[:4]), Collection(series[4:])], RANGE, max_points=4))
    assert [sum(map(size, batch)) for batch in batches] == [4, 4, 4, 1]
    io, state = "system.network.io", "rankwatch.rank.state"
    assert [[each.name for each in batch] for batch in batches] == [[io], [io, state], [state], [state]]


def size(of: Metric) -> int:
    assert not isinstance(of.data, OtelHistogram)
    points: Sequence[object] = of.data.data_points
    return len(points)


def test_duplicate_series() -> None:
    """The first is kept, as in the exposition."""
    (found,) = metrics(Series(BOXES, (), 1), Series(BOXES, (), 2)).values()
    assert [point.value for point in found.data.data_points if hasattr(point, "value")] == [1.0]


def test_series_that_look_alike() -> None:
    """Nor is one sent twice whose labels differ in what is not shown: a receiver would refuse its batch, with
    the points of others in it."""
    series = [Series(STATE, ("job" + hidden, "0", "running"), 1) for hidden in ("\u200b", "\u200c", "\1", "")]
    long = [Series(STATE, (end * 300, "0", "running"), 1) for end in "ab"]
    points = metrics(*series, *long)["rankwatch.rank.state"].data.data_points
    assert [attributes(each)["rankwatch.run"] for each in points[:2]] == ["job?", "job"]
    assert len(points) == 4


def test_odd_labels_and_numbers() -> None:
    """Bytes that are not text, empty labels, numbers too large for 64 bits, and NaN."""
    mig = metric("rankwatch_gpu_slurm_info")
    found = metrics(
        Series(mig, ("GPU-1", "", "7\udcff"), 1),
        Series(RECEIVED, ("eth0",), 10**400),
        Series(BOXES, (), math.nan),
    )
    points = {name: each.data.data_points[0] for name, each in found.items()}
    slurm = {"hw.id": "GPU-1", "rankwatch.slurm_job": "7?"}
    assert dict(attributes(points["rankwatch.gpu.slurm_info"])) == slurm
    assert getattr(points["system.network.io"], "value", None) == math.inf
    assert math.isnan(getattr(points["rankwatch.blackboxes"], "value", 0))


def test_port_identifier() -> None:
    """The conventions require one identifier for each component of a host."""
    up = metric("rankwatch_rdma_port_up")
    (found,) = metrics(Series(up, ("mlx5_0", "1"), 1)).values()
    assert attributes(found.data.data_points[0])["hw.id"] == "mlx5_0/1"


def test_no_series() -> None:
    assert list(metric_batches([Collection()], RANGE)) == []
