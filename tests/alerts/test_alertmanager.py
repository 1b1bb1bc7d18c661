"""Who is told what, proven on a real Alertmanager."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rankwatch_alerts import RuleConfig, alertmanager_config, to_yaml
from support.servers.notified import web_server
from support.servers.prometheus import alertmanager, poll, post_json, require


def _amtool(tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    require("amtool")
    path = tmp_path / "alertmanager.yml"
    path.write_text(to_yaml(alertmanager_config(RuleConfig())))
    arguments = tuple(each.replace("CONFIG", str(path)) for each in arguments)
    return subprocess.run(["amtool", *arguments], capture_output=True, text=True, check=False)


@pytest.mark.process
@pytest.mark.parametrize(
    ("severity", "labels", "receiver"),
    [
        ("critical", ["owner=platform"], "rankwatch-page-platform"),
        ("critical", ["owner=training"], "rankwatch-page-training"),
        ("warning", ["owner=platform"], "rankwatch-ticket-platform"),
        ("warning", ["owner=training"], "rankwatch-ticket-training"),
        ("warning", ["owner=nobody"], "rankwatch-ticket"),
        ("info", ["owner=platform"], "rankwatch-null"),
        ("info", ["alertname=RankwatchWatchdog"], "rankwatch-dead-man"),
        ("odd", ["owner=platform"], "rankwatch-ticket-platform"),
        ("critical", ["product=theirs"], "rankwatch-ticket"),
        ("info", ["product=theirs"], "rankwatch-ticket"),
    ],
)
def test_route(tmp_path: Path, severity: str, labels: list[str], receiver: str) -> None:
    """Severity and owner decide the receiver. An unknown severity goes to tickets rather than nowhere, and so
    do alerts of other rules, whatever they are."""
    route = ("config", "routes", "test", "--config.file=CONFIG", f"--verify.receivers={receiver}")
    ours = [] if any("product" in each for each in labels) else ["product=rankwatch"]
    result = _amtool(tmp_path, *route, f"severity={severity}", "run=r", *ours, *labels)
    assert result.returncode == 0, result.stdout + result.stderr


def test_webhook() -> None:
    """Pages and tickets of all owners are posted there; the receiver null stays empty."""
    config: Any = alertmanager_config(
        replace(
            RuleConfig(),
            webhook_urls={"page": "http://127.0.0.1:1/alerts", "ticket": "http://127.0.0.1:1/alerts"},
        )
    )
    silent = {each["name"] for each in config["receivers"] if "webhook_configs" not in each}
    assert silent == {"rankwatch-null", "rankwatch-dead-man"}


def _alert(name: str, reason: str, **labels: str) -> dict[str, Any]:
    fixed = {"alertname": f"Rankwatch{name}", "reason": reason, "severity": "critical", "run": "a"}
    return {"labels": {"product": "rankwatch", "owner": "platform", "cluster": "c", **fixed, **labels}}


@pytest.mark.process
@pytest.mark.parametrize(
    ("alerts", "of_pages"),
    [
        (
            (_alert("ReplicasDisagree", ""), _alert("LossDiverging", "")),
            {"page_group_interval_seconds": 600.0},
        ),
        ([_alert("RunStalled", "rank_known", rank=rank) for rank in "12"], {}),
    ],
    ids=["second-cause", "further-rank"],
)
def test_second_page_of_a_run(
    alerts: Sequence[Mapping[str, Any]], of_pages: Mapping[str, float], tmp_path: Path
) -> None:
    """A page of another alert of the same run is a group of its own: it waits `group_wait`, as the first did.
    One more rank of an open page waits for the page's own `group_interval`. Otherwise they would wait for an
    interval that is longer than this test."""
    config = replace(RuleConfig.for_demo(), group_interval_seconds=600.0, **of_pages)
    with web_server() as (url, posted):
        config = replace(config, webhook_urls=dict.fromkeys(("page", "ticket"), f"{url}/"))
        with alertmanager(alertmanager_config(config), tmp_path) as base:
            for each in alerts:
                post_json(f"{base}/api/v2/alerts", [each])
                poll(lambda labels=each["labels"]: _told(posted, labels), 60, f"page of {each}")  # type: ignore[misc]


def _told(posted: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    known = {label: value for label, value in labels.items() if value}
    return any(alert["labels"] == known for body in posted.get("all /", ()) for alert in body["alerts"])


def test_intervals() -> None:
    """A page waits for a minute at most: the first of a group for 30 s, a change of an open one for a minute.

    The dead man's repeat interval is shorter than that of its group. If it is as long, a flush may come a
    moment too early to repeat (on a real Alertmanager with 2 s, 8 calls in 24 s in place of 12).
    """
    (ours,) = alertmanager_config(RuleConfig())["route"]["routes"]  # type: ignore[index]
    page, watchdog = (
        next(each for each in ours["routes"] if each["receiver"] == f"rankwatch-{name}")
        for name in ("page", "dead-man")
    )
    assert all(set(each) == {"receiver", "matchers"} for each in page["routes"])
    assert (page["group_by"], page["group_interval"]) == (["alertname", "cluster", "run"], "1m")
    assert (watchdog["group_interval"], watchdog["repeat_interval"]) == ("1m", "30s")
