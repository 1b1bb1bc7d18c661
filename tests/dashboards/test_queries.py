"""Every panel's query, asked of a real Prometheus that scrapes a run, gives something to draw."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import ClassVar

import pytest

from rankwatch.conventions.metrics import METRICS, Kind, Label, Metric, section
from rankwatch.conventions.states import GoodputState, SlowPhase
from rankwatch_alerts import RuleConfig, prometheus_config, write_rules
from rankwatch_dashboards import dashboards
from support.dashboards.lint import filled_in, targets
from support.servers.loopback import Handler, serving_http
from support.servers.prometheus import poll, prometheus, query

OF_FAULTS = {"Ranks that do not run", "Suspects", "Ranks", "Different runs that failed", "Fires for"}
"""Panels of what this run does not suffer from; the recorded runs have series for their queries."""
RANKS = 8
STAGES = 2
SLOW_RANK = 2
STEPS_PER_SECOND = 4.0
SECONDS_FOR_ALL = 300.0
"""Far more than a busy machine needs: all series are there after 10 s on an idle one."""

_VALUES: dict[Label, tuple[str, ...]] = {
    Label.RUN: ("r",),
    Label.PHASE: ("data_wait", "forward", "backward", "optimizer", "communication", "other"),
    Label.DTYPE: ("tf32", "fp16", "bf16", "fp8"),
    Label.NAME: (
        "loss",
        "flops_per_token",
        "baseline_tokens_per_second",
        "steps_per_epoch",
        "gradient_norm",
        "loss_scale",
    ),
    Label.UNIT: ("tokens",),
    Label.OPERATION: ("save", "all_reduce"),
    Label.CHECKPOINT_STAGE: ("write",),
    Label.OUTCOME: ("success", "failure", "finished", "preempted"),
    Label.CAUSE: ("first", "restart"),
    Label.MODE: ("user", "idle"),
    Label.STATE: ("running",),
    Label.CURRENCY: ("EUR",),
    Label.BASIS: ("list",),
    Label.TRACKER_URL: ("https://mlflow.example/#/experiments/1/runs/2",),
}
"""Values of labels; any other label has the value x."""

_STATES: dict[str, tuple[str, ...]] = {
    "rankwatch_goodput_seconds_total": tuple(GoodputState),
    "rankwatch_run_nodes": ("active", "standby"),
}
"""Values of the label state, where it is not that of ranks."""


def _of_rank(rank: int) -> dict[Label, tuple[str, ...]]:
    return {Label.RANK: (str(rank),), Label.STAGE: (str(rank % STAGES),)}


def _label_sets(metric: Metric, rank: int) -> Iterator[dict[str, str]]:
    """One set per combination of values on the node of a rank."""
    sets: list[dict[str, str]] = [{"node": f"n{rank}", "cluster": "c"}]
    for label in metric.labels:
        values = _of_rank(rank).get(label) or _VALUES.get(label, ("x",))
        if label is Label.STATE:
            values = _STATES.get(metric.name, values)
        if label is Label.PHASE and metric in section("recent"):
            values = tuple(SlowPhase)
        sets = [{**each, str(label): value} for each in sets for value in values]
    yield from sets


def _value(metric: Metric, labels: dict[str, str], now: float, began: float) -> float:
    """Counters grow with time, timestamps are the present, one rank works half again as long."""
    running = now - began
    if metric.name.endswith("timestamp_seconds"):
        return now
    if metric.name in ("rankwatch_step", "rankwatch_node_step"):
        return running * STEPS_PER_SECOND
    if metric.name in ("rankwatch_target_steps", "rankwatch_node_target_steps"):
        return 1e6
    if metric.name == "rankwatch_scalar_first_nonfinite_step":
        return 1e6  # younger than the checkpoints
    if metric.name == "rankwatch_run_capability_visible":
        return 0.0
    if metric.name == "rankwatch_run_attempt":  # nodes that joined later have seen later attempts
        return float(labels["node"][1:])
    if metric.name.startswith("rankwatch_rank_fingerprint") and metric.kind is Kind.GAUGE:
        return 1.0  # replicas are equal
    if metric in section("recent"):
        return _of_recent_steps(metric.name, slow=labels.get("rank") == str(SLOW_RANK))
    if metric.kind is not Kind.COUNTER:
        return 1.0 + 0.1 * int(labels.get("rank", 0))
    if metric.name == "rankwatch_steps_total":
        return running * STEPS_PER_SECOND
    slow = labels.get("rank") == str(SLOW_RANK)
    if metric.name == "rankwatch_step_seconds_total":
        return running
    if metric.name == "rankwatch_step_local_seconds_total":
        return running * (0.9 if slow else 0.6)
    if labels.get("phase") == "backward":
        return running * (0.4 if slow else 0.1)
    return running * 0.1


def _of_recent_steps(name: str, *, slow: bool) -> float:
    """Steps of a quarter of a second, of which a rank works 0.15 s, and the slow one half again as long."""
    if name == "rankwatch_recent_run_step_seconds":
        return 1.0 / STEPS_PER_SECOND
    if name.endswith("_ranks"):
        return 1.0
    if name.endswith("tokens"):
        return 1000.0
    if name.endswith("token_local_seconds"):
        return 0.000_225 if slow else 0.000_15
    if "late" in name or name.endswith("_ratio"):
        return 0.001
    if "phase" in name:
        return 0.05 if slow else 0.025
    return 0.225 if slow else 0.15


@cache
def _series() -> list[tuple[Metric, dict[str, str], str]]:
    """Every declared metric, its labels, and the labels as text, of an agent on each of eight nodes.

    Made once: a scrape that takes longer than its timeout on a busy machine is a gap, and panels are empty.
    """
    return [
        (metric, labels, ",".join(f'{name}="{value}"' for name, value in labels.items()))
        for metric in METRICS
        for rank in range(RANKS)
        for labels in _label_sets(metric, rank)
    ]


def _exposition(began: float) -> str:
    """Every declared metric with plausible values, as the agents would serve it."""
    now = time.time()
    lines = []
    for metric, labels, text in _series():
        if metric.kind is Kind.HISTOGRAM:
            lines += _histogram(metric.name, text, (now - began) * STEPS_PER_SECOND)
        else:
            lines.append(f"{metric.name}{{{text}}} {_value(metric, labels, now, began)!r}")
    return "\n".join(lines) + "\n"


def _histogram(name: str, labels: str, count: float) -> list[str]:
    return [
        f'{name}_bucket{{{labels},le="0.2"}} 0',
        f'{name}_bucket{{{labels},le="0.5"}} {count!r}',
        f'{name}_bucket{{{labels},le="+Inf"}} {count!r}',
        f"{name}_sum{{{labels}}} {count / STEPS_PER_SECOND!r}",
        f"{name}_count{{{labels}}} {count!r}",
    ]


class _Agent(Handler):
    began: ClassVar[float] = 0.0

    def answer(self) -> None:
        self.reply(_exposition(self.began).encode())


@pytest.fixture(scope="module")
def prometheus_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Prometheus that scrapes the run each second and evaluates the shipped rules."""
    directory = tmp_path_factory.mktemp("prometheus")
    config = replace(RuleConfig().scaled(60), scrape_interval_seconds=1.0)
    rules = write_rules(config, directory)
    _Agent.began = time.time() - 1000
    with (
        serving_http(_Agent) as target,
        prometheus(prometheus_config(config, rule_files=rules, agent_targets=[target]), directory) as url,
    ):
        yield url


@pytest.mark.process
def test_every_query_returns_series(prometheus_url: str) -> None:
    """A misspelt name is a success with no series, so emptiness is the error."""
    asked = [
        each
        for dashboard in dashboards(RuleConfig())
        for each in targets(dashboard)
        if each.panel["title"] not in OF_FAULTS
    ]
    assert len(asked) > 30
    values = {"cluster": ".*", "run": "r", "rank": ".+", "node": ".+", "gpu": ".+", "__rate_interval": "10s"}
    for each in asked:
        expression = filled_in(each.expression, values)
        poll(
            lambda expression=expression: query(prometheus_url, expression),  # type: ignore[misc]
            SECONDS_FOR_ALL,
            f"series for {each.panel['title']}: {expression}",
        )
