"""Scenarios of the rule tests as one scrape target, in compressed time."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from rankwatch.conventions.metrics import METRICS
from rankwatch_alerts import Alert, RuleConfig
from support.alerts.agent_means import agent_group
from support.alerts.rule_test import CASES, cases_in
from support.alerts.scenarios import STEP_SECONDS, Key, TimeSeries, continued, key_of, scenarios
from support.servers.loopback import Handler, serving_http
from support.servers.prometheus import get_json

SECONDS_A_STEP = 2.0
"""A step of 15 s takes so long."""
SPEED = STEP_SECONDS / SECONDS_A_STEP
LONGEST_LEAD = 50
"""Steps before an alert fires. Alerts that need a longer history are tested by promtool only."""
MADE_BY_SERVERS = ("up", "scrape_duration_seconds")
HEALTHY = "healthy"
"""The cluster of the healthy run."""
_SECONDS = frozenset(each.name for each in METRICS if each.unit == "seconds")
_SUCCESS = "rankwatch_collector_last_success_timestamp_seconds"
"""Of the healthy run it would be old: collectors run more often than the steps of a replay."""
_ATTEMPT_END, _STEPS_BEHIND = "rankwatch_run_attempt_end_timestamp_seconds", 5
"""An agent exports it beside the number of ranks that run. Here rules count these, some evaluations later."""


def replayed_rules(speed: float = SPEED) -> RuleConfig:
    """The rules for a replay. Scaling alone would leave the time of absence too long."""
    shipped = RuleConfig()
    return replace(shipped.scaled(speed), absence_for_seconds=shipped.absence_for_seconds / speed)


class Replay:
    """What the target serves. `began` is the Unix time of step 0; `down` makes every scrape fail."""

    def __init__(
        self, series: Sequence[TimeSeries], more: Callable[[int, float], str], speed: float = SPEED
    ) -> None:
        self._series = [(_head(each), each) for each in series]
        self._more = more
        self._speed = speed
        self.began = time.time()
        self.down = False

    def page(self) -> str:
        """The exposition of this moment."""
        step = int((time.time() - self.began) * self._speed / STEP_SECONDS)
        lines = [
            f"{head} {_scaled(each.name, each.samples[step], self.began, self._speed)!r}\n"
            for head, each in self._series
            if step < len(each.samples) and isinstance(each.samples[step], float)
        ]
        return "".join(lines) + self._more(step, self.began)


def replayable(alerts: Mapping[Alert, str], steps: int) -> dict[Key, tuple[str, list[TimeSeries]]]:
    """The scenarios of these alerts that can be replayed, each in a cluster of its own.

    A pattern says of which reasons or causes.
    """
    found = {}
    for number, (key, scenario) in enumerate(scenarios(steps).items()):
        if not re.fullmatch(alerts.get(Alert(key[0]), "(?!)"), key[1]):
            continue
        made_here = any(each.name in MADE_BY_SERVERS for each in scenario.series)
        in_time = scenario.fires <= LONGEST_LEAD and scenario.step_seconds == STEP_SECONDS
        if not in_time or made_here or "cluster" not in scenario.labels:
            continue
        cluster = f"c{number}"
        series = [each._replace(labels={**each.labels, "cluster": cluster}) for each in scenario.series]
        found[key] = (cluster, series)
    return found


def healthy(steps: int) -> list[TimeSeries]:
    """What agents export of the healthy run."""
    case, *_ = cases_in(CASES / "healthy.yml")["tests"]
    series = (continued(each, 20, steps) for each in case["input_series"])
    return [
        _behind_ranks(each)._replace(labels={**each.labels, "cluster": HEALTHY})
        for each in series
        if each.name.startswith("rankwatch_") and each.name != _SUCCESS
    ]


def _behind_ranks(series: TimeSeries) -> TimeSeries:
    if series.name != _ATTEMPT_END:
        return series
    return series._replace(samples=(None,) * _STEPS_BEHIND + series.samples[_STEPS_BEHIND:])


def agents_file(config: RuleConfig, directory: Path) -> Path:
    """A file of rules: what agents make of the series of their ranks, because a replay has only these."""
    path = directory / "agents.json"
    path.write_text(json.dumps({"groups": [agent_group(config)]}))
    return path


def _scaled(name: str, value: object, began: float, speed: float) -> float:
    """Times are shorter by as much as the steps are; moments count from the beginning."""
    assert isinstance(value, float)
    if name.endswith("_timestamp_seconds"):
        return began + value / speed
    return value / speed if name in _SECONDS else value


def _head(series: TimeSeries) -> str:
    return sample_head(series.name, series.labels)


def sample_head(name: str, labels: Mapping[str, str]) -> str:
    """Name and labels as they stand in an exposition."""
    inner = ",".join(f'{label}="{value}"' for label, value in labels.items())
    return f"{name}{{{inner}}}"


def active(url: str) -> frozenset[tuple[Key, str]]:
    """Alerts that an Alertmanager takes for firing, with their clusters; not the one that always fires."""
    labels = [each["labels"] for each in get_json(f"{url}/api/v2/alerts")]
    firing = (each for each in labels if each["alertname"] != Alert.WATCHDOG)
    return frozenset((key_of(each["alertname"], each), each.get("cluster", "")) for each in firing)


@contextmanager
def served(replay: Replay) -> Iterator[str]:
    """The target on loopback; yields `host:port`."""

    class Target(Handler):
        def answer(self) -> None:
            self.reply(replay.page().encode(), 503 if replay.down else 200)

    with serving_http(Target) as address:
        yield address
