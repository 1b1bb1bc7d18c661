"""Every entry of inhibitions.yaml against every alert: nothing silences what matters more, or itself.

`test_fleet_life.py` holds that a real Alertmanager holds back what `inhibited` says.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import product

import pytest

from rankwatch_alerts import RuleConfig, alert_rules
from rankwatch_alerts.alertmanager import MATCHER, PRODUCT, inhibit_rules, inhibitions
from rankwatch_alerts.alertmanager import Inhibition as Entry
from rankwatch_alerts.rules import REASONS
from support.alerts.fleet.firing import Labels
from support.alerts.fleet.paging import Inhibition, inhibited, read_inhibitions
from support.alerts.reasons import ALERTS
from support.alerts.rule_test import CASES, cases_in
from support.alerts.scenarios import fired, key_of

_RANKING = {"critical": 2, "warning": 1, "info": 0}
_VALUES = {"collector": ("gpu", "host"), "xid": ("48", "74", "79")}
"""Of labels of which an entry asks for values; others have one."""
_FIXED = {"alertname", "product", "cluster", "owner", "severity", *REASONS}
RULES = read_inhibitions({"inhibit_rules": inhibit_rules()})


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


def _key(alert: Mapping[str, str]) -> Labels:
    return tuple(sorted(alert.items()))


ALL = tuple({_key(each): each for each in _alerts()}.values())


def _silenced(rule: Inhibition) -> Iterator[tuple[dict[str, str], dict[str, str]]]:
    """Pairs of cause and symptom for which the rule works."""
    for source, target in product(filter(rule.is_source, ALL), filter(rule.is_target, ALL)):
        both = rule.is_target(source) and rule.is_source(target)
        if not both and rule.key(source) == rule.key(target):
            yield source, target


PAIRS = [(rule, source, target) for rule in RULES for source, target in _silenced(rule)]


def test_reasons() -> None:
    """Settings take the alerts and reasons that rules have, but for those that are a metric."""
    found = {key_of(each["alertname"], each) for each in ALL}
    known = {(alert, reason) for alert, reasons in ALERTS.items() for reason in reasons or ("",)}
    assert {each for each in found if not each[1].startswith("rankwatch_")} == known


def test_severity() -> None:
    """A ticket never silences a page, and alerts of others neither silence nor are silenced."""
    assert len(PAIRS) > 200
    for rule, source, target in PAIRS:
        assert _RANKING[source["severity"]] >= _RANKING[target["severity"]], rule
    sides = ("source_matchers", "target_matchers")
    assert {PRODUCT} == {rule[side][0] for rule in inhibit_rules() for side in sides}


def test_no_circle() -> None:
    """Of alerts that silence each other in turn nobody would hear."""
    silences: dict[Labels, set[Labels]] = {}
    for _, source, target in PAIRS:
        silences.setdefault(_key(source), set()).add(_key(target))
    while silences:
        last = [each for each, others in silences.items() if not others & silences.keys()]
        assert last, f"these silence each other: {sorted(silences)}"
        for each in last:
            del silences[each]


@pytest.mark.parametrize("entry", inhibitions(), ids=lambda entry: entry.why)
def test_entry(entry: Entry) -> None:
    """Each entry silences something on each side: its names, reasons and labels are those of alerts."""
    for matcher in (*entry.source, *entry.target):
        label, operator, value = MATCHER.fullmatch(matcher).groups()  # type: ignore[union-attr]
        known = {each.get(label, "") for each in ALL} - {""}
        if label in ("alertname", *REASONS):
            assert set(value.split("|")) <= known or value == ".+", matcher
        elif operator != "=" or value:
            assert any(re.fullmatch(value, each) for each in known), matcher
    assert any(True for rule in read_inhibitions({"inhibit_rules": entry.rules()}) for _ in _silenced(rule))


def test_parts() -> None:
    """Where both have a part, it is the same one, and they meet in a run or on a node: the fault of
    another GPU explains nothing."""
    for rule, source, target in PAIRS:
        shared, equal = source.keys() & target.keys(), set(rule.equal)
        assert shared & {"gpu", "device", "port", "path"} <= equal, rule
        assert not shared & {"run", "node"} or shared & {"run", "node"} & equal, rule


def _alert(text: str) -> Labels:
    """`RunFailed/waited warning run=r`: a page unless it says so, of the cluster c unless it names one."""
    name, *words = text.split()
    alert, _, reason = name.partition("/")
    labels = {
        "product": "rankwatch",
        "cluster": "c",
        "severity": "critical",
        "alertname": f"Rankwatch{alert}",
    }
    labels["cause" if alert == "RunSlow" else "reason"] = reason
    labels |= dict(word.split("=") for word in words if "=" in word)
    if "warning" in words:
        labels["severity"] = "warning"
    return tuple(sorted((label, value) for label, value in labels.items() if value))


HEARD_ALONE = (
    ("GpuFault/nvlink_down warning node=n gpu=2", "GpuFault/xid node=n gpu=2 xid=74"),
    ("GpuFault/nvlink_down node=n gpu=1", "GpuFault/xid node=n gpu=2 xid=74"),
    ("GpuFault/lost node=n gpu=1", "GpuFault/xid node=n gpu=2 xid=74"),
    ("NodeLost/network warning run=r", "TelemetryAbsent/agent_down warning node=n"),
    ("GpuFault/ecc_uncorrected node=n gpu=1", "RunFailed/failed warning run=r node=n rank=0"),
    ("NodeLost/node warning run=r node=n", "RunStalled/rank_unknown run=r"),
    ("NodeLost/node run=r node=n", "RunStalled/rank_unknown run=s"),
    ("TelemetryAbsent/agents_missing cluster=d", "NodeLost/network run=r"),
    ("NodeLost/node run=r node=n", "RunStalled/rank_unknown warning run=r product="),
)
"""A page beside a ticket, and alerts on another part, of another run or cluster, or of others."""
TOGETHER: Mapping[str, tuple[Iterable[str], Iterable[str]]] = {
    **{" | ".join(both): (both, ()) for both in HEARD_ALONE},
    "a lost node: what its run and its agents raise, and nothing of other runs and nodes": (
        (
            "NodeLost/node run=r node=n1",
            "NodeLost/node run=r node=n2",
            "LossDiverging/non_finite run=r",
            "TelemetryAbsent/agent_down node=n3",
            "RunStalled/rank_known run=s rank=0 node=n1",
        ),
        (
            "RunStalled/rank_known run=r rank=7 node=n1",
            "RunStalled/rank_unknown run=r",
            "RunStalled/mismatch_unknown run=r",
            "RunFailed/waited warning run=r",
            "CheckpointAtRisk/stale warning run=r",
            "TelemetryAbsent/run_vanished run=r",
            "TelemetryAbsent/agent_down node=n1",
            "TelemetryIncomplete/collector node=n2 collector=ranks",
        ),
    ),
    "most nodes lost: the alert has no node, so all agents that are down": (
        ("NodeLost/network run=r", "TelemetryIncomplete/collector node=n3 collector=host"),
        (
            "RunStalled/rank_unknown run=r",
            "TelemetryAbsent/agent_down warning node=n3",
            "TelemetryAbsent/agent_down warning job=rankwatch",
        ),
    ),
    "a small run that loses its network: its own stall, and no agent of others": (
        ("NodeLost/network warning run=r", "TelemetryAbsent/agent_down warning node=n3"),
        ("RunStalled/rank_unknown warning run=r",),
    ),
    "a node that is not seen: its agent; the run is judged as before": (
        (
            "TelemetryAbsent/node_unseen run=r node=n1",
            "TelemetryAbsent/agent_down node=n2",
            "RunSlow/slow_rank run=r rank=3 node=n2",
        ),
        ("TelemetryAbsent/agent_down node=n1",),
    ),
    "a stall, a lost GPU and a dark cluster at once": (
        (
            "RunStalled/mismatch_known run=a rank=0 node=n",
            "CheckpointAtRisk/failed warning run=a",
            "RunSlow/slow_rank warning run=b rank=3 node=n",
            "RunSlow/slow_rank run=c rank=1 node=n",
            "RunSlow/slow_rank warning run=c rank=2 node=n",
            "TelemetryIncomplete/collector warning node=n collector=host",
            "RunFailed/ranks_lost warning run=d",
            "RunStalled/rank_unknown run=d",
            "RunStalled/rank_known run=e rank=5 node=m",
            "GpuFault/lost node=h gpu=G1",
            "GpuFault/xid node=h gpu=G2 xid=79",
            "GpuFault/driver_unresponsive node=k",
            "LinkDown/rdma warning node=h device=mlx5_3 port=1",
            "LinkDown/flapping warning node=h device=mlx5_3 port=2",
            "TelemetryAbsent/agents_missing cluster=dark",
            "TelemetryAbsent/agent_down warning node=w",
        ),
        (
            "RunSlow/slow_rank warning run=a rank=3 node=n",
            "LossDiverging/trend run=a",
            "GpusWasted/mfu warning run=a",
            "RunSlow/slow_rank warning run=c rank=1 node=n",
            "RunStalled/rank_unknown run=e",
            "RunStalled/rank_known run=h rank=5 node=h",
            "RunFailed/failed warning run=i rank=5 node=h",
            "GpuFault/xid node=h gpu=G1 xid=79",
            "GpuFault/missing warning node=h",
            "TelemetryIncomplete/collector warning node=k collector=gpu",
            "LinkDown/flapping warning node=h device=mlx5_3 port=1",
            "NodeLost/network run=w cluster=dark",
            "TelemetryAbsent/agent_down warning node=w cluster=dark",
        ),
    ),
}
"""Alerts that are heard, and those that they hold back."""


@pytest.mark.parametrize(("heard", "held_back"), TOGETHER.values(), ids=TOGETHER)
def test_what_is_heard(heard: Iterable[str], held_back: Iterable[str]) -> None:
    """Of alerts that fire together, a cause holds back what it explains, and nothing else."""
    assert inhibited(map(_alert, (*heard, *held_back)), RULES) == set(map(_alert, held_back))


def test_silent_agents() -> None:
    """Where no agent of the cluster is heard, one page says so."""
    missing = _alert("TelemetryAbsent/agents_missing")
    reasons = ("run_vanished", "agent_down", "collector_state", "node_unseen")
    explained = [_key(each) for each in ALL if each.get("reason") in reasons]
    for target in (*explained, _alert("NodeLost/network run=r")):
        assert target in inhibited((missing, target), RULES), target
