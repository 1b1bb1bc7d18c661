"""Every entry of inhibitions.yaml against every alert: nothing silences what matters more, or itself."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path

import pytest

from rankwatch_alerts import RuleConfig, alert_rules, alertmanager_config
from rankwatch_alerts.alertmanager import MATCHER, PRODUCT, Inhibition, inhibit_rules, inhibitions
from rankwatch_alerts.rules import REASONS
from support.alerts.reasons import ALERTS
from support.alerts.rule_test import CASES, cases_in
from support.alerts.scenarios import fired, key_of
from support.servers.prometheus import alertmanager, get_json, poll, post_json

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


LOST, ABSENT, STALLED = "NodeLost", "TelemetryAbsent", "RunStalled"


def _labelled(name: str, held_back: str = "", **labels: str) -> tuple[dict[str, str], bool]:
    """Labels of an alert, and whether it must be held back."""
    fixed = {"alertname": f"Rankwatch{name}", "product": "rankwatch", "cluster": "c", "severity": "critical"}
    return {**fixed, **labels}, bool(held_back)


def _inhibited(tmp_path: Path, *alerts: tuple[dict[str, str], bool]) -> None:
    """Alertmanager holds back those alerts that it must, and no other."""
    expected = {frozenset(labels.items()) for labels, held_back in alerts if held_back}
    with alertmanager(alertmanager_config(RuleConfig.for_demo()), tmp_path) as url:
        post_json(f"{url}/api/v2/alerts", [{"labels": labels} for labels, _ in alerts])

        def held_back() -> bool:
            answer = get_json(f"{url}/api/v2/alerts")
            found = {frozenset(each["labels"].items()) for each in answer if each["status"]["inhibitedBy"]}
            processed = all(each["status"]["state"] != "unprocessed" for each in answer)
            return len(answer) == len(alerts) and processed and found == expected

        poll(held_back, 60, f"inhibition of {len(expected)} alerts")


@pytest.mark.process
def test_lost_node(tmp_path: Path) -> None:
    """It holds back what its run raises and what its agent raises, and nothing of other runs and nodes."""
    yes = "by the lost node"
    _inhibited(
        tmp_path,
        _labelled(LOST, reason="node", run="r", node="n1"),
        _labelled(LOST, reason="node", run="r", node="n2"),
        _labelled(STALLED, yes, reason="rank_known", run="r", rank="7", node="n1"),
        _labelled(STALLED, yes, reason="rank_unknown", run="r"),
        _labelled(STALLED, yes, reason="mismatch_unknown", run="r"),
        _labelled("RunFailed", yes, reason="waited", run="r", severity="warning"),
        _labelled("CheckpointAtRisk", yes, reason="stale", run="r", severity="warning"),
        _labelled(ABSENT, yes, reason="run_vanished", run="r"),
        _labelled(ABSENT, yes, reason="agent_down", node="n1"),
        _labelled("TelemetryIncomplete", yes, reason="collector", collector="ranks", node="n2"),
        _labelled("LossDiverging", reason="non_finite", run="r"),
        _labelled(ABSENT, reason="agent_down", node="n3"),
        _labelled(STALLED, reason="rank_known", run="s", rank="0", node="n1"),
    )


@pytest.mark.process
def test_most_nodes_lost(tmp_path: Path) -> None:
    """The alert has no node, so it holds back the alerts on all agents that are down."""
    yes = "by the lost nodes"
    _inhibited(
        tmp_path,
        _labelled(LOST, reason="network", run="r"),
        _labelled(STALLED, yes, reason="rank_unknown", run="r"),
        _labelled(ABSENT, yes, reason="agent_down", node="n3", severity="warning"),
        _labelled(ABSENT, yes, reason="agent_down", job="rankwatch", severity="warning"),
        _labelled("TelemetryIncomplete", reason="collector", collector="host", node="n3"),
    )


@pytest.mark.process
def test_small_run_loses_its_network(tmp_path: Path) -> None:
    """Its ticket explains its own stall, and no agent of others."""
    _inhibited(
        tmp_path,
        _labelled(LOST, reason="network", run="r", severity="warning"),
        _labelled(STALLED, "by the lost nodes", reason="rank_unknown", run="r", severity="warning"),
        _labelled(ABSENT, reason="agent_down", node="n3", severity="warning"),
    )


@pytest.mark.process
def test_unseen_node(tmp_path: Path) -> None:
    """One ticket for one agent; the run is judged as before."""
    yes = "by the node that is not seen"
    _inhibited(
        tmp_path,
        _labelled(ABSENT, reason="node_unseen", run="r", node="n1"),
        _labelled(ABSENT, yes, reason="agent_down", node="n1"),
        _labelled(ABSENT, reason="agent_down", node="n2"),
        _labelled("RunSlow", cause="slow_rank", run="r", rank="3", node="n2"),
    )
