"""What a lost node explains, proven on a real Alertmanager. The rules themselves are tested by promtool."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankwatch_alerts import RuleConfig, alertmanager_config
from support.servers.prometheus import alertmanager, get_json, poll, post_json

pytestmark = pytest.mark.process

LOST, ABSENT, STALLED = "NodeLost", "TelemetryAbsent", "RunStalled"


def _alert(name: str, held_back: str = "", **labels: str) -> tuple[dict[str, str], bool]:
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


def test_lost_node(tmp_path: Path) -> None:
    """It holds back what its run raises and what its agent raises, and nothing of other runs and nodes."""
    yes = "by the lost node"
    _inhibited(
        tmp_path,
        _alert(LOST, reason="node", run="r", node="n1"),
        _alert(LOST, reason="node", run="r", node="n2"),
        _alert(STALLED, yes, reason="rank_known", run="r", rank="7", node="n1"),
        _alert(STALLED, yes, reason="rank_unknown", run="r"),
        _alert(STALLED, yes, reason="mismatch_unknown", run="r"),
        _alert("RunFailed", yes, reason="waited", run="r", severity="warning"),
        _alert("CheckpointAtRisk", yes, reason="stale", run="r", severity="warning"),
        _alert(ABSENT, yes, reason="run_vanished", run="r"),
        _alert(ABSENT, yes, reason="agent_down", node="n1"),
        _alert("TelemetryIncomplete", yes, reason="collector", collector="ranks", node="n2"),
        _alert("LossDiverging", reason="non_finite", run="r"),
        _alert(ABSENT, reason="agent_down", node="n3"),
        _alert(STALLED, reason="rank_known", run="s", rank="0", node="n1"),
    )


def test_most_nodes_lost(tmp_path: Path) -> None:
    """The alert has no node, so it holds back the alerts on all agents that are down."""
    yes = "by the lost nodes"
    _inhibited(
        tmp_path,
        _alert(LOST, reason="network", run="r"),
        _alert(STALLED, yes, reason="rank_unknown", run="r"),
        _alert(ABSENT, yes, reason="agent_down", node="n3", severity="warning"),
        _alert(ABSENT, yes, reason="agent_down", job="rankwatch", severity="warning"),
        _alert("TelemetryIncomplete", reason="collector", collector="host", node="n3"),
    )


def test_small_run_loses_its_network(tmp_path: Path) -> None:
    """Its ticket explains its own stall, and no agent of others."""
    _inhibited(
        tmp_path,
        _alert(LOST, reason="network", run="r", severity="warning"),
        _alert(STALLED, "by the lost nodes", reason="rank_unknown", run="r", severity="warning"),
        _alert(ABSENT, reason="agent_down", node="n3", severity="warning"),
    )


def test_unseen_node(tmp_path: Path) -> None:
    """One ticket for one agent; the run is judged as before."""
    yes = "by the node that is not seen"
    _inhibited(
        tmp_path,
        _alert(ABSENT, reason="node_unseen", run="r", node="n1"),
        _alert(ABSENT, yes, reason="agent_down", node="n1"),
        _alert(ABSENT, reason="agent_down", node="n2"),
        _alert("RunSlow", cause="slow_rank", run="r", rank="3", node="n2"),
    )
