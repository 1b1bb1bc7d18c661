"""Who is told what, and what explains what, proven on a real Alertmanager."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from rankwatch_alerts import RuleConfig, alertmanager_config, to_yaml
from support.servers.prometheus import alertmanager, get_json, poll, post_json, require


def _amtool(tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    require("amtool")
    path = tmp_path / "alertmanager.yml"
    path.write_text(to_yaml(alertmanager_config(RuleConfig())))
    arguments = tuple(each.replace("CONFIG", str(path)) for each in arguments)
    return subprocess.run(["amtool", *arguments], capture_output=True, text=True, check=False)


def test_amtool(tmp_path: Path) -> None:
    """With the placeholder receivers as shipped."""
    result = _amtool(tmp_path, "check-config", "CONFIG")
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize(
    ("severity", "receiver"),
    [("critical", "page"), ("warning", "ticket"), ("info", "null"), ("odd", "ticket")],
)
def test_route(tmp_path: Path, severity: str, receiver: str) -> None:
    """Severity decides the receiver; an unknown one goes to tickets rather than nowhere."""
    route = ("config", "routes", "test", "--config.file=CONFIG", f"--verify.receivers={receiver}")
    result = _amtool(tmp_path, *route, "alertname=RankwatchStraggler", f"severity={severity}", "run=r")
    assert result.returncode == 0, result.stdout + result.stderr


def test_webhook() -> None:
    """Pages and tickets are posted there; the receiver null stays empty."""
    config: Any = alertmanager_config(RuleConfig(), "http://127.0.0.1:1/alerts")
    posted = {each["name"] for each in config["receivers"] if "webhook_configs" in each}
    assert posted == {"page", "ticket"}


def _alert(name: str, severity: str, **labels: str) -> dict[str, object]:
    return {"labels": {"alertname": name, "severity": severity, "cluster": "c", **labels}}


@pytest.mark.e2e
def test_inhibition(tmp_path: Path) -> None:
    """A stall holds back the straggler of its own run; other runs, and alerts without a run, stay active."""
    stall, straggler = "RankwatchRunStalled", "RankwatchStraggler"
    alerts = [
        _alert(stall, "critical", run="a"),
        _alert(straggler, "warning", run="a", rank="3", node="n"),
        _alert("RankwatchLossDiverging", "critical", run="a"),
        _alert("RankwatchJitter", "warning", run="a"),
        _alert("RankwatchCheckpointFailed", "warning", run="a", rank="0", node="n"),
        _alert(straggler, "warning", run="b", rank="3", node="n"),
        _alert(straggler, "critical", run="c", rank="1", node="n"),
        _alert(straggler, "warning", run="c", rank="1", node="n"),
        _alert(straggler, "warning", run="c", rank="2", node="n"),
        _alert("RankwatchCollectorFailing", "warning", collector="host", node="n"),
        _alert("RankwatchRankLost", "critical", run="d", rank="0", node="n"),
        _alert(stall, "critical", run="d"),
        _alert(stall, "critical", run="e", reason="rank_unknown"),
        _alert("RankwatchCollectivesDesynchronised", "critical", run="e", reason="rank_known", rank="5"),
    ]
    held_back = {
        (straggler, "warning", "a", "3"),
        ("RankwatchLossDiverging", "critical", "a", ""),
        ("RankwatchJitter", "warning", "a", ""),
        (straggler, "warning", "c", "1"),
        (stall, "critical", "d", ""),
        (stall, "critical", "e", ""),
    }
    with alertmanager(alertmanager_config(RuleConfig.for_demo()), tmp_path) as url:
        post_json(f"{url}/api/v2/alerts", alerts)
        # Inhibition is worked out when a group is flushed: wait until all groups have been.
        poll(lambda: _states(url, len(alerts)) == held_back, 60, "inhibition of the explained alerts")


def _states(url: str, alerts: int) -> set[tuple[str, str, str, str]] | None:
    """The alerts held back, or None until each has been processed."""
    answer = get_json(f"{url}/api/v2/alerts")
    if len(answer) < alerts or any(each["status"]["state"] == "unprocessed" for each in answer):
        return None
    return {
        (labels["alertname"], labels["severity"], labels.get("run", ""), labels.get("rank", ""))
        for each in answer
        if each["status"]["inhibitedBy"]
        for labels in [each["labels"]]
    }
