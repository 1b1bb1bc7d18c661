"""Who is told what, and what explains what, proven on a real Alertmanager."""

from __future__ import annotations

import json
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from rankwatch_alerts import RuleConfig, alert_groups, alertmanager_config, to_yaml
from rankwatch_alerts.recording.held_back import held_back_rules
from rankwatch_alerts.servers import ALERTS_OF_SHARDS
from support.servers.prometheus import (
    alertmanager,
    backfill,
    get_json,
    poll,
    post_json,
    prometheus,
    query,
    require,
)


def _amtool(tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    require("amtool")
    path = tmp_path / "alertmanager.yml"
    path.write_text(to_yaml(alertmanager_config(RuleConfig())))
    arguments = tuple(each.replace("CONFIG", str(path)) for each in arguments)
    return subprocess.run(["amtool", *arguments], capture_output=True, text=True, check=False)


@pytest.mark.process
def test_amtool(tmp_path: Path) -> None:
    """With the placeholder receivers as shipped."""
    result = _amtool(tmp_path, "check-config", "CONFIG")
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.process
@pytest.mark.parametrize(
    ("severity", "labels", "receiver"),
    [
        ("critical", ["alertname=RankwatchStraggler"], "page-platform"),
        ("critical", ["alertname=RankwatchLossNonFinite", "page=yes"], "page-training"),
        ("critical", ["alertname=RankwatchLossNonFinite", "page=no"], "ticket-training"),
        ("warning", ["alertname=RankwatchStraggler"], "ticket-platform"),
        ("warning", ["alertname=RankwatchPriceUnknown"], "ticket-training"),
        ("info", ["alertname=RankwatchGpuXid"], "null"),
        ("info", ["alertname=RankwatchWatchdog"], "dead-man"),
        ("odd", ["alertname=RankwatchGpuXid"], "ticket-platform"),
        ("critical", ["alertname=TheirOwn"], "page"),
        ("odd", ["alertname=TheirOwn"], "ticket"),
    ],
)
def test_route(tmp_path: Path, severity: str, labels: list[str], receiver: str) -> None:
    """Severity, the class of the run (label `page`) and the owner of the alert decide the receiver.

    An unknown severity goes to tickets rather than nowhere, and so do alerts that the rules do not know.
    """
    route = ("config", "routes", "test", "--config.file=CONFIG", f"--verify.receivers={receiver}")
    result = _amtool(tmp_path, *route, f"severity={severity}", "run=r", *labels)
    assert result.returncode == 0, result.stdout + result.stderr


def test_webhook() -> None:
    """Pages and tickets of all owners are posted there; the receiver null stays empty."""
    config: Any = alertmanager_config(RuleConfig(), "http://127.0.0.1:1/alerts")
    silent = {each["name"] for each in config["receivers"] if "webhook_configs" not in each}
    assert silent == {"null", "dead-man"}


def _alert(name: str, severity: str, **labels: str) -> dict[str, Any]:
    return {"labels": {"alertname": name, "severity": severity, "cluster": "c", **labels}}


_STALL, _STRAGGLER = "RankwatchRunStalled", "RankwatchStraggler"
_HELD_BACK = {
    (_STRAGGLER, "warning", "a", "3"),
    ("RankwatchLossDiverging", "critical", "a", ""),
    ("RankwatchJitter", "warning", "a", ""),
    (_STRAGGLER, "warning", "c", "1"),
    (_STALL, "critical", "d", ""),
    (_STALL, "critical", "e", ""),
    (_STALL, "critical", "h", ""),
    ("RankwatchRankLost", "critical", "h", ""),
    (_STRAGGLER, "warning", "h", "4"),
    (_STRAGGLER, "critical", "k", "7"),
    ("RankwatchRunBehindPlan", "warning", "m", ""),
    ("RankwatchGpuXid", "critical", "h", "1"),
    ("RankwatchGpusMissing", "warning", "h", ""),
    ("RankwatchCollectorFailing", "warning", "", ""),
    ("RankwatchRdmaErrors", "warning", "h", ""),
    ("RankwatchRdmaLinkFlapping", "warning", "h", ""),
    ("RankwatchClockWrong", "warning", "", ""),
}
"""Name, severity, run and rank of those of `_alerts` that another one explains."""


@pytest.mark.process
def test_inhibition(tmp_path: Path) -> None:
    """A stall holds back the straggler of its own run; other runs, and alerts without a run, stay active."""
    alerts = _alerts()
    with alertmanager(alertmanager_config(RuleConfig.for_demo()), tmp_path) as url:
        post_json(f"{url}/api/v2/alerts", alerts)
        # Inhibition is worked out when a group is flushed: wait until all groups have been.
        poll(lambda: _states(url, len(alerts)) == _HELD_BACK, 60, "inhibition of the explained alerts")


@pytest.mark.process
@pytest.mark.parametrize("sharded", [False, True])
def test_boards_hold_back_the_same(sharded: bool, tmp_path: Path) -> None:
    """The rule that boards read finds what Alertmanager holds back, also for alerts of another server."""
    name, config = "ALERTS", RuleConfig()
    if sharded:
        name = ALERTS_OF_SHARDS
        shards = ("a:9090", "b:9090")
        config = replace(config, prometheus_shards=shards, prometheus_fleet="c:9090")
    lines = [_line(name, {**each["labels"], "alertstate": "firing", "instance": "i"}) for each in _alerts()]
    backfill(lines, tmp_path)
    (rule,) = held_back_rules(config)
    with prometheus({"scrape_configs": []}, tmp_path) as url:
        found = query(url, rule.expression)
    assert {_identity(each["metric"]) for each in found} == _HELD_BACK


def _line(name: str, labels: Mapping[str, str]) -> str:
    """Of OpenMetrics."""
    held = ",".join(f'{label}="{value}"' for label, value in labels.items())
    return f"{name}{{{held}}} 1 {int(time.time())}"


def _alerts() -> list[dict[str, Any]]:
    return [
        _alert(_STALL, "critical", run="a"),
        _alert(_STRAGGLER, "warning", run="a", rank="3", node="n"),
        _alert("RankwatchLossDiverging", "critical", run="a"),
        _alert("RankwatchJitter", "warning", run="a"),
        _alert("RankwatchCheckpointFailed", "warning", run="a", rank="0", node="n"),
        _alert(_STRAGGLER, "warning", run="b", rank="3", node="n"),
        _alert(_STRAGGLER, "critical", run="c", rank="1", node="n"),
        _alert(_STRAGGLER, "warning", run="c", rank="1", node="n"),
        _alert(_STRAGGLER, "warning", run="c", rank="2", node="n"),
        _alert("RankwatchCollectorFailing", "warning", collector="host", node="n"),
        _alert("RankwatchRankLost", "critical", run="d", rank="0", node="n"),
        _alert(_STALL, "critical", run="d"),
        _alert(_STALL, "critical", run="e", reason="rank_unknown"),
        _alert("RankwatchCollectivesDesynchronised", "critical", run="e", reason="rank_known", rank="5"),
        *_hardware_alerts(),
    ]


def _hardware_alerts() -> list[dict[str, Any]]:
    """On node h a lost GPU explains most; the XID of another GPU, and a port of another node, stay active."""
    gpu, port = {"node": "h", "gpu": "G1", "rank": "1"}, {"node": "h", "device": "mlx5_3", "port": "1"}
    return [
        _alert("RankwatchGpuLost", "critical", run="h", **gpu),
        _alert("RankwatchRunStalled", "critical", run="h"),
        _alert("RankwatchRankLost", "critical", run="h"),
        _alert("RankwatchStraggler", "warning", run="h", rank="4", node="m"),
        _alert("RankwatchGpuPowerBrake", "critical", run="k", node="l", gpu="G7", rank="7"),
        _alert("RankwatchStraggler", "critical", run="k", node="l", rank="7"),
        _alert("RankwatchStraggler", "critical", run="k", node="l", rank="6"),
        _alert("RankwatchRunFailed", "critical", run="m"),
        _alert("RankwatchRunBehindPlan", "warning", run="m"),
        _alert("RankwatchGpuXid", "critical", run="h", xid="79", **gpu),
        _alert("RankwatchGpuXid", "critical", run="i", xid="79", **{**gpu, "gpu": "G2", "rank": "2"}),
        _alert("RankwatchGpusMissing", "warning", run="h", node="h"),
        _alert("RankwatchGpuDriverUnresponsive", "critical", run="j", node="k"),
        _alert("RankwatchCollectorFailing", "warning", collector="gpu", node="k"),
        _alert("RankwatchRdmaLinkFlapping", "critical", run="h", **port),
        _alert("RankwatchRdmaLinkFlapping", "warning", run="h", **port),
        _alert("RankwatchRdmaLinkFlapping", "warning", run="i", **{**port, "node": "i"}),
        _alert("RankwatchRdmaLinkDown", "critical", run="h", **{**port, "port": "2"}),
        _alert("RankwatchRdmaErrors", "warning", run="h", **{**port, "port": "2"}),
        _alert("RankwatchClockWrong", "warning", run="h", node="h"),
        _alert("RankwatchClockWrong", "warning", node="h"),
        _alert("RankwatchOomKill", "warning", run="h", node="h"),
        _alert("RankwatchOomKill", "warning", node="m"),
    ]


def _states(url: str, alerts: int) -> set[tuple[str, str, str, str]] | None:
    """The alerts held back, or None until each has been processed."""
    answer = get_json(f"{url}/api/v2/alerts")
    if len(answer) < alerts or any(each["status"]["state"] == "unprocessed" for each in answer):
        return None
    return {_identity(each["labels"]) for each in answer if each["status"]["inhibitedBy"]}


def _identity(labels: Mapping[str, str]) -> tuple[str, str, str, str]:
    return labels["alertname"], labels["severity"], labels.get("run", ""), labels.get("rank", "")


@pytest.mark.process
def test_second_cause_is_not_held_behind_the_first(tmp_path: Path) -> None:
    """A page of another alert of the same run is a group of its own: it waits `group_wait`, as the first did.

    With one group for the run it would wait for `group_interval`, which is longer than this test.
    """
    config = replace(RuleConfig.for_demo(), group_interval_seconds=600.0, page_group_interval_seconds=600.0)
    with (
        _webhook() as (url, received),
        alertmanager(alertmanager_config(config, url), tmp_path) as base,
    ):
        for name in ("RankwatchRankLost", "RankwatchLossNonFinite"):
            post_json(f"{base}/api/v2/alerts", [_alert(name, "critical", run="a")])
            poll(lambda name=name: name in received, 60, f"page of {name}")  # type: ignore[misc]


@pytest.mark.process
def test_further_rank_of_an_open_page(tmp_path: Path) -> None:
    """One more alert of the same name waits for the page's own `group_interval`, not for that of tickets."""
    config = replace(RuleConfig.for_demo(), group_interval_seconds=600.0)
    stall = "RankwatchRunStalled"
    with (
        _webhook() as (url, received),
        alertmanager(alertmanager_config(config, url), tmp_path) as base,
    ):
        for rank in ("1", "2"):
            post_json(f"{base}/api/v2/alerts", [_alert(stall, "critical", run="a", rank=rank)])
            poll(lambda rank=rank: f"{stall} {rank}" in received, 60, f"page of rank {rank}")  # type: ignore[misc]


def test_no_victim_outlives_its_cause() -> None:
    """An alert that goes on after its cause has resolved would notify of what is over."""
    rules = [rule for group in alert_groups(RuleConfig()) for rule in group.rules]
    kept = {
        each.alert: [rule.keep_firing_seconds for rule in rules if rule.alert == each.alert] for each in rules
    }
    pairs = 0
    for rule in alertmanager_config(RuleConfig())["inhibit_rules"]:  # type: ignore[attr-defined]
        for source in _alert_names(rule["source_matchers"]):
            for target in _alert_names(rule["target_matchers"]):
                assert min(kept[source]) >= max(kept[target]), (source, target)
                pairs += 1
    assert pairs > 100


def _alert_names(matchers: list[str]) -> list[str]:
    (matcher,) = (each for each in matchers if each.startswith("alertname="))
    return matcher.split('"')[1].split("|")


def test_a_page_waits_for_a_minute_at_most() -> None:
    """As shipped: the first of a group for 30 s, and a change of an open group for one minute."""
    routes = alertmanager_config(RuleConfig())["route"]["routes"]  # type: ignore[index]
    (page,) = (each for each in routes if each["receiver"] == "page")
    assert all(set(each) == {"receiver", "matchers"} for each in page["routes"])
    assert page["group_by"] == ["alertname", "cluster", "run"]
    assert page["group_interval"] == "1m"


@contextmanager
def _webhook() -> Iterator[tuple[str, dict[str, float]]]:
    """A receiver; yields its URL, and the moment of the first notification of each alert, by its name and by
    its name and rank.
    """
    received: dict[str, float] = {}

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            for each in body["alerts"]:
                labels = each["labels"]
                received.setdefault(labels["alertname"], time.monotonic())
                received.setdefault(f"{labels['alertname']} {labels.get('rank')}", time.monotonic())
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/", received
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
