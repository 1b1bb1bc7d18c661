"""Nodes that fail, each a network namespace: every alert names the right node, and a lost node is one page.

The monotonic clock of node B is half a million seconds ahead of the others'. The faults come one after
another on one set-up: a slow, a stopped and a killed rank; a slow link; an agent that is killed and a node
that Prometheus cannot reach; a link that is down, and then another. Each node has an agent of its own.
Prometheus, Alertmanager and the test are at the hub of the switch that joins the nodes.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from rankwatch_alerts import Alert, RuleConfig, alertmanager_config, prometheus_config, write_rules
from rankwatch_alerts.config.thresholds import DEFAULT_CLASS
from rankwatch_cli.demo.parts import Alert as DeliveredAlert
from rankwatch_cli.demo.parts import Receiver
from support.agent.process import AgentProcess, agent_process
from support.e2e.hangs import LEARNT_STEP, SECONDS_TO_STEP
from support.e2e.monitored_system import SECONDS_TO_ALERT, MonitoredSystem, complete
from support.jobs.forked_ranks import ForkedRanks, forked_ranks
from support.servers.netns import Switch, entered, switch
from support.servers.prometheus import alertmanager, get_json, poll, prometheus, query, require

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


_AGENT_PORT = 9477
_FIRST_MASTER_PORT = 29500
_TORCHRUN = ("-m", "torch.distributed.run", "--max-restarts=0")
_OWN_NETWORK = ("sh", "-c", 'mount --bind /proc/$$/net /proc/1/net && exec "$@"', "sh")
"""Prefix of a command that sees the network of its namespace as that of the node's first process."""


@dataclass
class NodeCluster(MonitoredSystem):
    """Nodes on a switch, their agents and their jobs."""

    agents: dict[str, AgentProcess]
    config: RuleConfig = field(kw_only=True)
    switch: Switch = field(kw_only=True)
    clock_ahead_seconds: Mapping[str, int] = field(kw_only=True)
    """By how much the monotonic clock of a node is ahead of this machine's, where it is."""
    _servers: dict[str, ForkedRanks] = field(default_factory=dict)
    _agents: dict[str, ExitStack] = field(default_factory=dict)
    _master_port: int = _FIRST_MASTER_PORT

    def prepare(self, node: str) -> None:
        """Import torch once for all ranks of the node, while other things start."""
        server = forked_ranks(self._family.environ, prefix=self._inside(node))
        self._servers[node] = self.stack.enter_context(server)

    def start_agent(self, node: str) -> None:
        """Start the agent of a node, at the same address each time."""
        stack = self._agents[node] = ExitStack()
        listen = self.agent_address(node)
        flags = ("--node", node, "--step-window-seconds", f"{self.config.step_window_seconds:g}")
        prefix = (*self._inside(node), *_OWN_NETWORK)
        started = agent_process(self.directory / node, *flags, prefix=prefix, listen=listen)
        self.agents[node] = stack.enter_context(started)

    def kill_agent(self, node: str) -> None:
        """SIGKILL, and nobody starts it again."""
        self._agents.pop(node).close()

    def agent_address(self, node: str) -> str:
        """HOST:PORT of the agent."""
        return f"{self.switch.address(node)}:{_AGENT_PORT}"

    def train_across(
        self, run: str, ranks_on: Mapping[str, int], faults: Sequence[str] = (), flags: Sequence[str] = ()
    ) -> dict[int, int]:
        """Start the trainer with so many ranks on each node. Returns the process id of each rank."""
        rendezvous = self._rendezvous(ranks_on)
        pids: dict[int, int] = {}
        for node, count in ranks_on.items():
            ranks = range(len(pids), len(pids) + count)
            environ = {**self._environment(run, node), **rendezvous}
            log = self.directory / f"{run}.log"
            started = self._servers[node].start_some(
                self._trainer(run, faults, flags), environ, ranks=ranks, log=log
            )
            pids.update(zip(ranks, started, strict=True))
        return pids

    def torchrun_across(self, run: str, nodes: Sequence[str], *, ranks: int, faults: Sequence[str]) -> None:
        """The same under one torchrun for each node, whose ranks import torch themselves."""
        rendezvous = self._rendezvous(dict.fromkeys(nodes, ranks))
        for number, node in enumerate(nodes):
            flags = (f"--nnodes={len(nodes)}", f"--node-rank={number}", f"--nproc-per-node={ranks}")
            master = (
                f"--master-addr={rendezvous['MASTER_ADDR']}",
                f"--master-port={rendezvous['MASTER_PORT']}",
            )
            launcher = [*_TORCHRUN, *flags, *master, *self._trainer(run, faults)]
            log = self.directory / f"{run}-{node}.log"
            self._servers[node].start_some(launcher, self._environment(run, node), ranks=range(1), log=log)

    def end_agents(self) -> None:
        """Kill the agents that still run."""
        for stack in self._agents.values():
            stack.close()

    def _inside(self, node: str) -> tuple[str, ...]:
        """The prefix of a command that runs on the node, by the node's clock."""
        ahead = str(self.clock_ahead_seconds.get(node, 0))
        clock = ("unshare", "--time", "--monotonic", ahead, "--boottime", ahead, "--")
        return (*self.switch.nodes[node].command, *(clock if ahead != "0" else ()))

    def _environment(self, run: str, node: str) -> dict[str, str]:
        return {**self._job_environment(run, node), "GLOO_SOCKET_IFNAME": "eth0"}

    def _rendezvous(self, ranks_on: Mapping[str, int]) -> dict[str, str]:
        """The first node holds the store. A namespace has all its ports to itself."""
        self._master_port += 1
        master = self.switch.address(next(iter(ranks_on)))
        world_size = str(sum(ranks_on.values()))
        return {"MASTER_ADDR": master, "MASTER_PORT": str(self._master_port), "WORLD_SIZE": world_size}


@contextmanager
def node_cluster(
    directory: Path, config: RuleConfig, nodes: Sequence[str], clock_ahead_seconds: Mapping[str, int]
) -> Iterator[NodeCluster]:
    """The test's own thread is at the hub for the block: it asks Prometheus as at any other time."""
    _require_clocks()
    with ExitStack() as stack:
        joined = stack.enter_context(switch(nodes))
        stack.enter_context(entered(joined.hub))
        receiver = stack.enter_context(Receiver())
        posted = replace(config, webhook_urls={"page": receiver.url, "ticket": receiver.url})
        alertmanager_url = stack.enter_context(alertmanager(alertmanager_config(posted), directory))
        cluster = NodeCluster(
            directory,
            "",
            {},
            receiver,
            config=config,
            switch=joined,
            clock_ahead_seconds=clock_ahead_seconds,
        )
        stack.callback(cluster.end_jobs)
        stack.callback(cluster.end_agents)
        for node in nodes:
            cluster.prepare(node)
        for node in nodes:
            (directory / node).mkdir()
            cluster.start_agent(node)
        content = prometheus_config(
            config,
            rule_files=write_rules(config, directory / "rules"),
            agent_targets=[cluster.agent_address(node) for node in nodes],
            alertmanager_targets=[alertmanager_url.removeprefix("http://")],
        )
        cluster.prometheus_url = stack.enter_context(prometheus(content, directory))
        yield cluster


def _require_clocks() -> None:
    command = ["unshare", "--time", "--monotonic", "1", "--", "true"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("unshare is not installed: it comes with Debian's package util-linux")
    if done.returncode != 0:
        pytest.skip(f"no time namespace can be made here: {done.stderr.strip()}")
