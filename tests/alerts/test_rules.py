"""Every alert is tested by promtool: healthy, just before, firing, resolved."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from statistics import NormalDist
from typing import Any

import pytest

from rankwatch.conventions.metrics import OF_RANKS_THAT_HAD_THEM, OF_RUNNING_RANKS
from rankwatch_alerts import RuleConfig, alert_rules
from rankwatch_alerts.rules import Alert, AlertRule, duration, reason_of
from support.alerts.reasons import ALERTS
from support.alerts.rule_test import CASES, cases_in, check, groups_of, without_keeping
from support.paths import ROOT

METRICS_WANTED = (*OF_RUNNING_RANKS, *OF_RANKS_THAT_HAD_THEM)
SELDOM = "scrape_interval_seconds"
EVALUATION_SECONDS = 15
GROUPS = groups_of(RuleConfig())
RULES = alert_rules(RuleConfig())
KEYS = [(rule.alert, reason) for rule in RULES for reason in rule.reasons]


def _key(alert: str, labels: Mapping[str, str]) -> tuple[str, str]:
    """The rule that raises an alert with these labels: a reason that no rule names comes from its series."""
    key = alert, reason_of(labels)
    return key if key in KEYS else (alert, "")


def _seconds(text: str) -> int:
    units = {"h": 3600, "m": 60, "s": 1}
    return sum(int(number) * units[unit] for number, unit in re.findall(r"(\d+)([hms])", text))


@cache
def _cases() -> tuple[tuple[str, dict[str, Any]], ...]:
    """Every case with the name of its file."""
    return tuple(
        (path.stem, case) for path in sorted(CASES.glob("*.yml")) for case in cases_in(path)["tests"]
    )


def _firing_times(case: dict[str, Any], key: tuple[str, str]) -> dict[int, bool]:
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


AT_THE_EDGE = {
    (Alert.TELEMETRY_ABSENT, "run_vanished"),
    (Alert.GPU_FAULT, "missing"),
    (Alert.GPU_DEGRADED, "power_brake"),
    (Alert.GPU_DEGRADED, "pcie"),
    (Alert.LINK_ERRORS, "nic"),
    (Alert.RUN_SLOW, "network"),
    (Alert.CHECKPOINT_SLOW, "blocking"),
}
"""They fire when a window loses a sample. Releases of Prometheus differ by one evaluation in when it does:
from 3.0 on a window is open to the left."""


@pytest.mark.parametrize("key", KEYS, ids="-".join)
def test_every_alert_fires_and_resolves(key: tuple[str, str]) -> None:
    """In one case: nothing one evaluation before it fires, the alert, and nothing later."""
    for _, case in _cases():
        times = _firing_times(case, key)
        fired = [instant for instant, fires in times.items() if fires]
        if not fired:
            continue
        ago = 2 * _seconds(case["interval"]) if key in AT_THE_EDGE else EVALUATION_SECONDS
        before = times.get(fired[0] - ago) is False
        after = any(not fires for instant, fires in times.items() if instant > fired[-1])
        if before and after:
            return
    pytest.fail(f"{key[0]} has no case that shows it silent, firing and resolved")


WITHOUT_GAME_DAY = {
    (Alert.RUN_STALLED, "mismatch_unknown"): "gloo's flight recorder always shows which rank differs",
    (Alert.RUN_FAILED, "killed_while_waiting"): "gloo ends with an error once a peer is killed",
    (Alert.RUN_FAILED, "waited"): "a watchdog that aborts ranks waits for minutes, and gloo has none",
    (Alert.RUN_SLOW, "last_run"): "it compares with runs of other days",
    (Alert.REPLICAS_DISAGREE, "gradient_norm"): "DDP sums the gradients, so all ranks have the same norm",
    (Alert.REPLICAS_DISAGREE, "rank_unknown"): "it takes two replicas, of which none is the majority",
    (Alert.CHECKPOINT_SLOW, "own_past"): "a save must be slower by half a minute than many before",
    (Alert.GOODPUT_BUDGET, "slow"): "its window is longer than a game day at any scale",
    (Alert.GPU_DEGRADED, "retired_pages"): "GPUs of the game day are newer than those that retire pages",
    (Alert.TELEMETRY_ABSENT, "agents_missing"): "tests/alerts/test_watched.py shows it on a real server",
    (Alert.TELEMETRY_ABSENT, "prometheus_down"): "it takes a second Prometheus",
    (Alert.TELEMETRY_ABSENT, "run_vanished"): "tests/alerts/test_watched.py shows it on a real server",
    (Alert.TELEMETRY_ABSENT, "collector_state"): "every agent exports how its collectors do",
    **dict.fromkeys(
        ((Alert.TELEMETRY_ABSENT, each) for each in METRICS_WANTED), "a real agent exports all of them"
    ),
}
"""Reasons that only cases of promtool raise, and why."""


@cache
def _raised_on_real_servers() -> frozenset[tuple[str, str]]:
    """Members of Alert that `make test` asks real servers for, each with the strings beside it in a call or
    a tuple, and with an empty one."""
    folders = (ROOT / "tests" / "e2e", ROOT / "tests" / "support" / "e2e")
    texts = [path.read_text() for folder in folders for path in folder.rglob("*.py")]
    trees = [ast.parse(each) for each in texts if "pytest.mark.nightly" not in each]
    found: set[tuple[str, str]] = set()
    for node in (node for tree in trees for node in ast.walk(tree)):
        parts = getattr(node, "args" if isinstance(node, ast.Call) else "elts", [node])
        strings = [each.value for each in ast.walk(node) if isinstance(each, ast.Constant)]
        for member in (each for each in parts if isinstance(each, ast.Attribute)):
            if ast.unparse(member.value) == "Alert":
                found.update((member.attr, str(reason)) for reason in ("", *strings))
    return frozenset(found)


@pytest.mark.parametrize("alert", Alert)
def test_every_reason_has_a_game_day(alert: Alert) -> None:
    """Each reason or cause is raised by a fault on real servers, unless the list says why not."""
    reasons = {rule.reason for rule in RULES if rule.alert == alert} | set(ALERTS[alert])
    wanted = reasons - {""} or {""}
    if alert == Alert.TELEMETRY_ABSENT:
        wanted |= set(METRICS_WANTED)
    raised = {reason for member, reason in _raised_on_real_servers() if member == alert.name}
    assert wanted - raised == {reason for name, reason in WITHOUT_GAME_DAY if name == alert}


@pytest.mark.parametrize("metric", METRICS_WANTED)
def test_every_metric_is_missed(metric: str) -> None:
    """One rule asks for all of them, and each has a case."""
    assert any(
        alert["exp_labels"].get("reason") == metric
        for name, case in _cases()
        if name.startswith(Alert.TELEMETRY_ABSENT)
        for each in case.get("alert_rule_test", ())
        for alert in each["exp_alerts"]
    )


OF_NO_RUN = {
    Alert.GOODPUT_BUDGET: "its description says how many rank-hours the class has lost",
    Alert.SUCCESS_BUDGET: "it is of many runs",
    Alert.WATCHDOG: "it always fires",
}
"""Alerts that do not say what they cost, and why."""


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: "-".join((rule.alert, *rule.reasons)))
def test_cost(rule: AlertRule) -> None:
    """Each alert says what it costs, in money or time, unless there is a reason."""
    says = bool({"cost", "slowdown"} & set(rule.annotations))
    of_telemetry = rule.alert in (Alert.TELEMETRY_ABSENT, Alert.TELEMETRY_INCOMPLETE)
    of_agents = of_telemetry and "$labels.run" not in rule.annotations["description"]
    assert says != (rule.alert in OF_NO_RUN or of_agents)


def test_rule_without_a_case() -> None:
    """Coverage cannot decay unseen."""
    with pytest.raises(pytest.fail.Exception, match="RankwatchUntested has no case"):
        test_every_alert_fires_and_resolves(("RankwatchUntested", ""))


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
    annotations = {(rule.alert, reason): set(rule.annotations) for rule in RULES for reason in rule.reasons}
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
    formula = math.sqrt(2 * math.log(ranks)) - 0.6
    assert formula == pytest.approx(exact, rel=0.05)
