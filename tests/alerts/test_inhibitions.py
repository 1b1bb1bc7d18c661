"""Every entry of inhibitions.yaml against every alert: nothing silences what matters more, or itself."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import product

import pytest

from rankwatch_alerts import RuleConfig, alert_rules
from rankwatch_alerts.alertmanager import MATCHER, PRODUCT, Inhibition, inhibit_rules, inhibitions
from rankwatch_alerts.rules import REASONS
from support.alerts.reasons import ALERTS
from support.alerts.rule_test import CASES, cases_in
from support.alerts.scenarios import fired, key_of

_RANKING = {"critical": 2, "warning": 1, "info": 0}
_VALUES = {"collector": ("gpu", "host"), "xid": ("48", "74", "79")}
"""Of labels of which an entry asks for values; others have one."""
_FIXED = {"alertname", "product", "cluster", "owner", "severity", *REASONS}


def _alerts() -> Iterator[dict[str, str]]:
    """Every alert that a rule test sees firing, of one node, run and part, with each severity that it can
    have."""
    rules = alert_rules(RuleConfig())
    as_run = {(each.alert, reason) for each in rules if not each.severity for reason in each.reasons}
    cases = [case for path in CASES.glob("*.yml") for case in cases_in(path)["tests"]]
    for key, given, *_ in (each for case in cases for each in fired(case)):
        fixed = {"alertname": key[0], "product": "rankwatch", "cluster": "c"}
        fixed |= {each: given[each] for each in REASONS if each in given}
        parts = sorted(given.keys() - _FIXED)
        for severity in ("critical", "warning") if key in as_run else (given["severity"],):
            for values in product(*(_VALUES.get(each, ("1",)) for each in parts)):
                yield {**fixed, "severity": severity, **dict(zip(parts, values, strict=True))}


def _key(alert: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(f"{name}={text}" for name, text in sorted(alert.items()))


ALL = tuple({_key(each): each for each in _alerts()}.values())


def matches(alert: Mapping[str, str], matchers: Sequence[str]) -> bool:
    """As Alertmanager does it: expressions are anchored, and an absent label is an empty one."""
    for label, operator, value in (MATCHER.fullmatch(each).groups() for each in matchers):  # type: ignore[union-attr]
        text = alert.get(label, "")
        found = bool(re.fullmatch(value, text)) if "~" in operator else text == value
        if found == operator.startswith("!"):
            return False
    return True


def _silenced(rule: Mapping[str, Sequence[str]]) -> Iterator[tuple[dict[str, str], dict[str, str]]]:
    """Pairs of cause and symptom for which the rule works."""
    sources = [each for each in ALL if matches(each, rule["source_matchers"])]
    targets = [each for each in ALL if matches(each, rule["target_matchers"])]
    for source, target in product(sources, targets):
        both = matches(source, rule["target_matchers"]) and matches(target, rule["source_matchers"])
        if not both and all(source.get(each) == target.get(each) for each in rule["equal"]):
            yield source, target


PAIRS = [(rule, source, target) for rule in inhibit_rules() for source, target in _silenced(rule)]


def test_reasons() -> None:
    """Settings take the alerts and reasons that rules have, but for those that are a metric."""
    found = {key_of(each["alertname"], each) for each in ALL}
    known = {(alert, reason) for alert, reasons in ALERTS.items() for reason in reasons or ("",)}
    assert {each for each in found if not each[1].startswith("rankwatch_")} == known


def test_severity() -> None:
    """A ticket never silences a page."""
    assert len(PAIRS) > 200
    for rule, source, target in PAIRS:
        assert _RANKING[source["severity"]] >= _RANKING[target["severity"]], rule
    assert {PRODUCT} == {
        rule[side][0] for rule, _, _ in PAIRS for side in ("source_matchers", "target_matchers")
    }


def test_no_circle() -> None:
    """Of alerts that silence each other in turn nobody would hear."""
    silences: dict[tuple[str, ...], set[tuple[str, ...]]] = {}
    for _, source, target in PAIRS:
        silences.setdefault(_key(source), set()).add(_key(target))
    while silences:
        last = [each for each, others in silences.items() if not others & silences.keys()]
        assert last, f"these silence each other: {sorted(silences)}"
        for each in last:
            del silences[each]


@pytest.mark.parametrize("entry", inhibitions(), ids=lambda entry: entry.why)
def test_entry(entry: Inhibition) -> None:
    """Each entry silences something on each side: its names, reasons and labels are those of alerts."""
    for side in (entry.source, entry.target):
        for matcher in side:
            label, operator, value = MATCHER.fullmatch(matcher).groups()  # type: ignore[union-attr]
            known = {each.get(label, "") for each in ALL} - {""}
            if label in ("alertname", *REASONS):
                assert set(value.split("|")) <= known or value == ".+", matcher
            elif operator != "=" or value:
                assert any(bool(re.fullmatch(value, each)) for each in known), matcher
    assert any(True for rule in entry.rules() for _ in _silenced(rule))


def test_parts() -> None:
    """Where both have a part, it is the same one, and they meet in a run or on a node: the fault of
    another GPU explains nothing."""
    for rule, source, target in PAIRS:
        shared, equal = source.keys() & target.keys(), set(rule["equal"])
        assert shared & {"gpu", "device", "port", "path"} <= equal, rule
        assert not shared & {"run", "node"} or shared & {"run", "node"} & equal, rule


def _holds_back(source: Mapping[str, str], target: Mapping[str, str]) -> bool:
    return any(
        matches(source, rule["source_matchers"])
        and matches(target, rule["target_matchers"])
        and all(source.get(each) == target.get(each) for each in rule["equal"])
        for rule in inhibit_rules()
    )


def _alert(name: str, reason: str, severity: str, **labels: str) -> dict[str, str]:
    fixed = {"alertname": f"Rankwatch{name}", "reason": reason, "severity": severity}
    return {"product": "rankwatch", "cluster": "c", **fixed, **labels}


_XID = _alert("GpuFault", "xid", "critical", node="n", gpu="2", xid="74")


@pytest.mark.parametrize(
    ("source", "target"),
    [
        (_alert("GpuFault", "nvlink_down", "warning", node="n", gpu="2"), _XID),
        (_alert("GpuFault", "nvlink_down", "critical", node="n", gpu="1"), _XID),
        (_alert("GpuFault", "lost", "critical", node="n", gpu="1"), _XID),
        (
            _alert("NodeLost", "network", "warning", run="r"),
            _alert("TelemetryAbsent", "agent_down", "warning", node="n"),
        ),
        (
            _alert("GpuFault", "ecc_uncorrected", "critical", node="n", gpu="1"),
            _alert("RunFailed", "failed", "warning", run="r", node="n", rank="0"),
        ),
        (
            _alert("NodeLost", "node", "warning", run="r", node="n"),
            _alert("RunStalled", "rank_unknown", "critical", run="r"),
        ),
        (
            _alert("NodeLost", "node", "critical", run="r", node="n"),
            _alert("RunStalled", "rank_unknown", "critical", run="s"),
        ),
        (
            _alert("TelemetryAbsent", "agents_missing", "critical", cluster="d"),
            _alert("NodeLost", "network", "critical", run="r"),
        ),
        (
            _alert("NodeLost", "node", "critical", run="r", node="n"),
            {**_alert("RunStalled", "rank_unknown", "warning", run="r"), "product": ""},
        ),
    ],
)
def test_what_is_heard(source: Mapping[str, str], target: Mapping[str, str]) -> None:
    """A page beside a ticket, and alerts on another part, of another run or cluster, or of others."""
    assert not _holds_back(source, target)


def test_silent_agents() -> None:
    """Where no agent of the cluster is heard, one page says so."""
    missing = _alert("TelemetryAbsent", "agents_missing", "critical")
    for target in ALL:
        if target.get("reason") in ("run_vanished", "agent_down", "collector_state", "node_unseen"):
            assert _holds_back(missing, target), target
    assert _holds_back(missing, _alert("NodeLost", "network", "critical", run="r"))
