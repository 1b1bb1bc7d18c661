"""The metrics of a small job, from which the pages of a large job are made.

128 simulated ranks on 16 nodes: 8 stages of 16 replicas, so each stage has a node with faulty replicas and a
healthy one. In the training job one rank computes 1.5 times as long; in the hang another rank sleeps.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from bench.simulation.hang import HangFault, HangKind
from bench.simulation.hang_job import HangJob, simulate_hang, write_hang_boxes, write_snapshots
from bench.simulation.job import Job, simulate
from bench.simulation.program import JobShape
from bench.simulation.workload import Fault, Noise, Workload
from rankwatch.conventions.metrics import METRICS, Kind, metric
from rankwatch.conventions.states import Cause
from rankwatch_agent.runtime.collector import Series
from rankwatch_agent.training.collectives.collector import RecordedRank
from rankwatch_agent.training.collector import RanksCollector
from rankwatch_agent.training.flight_recorder.ask import FlightRecorderClient
from support.training.replayed_job import RUN, scrape_live

STAGES, REPLICAS = 8, 16
SHAPE = JobShape(data_parallel=REPLICAS, pipeline_parallel=STAGES)
SLOW_STAGE, SLOW_REPLICA, SLOW_FACTOR = 5, 3, 1.5
ASLEEP_STAGE, ASLEEP_REPLICA = 3, 2
STEP_SECONDS = 2.0
"""Seconds of a healthy step, about."""
_STEPS = 16
_SIMULATED_STEP_SECONDS = 0.26
"""Seconds of a healthy step of this shape with the default workload."""
_LAST_COLLECTIVES = frozenset(
    f"rankwatch_collective_{each}"
    for each in (
        "last_enqueued",
        "last_completed",
        "oldest_incomplete_timestamp_seconds",
        "oldest_incomplete_signature",
    )
)
"""Metrics that change in a hang: the last collectives of each rank. All others keep their values."""
_PLACES = _LAST_COLLECTIVES | {"rankwatch_flight_recorder_silent_seconds"}
"""Exported only of ranks that are late: the simulated run is too short for its ranks to know what is late."""
_PULLS_PER_SECOND = 0.2
"""Pulls of each flight recorder, as for a run that seems stuck."""
_SERIES = re.compile(r"(\w+)\{(.*)\}")
_LABEL = re.compile(r'(\w+)="([^"]*)"')


class Line(NamedTuple):
    """A series of one rank or node. At t seconds into the run its value is `value + rate * t`."""

    name: str
    labels: Mapping[str, str]
    """Labels of the agent; `rank`, `group` and `members` as in the small job."""
    value: float
    rate: float

    @property
    def is_moment(self) -> bool:
        """True if the value is a Unix time, here counted from the beginning of the run."""
        return self.name.endswith("_timestamp_seconds")


@dataclass(frozen=True, kw_only=True)
class Template:
    """Lines by node of the small job."""

    training: Mapping[int, list[Line]]
    """Lines of the training job, without those of flight recorders."""
    last_collectives: Mapping[int, list[Line]]
    """What flight recorders add in the training job."""
    hung: Mapping[int, list[Line]]
    """Last collectives in the hang, from black boxes and flight recorders. Times count from its beginning."""


def make_template(*, large: bool) -> Template:
    """Simulate both jobs and read them with real collectors, which takes some seconds.

    large: as a run of more ranks than `max_single_ranks` is exported.
    """
    training, hung = _training(large), _hung()
    names = {each.labels["members"]: each.labels["group"] for each in training if "members" in each.labels}
    renamed = [
        each._replace(labels={**each.labels, "group": names[each.labels["members"]]})
        if "members" in each.labels
        else each
        for each in hung
    ]
    pulls = [each for each in renamed if each.name not in _PLACES]
    return Template(
        training=_by_node([each for each in training if each.name not in _PLACES]),
        last_collectives=_by_node(pulls),
        hung=_by_node(renamed),
    )


def _training(large: bool) -> list[Line]:
    workload = Workload()
    stretch = STEP_SECONDS / _SIMULATED_STEP_SECONDS
    paced = {name: value * stretch for name, value in vars(workload).items() if name.endswith("_seconds")}
    job = Job(
        shape=SHAPE,
        workload=Workload(**paced),
        fault=Fault(
            cause=Cause.SLOW_RANK, ranks=(SHAPE.rank(SLOW_STAGE, SLOW_REPLICA, 0),), factor=SLOW_FACTOR
        ),
        noise=Noise(sigma=0.02),
        steps=_STEPS,
        seed=1,
        with_work=True,
    )
    run = simulate(job)
    interval = float(run.step_seconds.mean())
    names = frozenset(each.name for each in METRICS)
    with tempfile.TemporaryDirectory() as name:
        scrapes = scrape_live(run, SHAPE, Path(name), names=names, interval_seconds=interval, large=large)
    now, half = (scrapes.count - 1) * interval, scrapes.count // 2
    seconds = (scrapes.count - 1 - half) * interval
    found = []
    for series, values in scrapes.values.items():
        last, middle = values[-1], values[half]
        if last is None or middle is None:
            continue  # a series that starts or ends in between
        matched = _SERIES.fullmatch(series)
        assert matched is not None, series
        labels = dict(_LABEL.findall(matched[2]))
        found.append(_line(matched[1], labels, middle, last, seconds, now))
    return found


def _line(name: str, labels: dict[str, str], middle: float, last: float, seconds: float, now: float) -> Line:
    """Counters keep their rate. The value at the last scrape is the first one of the large run."""
    del labels["cluster"], labels["instance"]
    if name.endswith("_timestamp_seconds"):
        return Line(name, labels, last - now, 1.0) if last != middle else Line(name, labels, -now, 0.0)
    grows = metric(name).kind is Kind.COUNTER or name in _LAST_COLLECTIVES or name == "rankwatch_step"
    return Line(name, labels, last, (last - middle) / seconds if grows else 0.0)


def _hung() -> list[Line]:
    """Last collectives of the hung job, from its black boxes and its recorders."""
    asleep = SHAPE.rank(ASLEEP_STAGE, ASLEEP_REPLICA, 0)
    job = HangJob(shape=SHAPE, fault=HangFault(kind=HangKind.SLEEP, ranks=(asleep,)))
    hang = simulate_hang(job)
    with tempfile.TemporaryDirectory() as name:
        boxes, dumps = Path(name) / "boxes", Path(name) / "dumps"
        write_hang_boxes(hang, job, boxes, run=RUN)
        series = list(RanksCollector(directory=boxes).collect().series)
        write_snapshots(hang.snapshots, dumps, "json")
        counted: dict[str, set[tuple[str, str, str]]] = {}
        for each in series:
            if each.metric.name == "rankwatch_collectives_total":
                _, rank, *kind = each.labels
                counted.setdefault(rank, set()).add((kind[0], kind[1], kind[2]))
        for number in range(SHAPE.ranks):
            series += _recorded(str(number), dumps / f"_dump_{number}.json", counted.get(str(number), set()))
    return [line for each in series for line in _hung_lines(each)]


def _recorded(rank: str, dump: Path, counted: Set[tuple[str, str, str]]) -> Iterator[Series]:
    recorded = RecordedRank(FlightRecorderClient(dump.with_suffix(".sock"), os.geteuid()), max_groups=64)
    recorded.take(0.0, {"fr_trace": bytearray(dump.read_bytes())}, ())
    for each in (*recorded.places((RUN, rank), 0.0, counted), *recorded.series((RUN, rank), counted)):
        if each.metric.name in _LAST_COLLECTIVES or each.metric.name.startswith("rankwatch_flight_recorder_"):
            yield each


def _hung_lines(series: Series) -> Iterator[Line]:
    name = series.metric.name
    if name not in _LAST_COLLECTIVES and not name.startswith("rankwatch_flight_recorder_"):
        return
    labels = dict(zip((each.value for each in series.metric.labels), series.labels, strict=True))
    labels["node"] = f"node-{int(labels['rank']) // 8}"
    if name.endswith("_timestamp_seconds"):
        yield Line(name, labels, 0.0, 0.0)
    elif labels.get("outcome") == "success":
        yield Line(name, labels, series.value, _PULLS_PER_SECOND)
    else:
        yield Line(name, labels, series.value, 0.0)


def _by_node(lines: list[Line]) -> dict[int, list[Line]]:
    nodes: dict[int, list[Line]] = {}
    for each in lines:
        node = int(each.labels["node"].removeprefix("node-"))
        nodes.setdefault(node, []).append(each)
    return nodes
