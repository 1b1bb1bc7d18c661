"""Every entry of inhibitions.yaml against every alert: nothing silences what matters more, or itself."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path

import pytest
import yaml

from rankwatch_alerts.adjustments import ALERTS, REASONS, SEVERITIES
from rankwatch_alerts.alertmanager.inhibition import MATCHER, PRODUCT, Inhibition, inhibit_rules, inhibitions

IDENTITIES: Mapping[str, Mapping[str, str]] = yaml.safe_load(
    Path(__file__).with_name("identities.yaml").read_text()
)
_SEVERITY = {each[0]: each for each in SEVERITIES}
_RANKING = {"critical": 2, "warning": 1, "info": 0}
_VALUES = {"collector": ("gpu", "host"), "xid": ("48", "74", "79")}
"""Of labels of which an entry asks for values; others have one."""


def _alerts() -> Iterator[dict[str, str]]:
    """Every alert of one node, run and part, with each severity that it can have."""
    for alert, reasons in IDENTITIES.items():
        for reason, described in reasons.items():
            severities, *labels = described.split()
            told_by = "cause" if alert == "RankwatchRunSlow" else "reason"
            fixed = {"alertname": alert, "product": "rankwatch", "cluster": "c", told_by: reason}
            optional = [each.removesuffix("?") for each in labels if each.endswith("?")]
            kept = [each for each in labels if not each.endswith("?")]
            for shown in (kept, [*kept, *optional])[: 1 + bool(optional)]:
                values = product(severities, *(_VALUES.get(each, ("1",)) for each in shown))
                for severity, *rest in values:
                    named = dict(zip(shown, rest, strict=True))
                    yield {**fixed, **named, "severity": _SEVERITY[severity]}


ALL = tuple(_alerts())


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


def test_identities() -> None:
    """The table below which all is proved names the alerts and reasons that settings take."""
    assert {name: tuple(each for each in reasons if each) for name, reasons in IDENTITIES.items()} == dict(
        ALERTS
    )


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


def _key(alert: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(f"{name}={text}" for name, text in sorted(alert.items()))


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
    fixed = {"alertname": f"Rankwatch{name}", "reason": reason, "severity": _SEVERITY[severity]}
    return {"product": "rankwatch", "cluster": "c", **fixed, **labels}


_XID = _alert("GpuFault", "xid", "c", node="n", gpu="2", xid="74")


@pytest.mark.parametrize(
    ("source", "target"),
    [
        (_alert("GpuFault", "nvlink_down", "w", node="n", gpu="2"), _XID),
        (_alert("GpuFault", "nvlink_down", "c", node="n", gpu="1"), _XID),
        (_alert("GpuFault", "lost", "c", node="n", gpu="1"), _XID),
        (_alert("NodeLost", "network", "w", run="r"), _alert("TelemetryAbsent", "agent_down", "w", node="n")),
        (
            _alert("GpuFault", "ecc_uncorrected", "c", node="n", gpu="1"),
            _alert("RunFailed", "failed", "w", run="r", node="n", rank="0"),
        ),
        (
            _alert("NodeLost", "node", "w", run="r", node="n"),
            _alert("RunStalled", "rank_unknown", "c", run="r"),
        ),
        (
            _alert("NodeLost", "node", "c", run="r", node="n"),
            _alert("RunStalled", "rank_unknown", "c", run="s"),
        ),
        (
            _alert("TelemetryAbsent", "agents_missing", "c", cluster="d"),
            _alert("NodeLost", "network", "c", run="r"),
        ),
        (
            _alert("NodeLost", "node", "c", run="r", node="n"),
            {**_alert("RunStalled", "rank_unknown", "w", run="r"), "product": ""},
        ),
    ],
)
def test_what_is_heard(source: Mapping[str, str], target: Mapping[str, str]) -> None:
    """A page beside a ticket, and alerts on another part, of another run or cluster, or of others."""
    assert not _holds_back(source, target)


def test_silent_agents() -> None:
    """Where no agent of the cluster is heard, one page says so."""
    missing = _alert("TelemetryAbsent", "agents_missing", "c")
    for target in ALL:
        if target.get("reason") in ("run_vanished", "agent_down", "collector_state", "node_unseen"):
            assert _holds_back(missing, target), target
    assert _holds_back(missing, _alert("NodeLost", "network", "c", run="r"))
