"""The recorded runs: which faults they have, which alert each must raise, and how they are stored."""

from __future__ import annotations

import lzma
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rankwatch_alerts import HARDWARE_ALERTS, Alert, RuleConfig

FILE = Path(__file__).with_name("runs.openmetrics.xz")
"""All series of the recorded runs: what agents export, what rules record, and the alerts. `record.py` beside
it made it from trainers, an agent, and a Prometheus with the generated rules."""
INTERVAL_SECONDS = 5
"""Time between two samples: those that Prometheus showed at these moments, and none of series that had ended.
The rules saw one each second."""
CLUSTER = "cluster-a"
NODE = "node-a"
GPU_NODE = "node-b"
LOST_GPU = 5
CRASHES = 4
"""Attempts of the run that crashes again and again. The first one made progress."""
HEALTHY = "healthy"
CONFIG = RuleConfig.for_demo()
"""The settings with which the runs were recorded: those of the demo."""


class Recorded(NamedTuple):
    """A run of the recording."""

    run: str
    ranks: int
    """Of the reference trainer on `NODE`; 0 for a run that the recording starts in another way."""
    faults: tuple[str, ...] = ()
    """As `--fault` of the reference trainer takes them."""
    alert: Alert | None = None
    """The alert that the faults must raise."""
    labels: Mapping[str, str] = {}
    """Labels that it must have beside its name, and `run` if it is of a run."""
    run_class: str = "production"

    @property
    def wanted(self) -> dict[str, str]:
        """Labels of the alert. One on hardware names the part, not the run that uses it."""
        of_run = {} if self.alert in HARDWARE_ALERTS else {"run": self.run}
        return {"alertname": str(self.alert), **of_run, **self.labels}


GPU_RUN = Recorded("lost-gpu", 0, (), Alert.GPU_FAULT, {"reason": "lost", "node": GPU_NODE})
"""A rank on each GPU of the other node, of which one falls off the bus."""
CRASHING = Recorded("crash-loop", 0, (), Alert.RUN_FAILED, {"reason": "restarts_fail"}, "experiment")
RUNS = (
    Recorded(HEALTHY, 4),
    Recorded(
        "slow-rank",
        4,
        ("straggler:rank=2,factor=1.8,from=200",),
        Alert.RUN_SLOW,
        {"cause": "slow_rank", "rank": "2", "node": NODE},
    ),
    Recorded(
        "stalled-rank",
        2,
        ("stall:rank=1,from=200",),
        Alert.RUN_STALLED,
        {"reason": "rank_known", "rank": "1", "node": NODE},
    ),
    Recorded(
        "nan-loss",
        2,
        ("loss-nan:rank=1,from=200",),
        Alert.LOSS_DIVERGING,
        {"reason": "non_finite"},
        "experiment",
    ),
    Recorded(
        "foreign-data",
        3,
        ("foreign-data:rank=1",),
        Alert.LOSS_DIVERGING,
        {"reason": "data_skew", "rank": "1", "node": NODE},
        "fine-tuning",
    ),
    Recorded(
        "bad-disk",
        1,
        ("checkpoint-write-failure:from=195",),
        Alert.CHECKPOINT_AT_RISK,
        {"reason": "failed", "operation": "save", "rank": "0", "node": NODE},
    ),
    GPU_RUN,
    CRASHING,
)
"""Steps 20, 40, 60, ... save a checkpoint."""


def read() -> list[str]:
    """The recording as lines of OpenMetrics, without the last one, `# EOF`."""
    with lzma.open(FILE, "rt") as file:
        return file.read().splitlines()


def first_moment(lines: Sequence[str]) -> float:
    """When the first sample was taken, in seconds since 1970."""
    return min(float(line.rsplit(" ", 1)[1]) for line in lines)


def last_moment(lines: Sequence[str]) -> float:
    """When the last sample was taken, in seconds since 1970."""
    return max(float(line.rsplit(" ", 1)[1]) for line in lines)


def to_openmetrics(series: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Lines for the series that Prometheus answered to a query over a range."""
    for each in sorted(series, key=lambda one: sorted(one["metric"].items())):
        labels = ",".join(f'{name}="{_escaped(value)}"' for name, value in sorted(each["metric"].items()))
        name = each["metric"]["__name__"]
        text = labels.removeprefix(f'__name__="{name}"').removeprefix(",")
        yield from (f"{name}{{{text}}} {value} {moment}" for moment, value in each["values"])


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
