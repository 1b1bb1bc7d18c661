"""Series as points of OpenTelemetry, in batches of limited size."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from opentelemetry.sdk.metrics.export import Gauge, Metric, Sum
from opentelemetry.sdk.metrics.export import Histogram as OtelHistogram

from rankwatch.conventions.metrics import metric
from rankwatch_agent.runtime.collector import Collection, Histogram, Series
from rankwatch_agent.runtime.otlp_metrics import TimeRange, metric_batches

RANGE = TimeRange(1_000, 2_000)
RECEIVED = metric("rankwatch_network_receive_bytes_total")
SENT = metric("rankwatch_network_transmit_bytes_total")
BOXES = metric("rankwatch_blackboxes")
STATE = metric("rankwatch_rank_state")
DURATION = metric("rankwatch_step_duration_seconds")


def metrics(*series: Series) -> dict[str, Metric]:
    (batch,) = metric_batches([Collection(series)], RANGE)
    return {each.name: each for each in batch}


def attributes(point: object) -> Mapping[str, str]:
    found = getattr(point, "attributes", None)
    assert isinstance(found, dict)
    return found


def test_direction_becomes_an_attribute() -> None:
    """Bytes received and sent are one monotonic sum since the start of the agent."""
    (found,) = metrics(Series(RECEIVED, ("eth0",), 7), Series(SENT, ("eth0",), 9)).values()
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
