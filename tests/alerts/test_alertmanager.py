"""Who is told what, and what explains what, proven on a real Alertmanager."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from rankwatch_alerts import RuleConfig, alertmanager_config, to_yaml
from support.servers.loopback import serving
from support.servers.prometheus import (
    alertmanager,
    get_json,
    poll,
    post_json,
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


def test_dead_man_is_called_each_interval() -> None:
    """The repeat interval is shorter than that of the group. If it is as long, a flush may come a moment too
    early to repeat (on a real Alertmanager with 2 s, 8 calls in 24 s in place of 12)."""
    config: Any = alertmanager_config(RuleConfig())
    watchdog = config["route"]["routes"][0]["routes"][0]
    assert watchdog["receiver"] == "rankwatch-dead-man"
    assert (watchdog["group_interval"], watchdog["repeat_interval"]) == ("1m", "30s")


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


def _alert(name: str, reason: str, severity: str, **labels: str) -> dict[str, Any]:
    told_by = "cause" if name == "RunSlow" else "reason"
    fixed = {"alertname": f"Rankwatch{name}", told_by: reason, "severity": severity}
    return {"labels": {"product": "rankwatch", "owner": "platform", "cluster": "c", **fixed, **labels}}


_EXPLAINED = (
    _alert("RunSlow", "slow_rank", "warning", run="a", rank="3", node="n"),
    _alert("LossDiverging", "trend", "critical", run="a"),
    _alert("GpusWasted", "mfu", "warning", run="a"),
    _alert("RunSlow", "slow_rank", "warning", run="c", rank="1", node="n"),
    _alert("RunStalled", "rank_unknown", "critical", run="e"),
    _alert("RunStalled", "rank_known", "critical", run="h", rank="5", node="h"),
    _alert("RunFailed", "failed", "warning", run="i", rank="5", node="h"),
    _alert("GpuFault", "xid", "critical", node="h", gpu="G1", xid="79"),
    _alert("GpuFault", "missing", "warning", node="h"),
    _alert("TelemetryIncomplete", "collector", "warning", node="k", collector="gpu"),
    _alert("LinkDown", "flapping", "warning", node="h", device="mlx5_3", port="1"),
    _alert("NodeLost", "network", "critical", run="w", cluster="dark"),
    _alert("TelemetryAbsent", "agent_down", "warning", node="w", cluster="dark"),
)
_HEARD = (
    _alert("RunStalled", "mismatch_known", "critical", run="a", rank="0", node="n"),
    _alert("CheckpointAtRisk", "failed", "warning", run="a"),
    _alert("RunSlow", "slow_rank", "warning", run="b", rank="3", node="n"),
    _alert("RunSlow", "slow_rank", "critical", run="c", rank="1", node="n"),
    _alert("RunSlow", "slow_rank", "warning", run="c", rank="2", node="n"),
    _alert("TelemetryIncomplete", "collector", "warning", node="n", collector="host"),
    _alert("RunFailed", "ranks_lost", "warning", run="d"),
    _alert("RunStalled", "rank_unknown", "critical", run="d"),
    _alert("RunStalled", "rank_known", "critical", run="e", rank="5", node="m"),
    _alert("GpuFault", "lost", "critical", node="h", gpu="G1"),
    _alert("GpuFault", "xid", "critical", node="h", gpu="G2", xid="79"),
    _alert("GpuFault", "driver_unresponsive", "critical", node="k"),
    _alert("LinkDown", "rdma", "warning", node="h", device="mlx5_3", port="1"),
    _alert("LinkDown", "flapping", "warning", node="h", device="mlx5_3", port="2"),
    _alert("TelemetryAbsent", "agents_missing", "critical", cluster="dark"),
    _alert("TelemetryAbsent", "agent_down", "warning", node="w"),
)


@pytest.mark.process
def test_inhibition(tmp_path: Path) -> None:
    """A stall holds back the straggler of its own run; other runs and parts, and pages beside tickets, stay
    active."""
    alerts = [*_EXPLAINED, *_HEARD]
    expected = {_identity(each["labels"]) for each in _EXPLAINED}
    with alertmanager(alertmanager_config(RuleConfig.for_demo()), tmp_path) as url:
        post_json(f"{url}/api/v2/alerts", alerts)
        # Inhibition is worked out when a group is flushed: wait until all groups have been.
        poll(lambda: _states(url, len(alerts)) == expected, 60, "inhibition of the explained alerts")


def _states(url: str, alerts: int) -> set[tuple[tuple[str, str], ...]] | None:
    """The alerts held back, or None until each has been processed."""
    answer = get_json(f"{url}/api/v2/alerts")
    if len(answer) < alerts or any(each["status"]["state"] == "unprocessed" for each in answer):
        return None
    return {_identity(each["labels"]) for each in answer if each["status"]["inhibitedBy"]}


def _identity(labels: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(labels.items()))


@pytest.mark.process
def test_second_cause_is_not_held_behind_the_first(tmp_path: Path) -> None:
    """A page of another alert of the same run is a group of its own: it waits `group_wait`, as the first did.

    With one group for the run it would wait for `group_interval`, which is longer than this test.
    """
    config = replace(RuleConfig.for_demo(), group_interval_seconds=600.0, page_group_interval_seconds=600.0)
    with (
        _webhook() as (url, received),
        alertmanager(
            alertmanager_config(replace(config, webhook_urls={"page": url, "ticket": url})),
            tmp_path,
        ) as base,
    ):
        for name in ("ReplicasDisagree", "LossDiverging"):
            post_json(f"{base}/api/v2/alerts", [_alert(name, "", "critical", run="a")])
            poll(lambda name=name: f"Rankwatch{name}" in received, 60, f"page of {name}")  # type: ignore[misc]


@pytest.mark.process
def test_further_rank_of_an_open_page(tmp_path: Path) -> None:
    """One more alert of the same name waits for the page's own `group_interval`, not for that of tickets."""
    config = replace(RuleConfig.for_demo(), group_interval_seconds=600.0)
    stall = "RankwatchRunStalled"
    with (
        _webhook() as (url, received),
        alertmanager(
            alertmanager_config(replace(config, webhook_urls={"page": url, "ticket": url})),
            tmp_path,
        ) as base,
    ):
        for rank in ("1", "2"):
            post_json(
                f"{base}/api/v2/alerts", [_alert("RunStalled", "rank_known", "critical", run="a", rank=rank)]
            )
            poll(lambda rank=rank: f"{stall} {rank}" in received, 60, f"page of rank {rank}")  # type: ignore[misc]


def test_a_page_waits_for_a_minute_at_most() -> None:
    """As shipped: the first of a group for 30 s, and a change of an open group for one minute."""
    (ours,) = alertmanager_config(RuleConfig())["route"]["routes"]  # type: ignore[index]
    (page,) = (each for each in ours["routes"] if each["receiver"] == "rankwatch-page")
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

    with serving(ThreadingHTTPServer(("127.0.0.1", 0), Handler)) as address:
        yield f"http://{address}/", received
