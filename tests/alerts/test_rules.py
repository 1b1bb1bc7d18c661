"""Every alert is tested by promtool: healthy, just before, firing, resolved."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from statistics import NormalDist
from typing import Any

import pytest

from rankwatch.conventions.node_sums import OF_RANKS_THAT_HAD_THEM, OF_RUNNING_RANKS
from rankwatch_alerts import RuleConfig, alert_groups
from rankwatch_alerts.recording.unequal_batches import EXPECTED_MAXIMUM
from rankwatch_alerts.rules import Alert, AlertRule, duration
from support.alerts.rule_test import CASES, cases_in, check, groups_of, without_keeping
from support.paths import ROOT

METRICS_WANTED = (*OF_RUNNING_RANKS, *OF_RANKS_THAT_HAD_THEM)
SELDOM = "scrape_interval_seconds"
GROUPS = groups_of(RuleConfig())
RULES = [rule for group in alert_groups(RuleConfig()) for rule in group.rules if isinstance(rule, AlertRule)]


def _key(alert: str, labels: Mapping[str, str]) -> tuple[str, str, str]:
    # The reason of a rule is its own; of these alerts it comes from the series.
    reason = labels.get("reason", "")
    if alert == Alert.BLACK_BOXES_LEFT_OUT or reason in METRICS_WANTED:
        reason = ""
    return alert, labels["severity"], reason


def _rule_key(rule: AlertRule) -> tuple[str, str, str]:
    return _key(rule.alert, {**rule.labels, "severity": rule.severity})


def _seconds(text: str) -> int:
    units = {"h": 3600, "m": 60, "s": 1}
    return sum(int(number) * units[unit] for number, unit in re.findall(r"(\d+)([hms])", text))


@cache
def _cases() -> tuple[tuple[str, dict[str, Any]], ...]:
    """Every case with the name of its file."""
    return tuple(
        (path.stem, case) for path in sorted(CASES.glob("*.yml")) for case in cases_in(path)["tests"]
    )


def _firing_times(case: dict[str, Any], key: tuple[str, str, str]) -> dict[int, bool]:
    """Instants at which a case checks the alert of the rule -> True if the rule fires then."""
    return {
        _seconds(each["eval_time"]): any(
            _key(each["alertname"], alert["exp_labels"]) == key for alert in each["exp_alerts"]
        )
        for each in case.get("alert_rule_test", ())
        if each["alertname"] == key[0]
    }


@pytest.mark.process
@pytest.mark.parametrize("cases", sorted(CASES.glob("*.yml")), ids=lambda path: path.stem)
def test_cases(cases: Path, tmp_path: Path) -> None:
    """Labels and annotations are compared to the letter.

    A case that is silent for hours may be of a Prometheus that scrapes and evaluates less often.
    """
    content = cases_in(cases)
    check(
        [case for case in content["tests"] if SELDOM not in case],
        without_keeping(GROUPS),
        content["evaluation_interval"],
        tmp_path,
    )
    for case in (case for case in content["tests"] if SELDOM in case):
        config = RuleConfig(scrape_interval_seconds=case.pop(SELDOM))
        interval = duration(config.scrape_interval_seconds)
        check((case,), without_keeping(groups_of(config)), interval, tmp_path)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: "-".join(filter(None, _rule_key(rule))))
def test_every_alert_fires_and_resolves(rule: AlertRule) -> None:
    """In one case: nothing one evaluation before it fires, the alert, and nothing later."""
    for _, case in _cases():
        times = _firing_times(case, _rule_key(rule))
        fired = [instant for instant, fires in times.items() if fires]
        if not fired:
            continue
        before = times.get(fired[0] - 15) is False
        after = any(not fires for instant, fires in times.items() if instant > fired[-1])
        if before and after:
            return
    pytest.fail(f"{rule.alert} has no case that shows it silent, firing and resolved")


def test_every_alert_has_a_game_day() -> None:
    """Each alert is raised by a fault on real servers: a file of tests/e2e names it that `make test` runs."""
    files = [each.read_text() for each in (ROOT / "tests" / "e2e").rglob("test_*.py")]
    named = "".join(each for each in files if "pytest.mark.nightly" not in each)
    assert [each for each in Alert if f"Alert.{each.name}" not in named] == []


@pytest.mark.parametrize("metric", METRICS_WANTED)
def test_every_metric_is_missed(metric: str) -> None:
    """One rule asks for all of them, and each has a case."""
    assert any(
        alert["exp_labels"].get("reason") == metric
        for name, case in _cases()
        if name == Alert.TELEMETRY_ABSENT
        for each in case["alert_rule_test"]
        for alert in each["exp_alerts"]
    )


OF_NO_RUN = {
    Alert.BLACK_BOXES_LEFT_OUT: "a box that is left out belongs to a run that nobody knows",
    Alert.COLLECTOR_FAILING: "a node is not watched, and nothing of its run is lost by it",
    Alert.GOODPUT_BUDGET: "its description says how many rank-hours the class has lost",
    Alert.PREEMPTION_STORM: "it is of many runs",
    Alert.REQUEUE_RATE: "it is of many runs",
    Alert.RULES_FAILING: "monitoring fails, and no run",
    Alert.SUCCESS_BUDGET: "it is of many runs",
    Alert.WATCHDOG: "it always fires",
}
"""Alerts that do not say what they cost, and why."""


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: "-".join(filter(None, _rule_key(rule))))
def test_cost(rule: AlertRule) -> None:
    """Each alert says what it costs, in money or time, unless there is a reason."""
    says = bool({"cost", "slowdown"} & set(rule.annotations))
    of_agents = (
        rule.alert == Alert.TELEMETRY_ABSENT
        and "run" not in rule.annotations["dashboard_url"].partition("?")[2]
    )
    assert says != (rule.alert in OF_NO_RUN or of_agents)


def test_rule_without_a_case() -> None:
    """Coverage cannot decay unseen."""
    untested = replace(RULES[0], alert="RankwatchUntested")
    with pytest.raises(pytest.fail.Exception, match="RankwatchUntested has no case"):
        test_every_alert_fires_and_resolves(untested)


@pytest.mark.parametrize("alert", sorted({rule.alert for rule in RULES}))
def test_healthy_run(alert: str) -> None:
    """The healthy run asks for each alert, and expects none but the one that always fires."""
    asked = [
        each["exp_alerts"]
        for name, case in _cases()
        if name == "healthy"
        for each in case.get("alert_rule_test", ())
        if each["alertname"] == alert
    ]
    assert asked
    assert any(asked) == (alert == Alert.WATCHDOG)


def test_all_annotations_are_compared() -> None:
    """An annotation that is left out of a test could say anything."""
    annotations = {_rule_key(rule): set(rule.annotations) for rule in RULES}
    for _, case in _cases():
        for each in case.get("alert_rule_test", ()):
            for alert in each["exp_alerts"]:
                key = _key(each["alertname"], alert["exp_labels"])
                assert set(alert["exp_annotations"]) == annotations[key], case["name"]


@pytest.mark.parametrize("ranks", [2, 3, 4, 8, 16, 64, 256, 1024])
def test_expected_maximum(ranks: int) -> None:
    """Within 5 % of the exact value, the mean of the largest of that many normal values."""
    normal, width = NormalDist(), 0.005
    points = [width * each for each in range(-1600, 1601)]
    exact = sum(width * x * ranks * normal.pdf(x) * normal.cdf(x) ** (ranks - 1) for x in points)
    formula = eval(EXPECTED_MAXIMUM.format(ranks=ranks), {"sqrt": math.sqrt, "ln": math.log})
    assert formula == pytest.approx(exact, rel=0.05)
