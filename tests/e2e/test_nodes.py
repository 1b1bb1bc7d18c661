"""Nodes that fail, each a network namespace: every alert names the right node, and a lost node is one page.

The monotonic clock of node B is half a million seconds ahead of the others'. The faults come one after
another on one set-up: a slow, a stopped and a killed rank; a slow link; an agent that is killed and a node
that Prometheus cannot reach; a link that is down, and then another.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from rankwatch_alerts import Alert, RuleConfig
from rankwatch_alerts.config.thresholds import DEFAULT_CLASS
from rankwatch_cli.demo.parts import Alert as DeliveredAlert
from support.e2e.hangs import LEARNT_STEP, SECONDS_TO_STEP
from support.e2e.monitored_system import SECONDS_TO_ALERT, complete
from support.e2e.node_cluster import NodeCluster, node_cluster
from support.servers.prometheus import get_json, poll, query, require

pytestmark = pytest.mark.process

A, B, C = NODES = ("node-a", "node-b", "node-c")
SPARE = "node-d"
"""Without ranks. Two of three nodes that vanish would be the telemetry of the cluster."""
CLOCK_AHEAD_SECONDS = {B: 500_000}
TIME_SCALE = 60.0
CONFIG = replace(
    RuleConfig().scaled(TIME_SCALE),
    network_min_baseline_seconds=15.0,
    tcp_least_segments=1000.0,
    cause_for_seconds=12.0,
    absence_for_seconds=5.0,
    page_least_ranks={DEFAULT_CLASS: 1.0},
    ticket_hours="",
)
"""The times of a slow network and of unseen nodes are shorter, because everything else waits for them. Small
runs page, and tickets are delivered at all hours."""
SLOW, STOPPED, KILLED, SPREAD = "slow-rank", "stopped-rank", "killed-rank", "spread"
SPREAD_FLAGS = ("--width", "64", "--layer-forward-seconds", "0.08", "--layer-backward-seconds", "0.16")
SLOW_BITS_PER_SECOND = 10_000_000


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeCluster]:
    """Four runs across the nodes. The faults of three are on node B."""
    require("prometheus", "prometheus-alertmanager")
    directory = tmp_path_factory.mktemp("nodes")
    with node_cluster(directory, CONFIG, (*NODES, SPARE), CLOCK_AHEAD_SECONDS) as cluster:
        cluster.torchrun_across(KILLED, (A, B), ranks=1, faults=("kill:rank=1,from=25",))
        cluster.train_across(SPREAD, {A: 1, B: 1, C: 1}, flags=SPREAD_FLAGS)
        cluster.train_across(SLOW, {A: 2, B: 2}, ("straggler:rank=3,factor=2",))
        stopped = cluster.train_across(STOPPED, {A: 2, B: 1})
        poll(lambda: cluster.steps(STOPPED) >= LEARNT_STEP, SECONDS_TO_STEP, f"steps of {STOPPED}")
        os.kill(stopped[2], signal.SIGSTOP)
        yield cluster


def _named(cluster: NodeCluster, run: str, name: Alert, **labels: str) -> DeliveredAlert:
    alert = cluster.alert(run, name, **labels)
    assert complete(alert, CONFIG), str(alert)
    assert all(label in alert.annotations["description"] for label in labels.values() if label in NODES)
    return alert


def _firing(cluster: NodeCluster, name: Alert, more: str = "") -> set[tuple[str, str]]:
    """Run and node of the alerts that Prometheus raises."""
    found = query(cluster.prometheus_url, f'ALERTS{{alertname="{name}", alertstate="firing"{more}}}')
    return {(each["metric"].get("run", ""), each["metric"].get("node", "")) for each in found}


@pytest.mark.parametrize(
    ("run", "name", "why", "rank"),
    [
        (SLOW, Alert.RUN_SLOW, {"cause": "slow_rank"}, "3"),
        (STOPPED, Alert.RUN_STALLED, {"reason": "rank_known"}, "2"),
    ],
)
def test_rank_at_fault(run: str, name: Alert, why: dict[str, str], rank: str, cluster: NodeCluster) -> None:
    """A slow and a stopped rank are named with their node, whatever its clock says."""
    _named(cluster, run, name, rank=rank, node=B, **why)
    named = {
        (each.labels["rank"], each.labels["node"])
        for each in cluster.delivered()
        if each.labels.get("run") == run and "rank" in each.labels
    }
    assert named == {(rank, B)}


def test_killed_rank(cluster: NodeCluster) -> None:
    """The alert on the run names the killed rank with its node, and not the one that torchrun ended."""
    alert = _named(cluster, KILLED, Alert.RUN_FAILED, reason="ranks_lost")
    assert f"Rank 1 (node {B})." in alert.annotations["description"]


def test_slow_link(cluster: NodeCluster) -> None:
    """It is called network, and names no rank. The node behind it sends lost segments again."""
    baseline = f'count_over_time(group:rankwatch_collective_transfer_seconds:mean{{run="{SPREAD}"}}[1h])'
    enough = f"{baseline} >= {CONFIG.network_min_baseline_seconds / CONFIG.scrape_interval_seconds:g}"
    poll(lambda: query(cluster.prometheus_url, enough), SECONDS_TO_ALERT, "baseline of the transfer time")
    with cluster.switch.limited_link(C, SLOW_BITS_PER_SECOND):
        _named(cluster, SPREAD, Alert.RUN_SLOW, cause="network", group="default_pg")
        resent = _named(cluster, "", Alert.LINK_ERRORS, reason="tcp", node=C)
    assert SPREAD in resent.annotations["description"]
    assert not [
        each for each in cluster.delivered() if each.labels.get("run") == SPREAD and "rank" in each.labels
    ]


@contextmanager
def _unseen(cluster: NodeCluster) -> Iterator[None]:
    """The agent of node C is dead, and Prometheus cannot reach node B; all ranks go on."""
    cluster.kill_agent(C)
    with cluster.switch.cut_from_hub(B):
        yield
    cluster.start_agent(C)
    seen = f'count(rankwatch_rank_state{{run="{SPREAD}", state="running"}}) == {len(NODES)}'
    poll(lambda: query(cluster.prometheus_url, seen), SECONDS_TO_ALERT, "all ranks once the nodes are seen")


def test_nodes_that_are_not_seen(cluster: NodeCluster) -> None:
    """A ticket each, which says whether the machine answers; the run goes on, so no node is lost."""
    with _unseen(cluster):
        agent_gone = _named(cluster, SPREAD, Alert.TELEMETRY_ABSENT, reason="node_unseen", node=C)
        not_reached = _named(cluster, SPREAD, Alert.TELEMETRY_ABSENT, reason="node_unseen", node=B)
        _named(cluster, SLOW, Alert.TELEMETRY_ABSENT, reason="node_unseen", node=B)
    assert "refused at once" in agent_gone.annotations["description"]
    assert "get no answer" in not_reached.annotations["description"]
    assert {agent_gone.labels["severity"], not_reached.labels["severity"]} == {"warning"}
    of_spread = [each for each in cluster.delivered() if each.labels.get("run") == SPREAD]
    assert not [each for each in of_spread if each.labels["severity"] == "critical"]
    assert not [each for each in cluster.delivered() if each.name == Alert.NODE_LOST]


@pytest.fixture(scope="module")
def link_down(cluster: NodeCluster) -> NodeCluster:
    """The link of node B is down from here on."""
    cluster.switch.set_link(B, "down")
    return cluster


def test_link_down(link_down: NodeCluster) -> None:
    """One page for each run with ranks there: the node, its ranks, their last step and checkpoint."""
    for run, ranks in {SPREAD: "1 (1 in all)", SLOW: "2, 3 (2 in all)"}.items():
        text = _named(link_down, run, Alert.NODE_LOST, node=B, reason="node").annotations["description"]
        assert f"Ranks on it: {ranks}; their last step: " in text
        assert "get no answer" in text
    assert _firing(link_down, Alert.NODE_LOST) == {(SPREAD, B), (SLOW, B)}


def test_stall_is_held_back(link_down: NodeCluster) -> None:
    """The alert on the stall of the run fires in Prometheus and pages nobody."""
    alertmanager = get_json(f"{link_down.prometheus_url}/api/v1/alertmanagers")
    (active,) = alertmanager["data"]["activeAlertmanagers"]
    alerts = active["url"].replace("/alerts", "/alerts?active=false&inhibited=true")

    def held_back() -> bool:
        return any(
            each["labels"].get("run") == SPREAD and each["labels"]["alertname"] == Alert.RUN_STALLED
            for each in get_json(alerts)
            if each["status"]["inhibitedBy"]
        )

    poll(held_back, SECONDS_TO_ALERT, "stall held back by the lost node")
    stalled = [each for each in link_down.delivered() if each.name == Alert.RUN_STALLED]
    assert {each.labels["run"] for each in stalled} == {STOPPED}


def test_most_nodes_gone(link_down: NodeCluster) -> None:
    """With two of three nodes gone, it is the network between them, and both are listed."""
    link_down.switch.set_link(C, "down")
    text = _named(link_down, SPREAD, Alert.NODE_LOST, reason="network").annotations["description"]
    assert f"2 of 3 nodes of run {SPREAD} are gone together" in text
    assert f"{B}, {C} (at most" in text
    poll(
        lambda: _firing(link_down, Alert.NODE_LOST, ', reason="node"') == {(SLOW, B)},
        SECONDS_TO_ALERT,
        "one alert of the run in place of one for each node",
    )
