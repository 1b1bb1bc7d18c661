"""Gaps in what Prometheus sees: for every alert, none resolves it, and at night also none raises another one.

Each case also runs without a gap: whatever differs is caused by it. Restarts of Prometheus itself, which
promtool cannot do, are in `tests/e2e/test_restarts.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from rankwatch_alerts import RuleConfig, alert_rules
from support.alerts.rule_test import check, groups_of
from support.alerts.scenarios import (
    Key,
    Scenario,
    TimeSeries,
    begun_anew,
    moved,
    scenarios,
    without,
    written,
)

pytestmark = pytest.mark.process

WATCHED_STEPS = 30
"""Longer than an alert goes on without its condition, after the gap."""
GAP_AFTER, RESTART_STEPS = 4, 4
"""In steps of the case. At 15 s a gap is a minute after the alert fired, and an agent is away for one."""
STEADY = "steady"

Change = Callable[[TimeSeries, int], Iterator[TimeSeries]]


def missed_scrape(series: TimeSeries, first: int) -> Iterator[TimeSeries]:
    yield without(series, first, 1)


def agent_restart(series: TimeSeries, first: int) -> Iterator[TimeSeries]:
    yield begun_anew(without(series, first, RESTART_STEPS), first)


def another_address(series: TimeSeries, first: int) -> Iterator[TimeSeries]:
    """A new pod of the agent has another address, so each of its series is a new one."""
    yield from moved(
        begun_anew(without(series, first, RESTART_STEPS), first), first + RESTART_STEPS, "new:9477"
    )


CONFIG = RuleConfig()
CHANGES: Mapping[str, Change] = {
    "missed-scrape": missed_scrape,
    "agent-restart": agent_restart,
    "another-address": another_address,
}
NO_GAP: Mapping[Key, str] = {
    ("RankwatchTelemetryAbsent", "agents_missing"): "no agent is there that could be missed",
    ("RankwatchTelemetryAbsent", "prometheus_down"): "no agent has a part in it",
    ("RankwatchWatchdog", ""): "that it stops where no agent answers is its purpose",
}
GROUPS = groups_of(CONFIG)
RULES = [(rule.alert, reason) for rule in alert_rules(CONFIG) for reason in rule.reasons]


WATCHED = [pytest.param(key, id="-".join(key)) for key in RULES if key not in NO_GAP]


@pytest.mark.parametrize("key", WATCHED)
def test_gap(key: Key, tmp_path: Path) -> None:
    """A missed scrape, a restart of the agent, and one as another pod: the alert fires throughout."""
    scenario = _scenario(key)
    check((_case(scenario),), GROUPS, f"{scenario.step_seconds}s", tmp_path)


@pytest.mark.nightly
@pytest.mark.parametrize("key", WATCHED)
def test_gap_among_all_rules(key: Key, tmp_path: Path) -> None:
    """The same with every rule: a gap raises no other alert."""
    scenario = _scenario(key)
    check((_case(scenario),), GROUPS, f"{scenario.step_seconds}s", tmp_path, every_rule=True)


def _scenario(key: Key) -> Scenario:
    """The scenario of a rule; a rule without a label `reason` may have one from its series."""
    found = scenarios(WATCHED_STEPS)
    return found.get(key) or next(
        each for other, each in found.items() if other[0] == key[0] and other not in RULES
    )


def _case(scenario: Scenario) -> dict[str, object]:
    """The same series several times, each in a cluster of its own."""
    first = scenario.fires + GAP_AFTER
    series = [_placed(each, STEADY) for each in scenario.series]
    for name, change in CHANGES.items():
        for each in scenario.series:
            changed = change(each, first) if each.of_agent else iter((each,))
            series += [_placed(new, name) for new in changed]
    return {
        "interval": f"{scenario.step_seconds}s",
        "input_series": series,
        "promql_expr_test": [test for name in CHANGES for test in _expected(scenario, name)],
    }


def _expected(scenario: Scenario, place: str) -> Iterator[dict[str, object]]:
    """The alert has fired at each evaluation, and none has that did not without the gap."""
    watched_seconds = WATCHED_STEPS * scenario.step_seconds
    end = f"{scenario.fires * scenario.step_seconds + watched_seconds}s"
    place_label = "rule_group" if "rule_group" in scenario.labels else "cluster"
    alert, reason = scenario.key
    label = "cause" if scenario.labels.get("cause") == reason else "reason"
    this = f'alertname="{alert}", {label}="{reason}"'

    def firing(place: str, more: str = "") -> str:
        matchers = f'{{alertstate="firing", {place_label}=~".*{place}.*"{more}}}'
        return f"count_over_time(ALERTS{matchers}[{watched_seconds}s])"

    everywhere = [{"labels": "{}", "value": WATCHED_STEPS + 1}]
    yield {"expr": f"min({firing(place, f', {this}')})", "eval_time": end, "exp_samples": everywhere}
    surplus = f"{firing(place)} unless ignoring (cluster, instance, rule_group) {firing(STEADY)}"
    yield {"expr": surplus, "eval_time": end, "exp_samples": []}


def _placed(series: TimeSeries, place: str) -> dict[str, str]:
    """The series as promtool reads it, in a cluster of its own."""
    labels = {**series.labels, "cluster": place}
    if "instance" in labels:
        labels["instance"] += f"-{place}"
    if "rule_group" in labels:
        labels["rule_group"] = f"/{place}{labels['rule_group']}"
    return written(series._replace(labels=labels))
