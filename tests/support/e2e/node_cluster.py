"""A monitored system of several nodes, each a network namespace with an agent of its own.

Prometheus, Alertmanager and the test are at the hub of the switch that joins the nodes.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from rankwatch_alerts import RuleConfig, alertmanager_config, prometheus_config, write_rules
from rankwatch_cli.demo.parts import Receiver
from support.agent.process import AgentProcess, agent_process
from support.e2e.monitored_system import MonitoredSystem
from support.jobs.forked_ranks import ForkedRanks, forked_ranks
from support.servers.netns import Switch, entered, switch
from support.servers.prometheus import alertmanager, prometheus

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
        (self.directory / node / "address").unlink(missing_ok=True)
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
