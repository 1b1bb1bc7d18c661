"""A whole monitored system: agents, Prometheus, Alertmanager, a receiver of alerts, and jobs to break."""

from __future__ import annotations

import json
import queue
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

from rankwatch_alerts import RuleConfig, alertmanager_config, prometheus_config, to_yaml, write_rules
from rankwatch_cli.demo.parts import Alert, Receiver
from support.agent.process import AgentProcess, agent_process
from support.jobs.forked_ranks import ForkedRanks, forked_ranks
from support.processes.family import ProcessFamily
from support.servers.prometheus import alertmanager, poll, prometheus_at, query, require, reserved_port
from support.training.ranks import rank

SECONDS_TO_ALERT = 240.0
"""Longest wait for one alert."""
_TRAINER = (
    *("-m", "rankwatch_trainer", "--device", "emulated", "--steps", "100000", "--corpus-bytes", "200000"),
    *("--layers", "2", "--layer-forward-seconds", "0.03", "--layer-backward-seconds", "0.05"),
    *("--checkpoint-every", "20"),
)
"""Steps of about 0.16 s, nearly all of it asleep, and a checkpoint every few seconds."""

Wanted = tuple[str, str, Mapping[str, str]]
"""Run, name and further labels of an alert."""


@dataclass
class MonitoredSystem:
    """Watched nodes, their jobs, and the alerts received so far."""

    directory: Path
    prometheus_url: str
    agents: Mapping[str, AgentProcess]
    """By name of the node."""
    receiver: Receiver
    alerts: list[Alert] = field(default_factory=list)
    """Every firing alert received so far, of all clusters that share the receiver."""
    cluster: str = ""
    stack: ExitStack = field(default_factory=ExitStack)
    """What ends with the jobs."""
    shared: ForkedRanks | None = None
    """A server of ranks for several systems."""
    _family: ProcessFamily = field(default_factory=ProcessFamily)
    _ranks: list[int] = field(default_factory=list)
    """Process ids of what the shared server has forked."""
    _final: list[Alert] | None = None

    @cached_property
    def forked(self) -> ForkedRanks:
        """A server from which ranks fork at once, without importing torch again."""
        return self.shared or self.forked_under()

    def forked_under(self, *prefix: str) -> ForkedRanks:
        """One of this system alone, started by a command such as `ip netns exec`."""
        return self.stack.enter_context(forked_ranks(self._family.environ, prefix=prefix))

    def boxes(self, node: str) -> Path:
        """The directory of black boxes that the agent of a node watches."""
        return self.directory / node / "blackboxes"

    def start(
        self,
        run: str,
        arguments: Sequence[str],
        *,
        node: str,
        ranks: int,
        forked: ForkedRanks | None = None,
        settings: Mapping[str, str] = {},
    ) -> None:
        """Start a job: each rank is Python with these arguments."""
        environ = {**self._job_environment(run, node), **settings}
        log = self.directory / f"{run}.log"
        forked = forked or self.forked
        pids = forked.start(arguments, environ, ranks=ranks, log=log)
        if forked is self.shared:  # others end with the family
            self._ranks += pids

    def train(
        self,
        run: str,
        faults: Sequence[str],
        *,
        node: str,
        ranks: int = 1,
        flags: Sequence[str] = (),
        forked: ForkedRanks | None = None,
        settings: Mapping[str, str] = {},
    ) -> None:
        """Start the reference trainer with these faults."""
        trainer = self._trainer(run, faults, flags)
        self.start(run, trainer, node=node, ranks=ranks, forked=forked, settings=settings)

    def rank(self, node: str, code: str, **of_rank: Any) -> subprocess.Popen[str]:
        """Start a rank that imports no torch. It ends with the jobs."""
        return self.stack.enter_context(rank(self.boxes(node), code, **of_rank))

    def _trainer(self, run: str, faults: Sequence[str], flags: Sequence[str] = ()) -> list[str]:
        checkpoints = self.directory / "checkpoints" / run
        given = [part for fault in faults for part in ("--fault", fault)]
        return [*_TRAINER, "--checkpoint-dir", str(checkpoints), *flags, *given]

    def _job_environment(self, run: str, node: str) -> dict[str, str]:
        return {"RANKWATCH_RUN": run, "RANKWATCH_DIR": str(self.boxes(node))}

    def end_jobs(self) -> None:
        """Kill every process of every job."""
        self._family.kill()
        if self.shared:
            self.shared.kill(self._ranks)
        self.stack.close()

    def end_when_seen(
        self, expected: Iterable[tuple[str, str, Mapping[str, str]]], healthy: str = ""
    ) -> None:
        """Wait for these alerts, and then end. The healthy run must go on.

        It is left to the test of each alert to tell that it is missing.
        """
        with suppress(pytest.fail.Exception):
            for run, name, labels in expected:
                self.alert(run, name, **labels)
        if healthy:
            steps = self.steps(healthy)
            poll(lambda: self.steps(healthy) > steps, SECONDS_TO_ALERT, f"further steps of {healthy}")
        self.end()

    def end(self) -> None:
        """Kill agents and jobs. What their end raises does not count as delivered."""
        if self._final is None:
            self._final = self.delivered()
            for agent in self.agents.values():
                agent.process.kill()
            self.end_jobs()

    def alert(self, run: str, name: str, **labels: str) -> Alert:
        """Wait for the alert with these labels. An empty `run` stands for an alert without one."""
        return self.delivers({"alertname": name, **({"run": run} if run else {}), **labels})

    def delivers(self, wanted: Mapping[str, str]) -> Alert:
        """Wait for an alert that has these labels."""

        def find() -> Alert | None:
            return next((each for each in self.delivered() if wanted.items() <= each.labels.items()), None)

        return poll(find, SECONDS_TO_ALERT if self._final is None else 1.0, f"alert {wanted}")

    def delivered(self) -> list[Alert]:
        """Every firing alert received so far, until the end. One without a cluster concerns all of them."""
        if self._final is not None:
            return self._final
        with suppress(queue.Empty):
            while True:
                alert = self.receiver.alerts.get_nowait()
                if alert.firing:
                    self.alerts.append(alert)
        return [each for each in self.alerts if each.labels.get("cluster", "") in ("", self.cluster)]

    def steps(self, run: str) -> float:
        """Steps of a run in Prometheus; 0 if there are none."""
        of_run = f'run="{run}", cluster="{self.cluster}"'
        found = query(self.prometheus_url, f"max(rankwatch_steps_total{{{of_run}}})")
        return float(found[0]["value"][1]) if found else 0.0


def told(alert: Alert) -> tuple[str, str, str]:
    """Run, name, and reason or cause of an alert; empty where it has none."""
    labels = alert.labels
    return labels.get("run", ""), alert.name, labels.get("reason") or labels.get("cause", "")


def complete(alert: Alert, config: RuleConfig) -> bool:
    """True if every annotation has a value, and no template was expanded to nothing."""
    texts = alert.annotations
    empty = ("no value", "  ", "not known", "unknown")
    runbook, board = config.runbook_base_url, config.dashboard_base_url
    return (
        {"summary", "description"} <= texts.keys()
        and texts.get("runbook_url", "") == (runbook and f"{runbook}/{alert.name}")
        and texts.get("dashboard_url", "").startswith(board and f"{board}/d/")
        and ("dashboard_url" in texts) == bool(board)
        and not any(each in text for text in texts.values() for each in empty)
        and all(text.strip() for text in texts.values())
    )


@contextmanager
def servers(
    directory: Path, config: RuleConfig, targets: Sequence[str] = ()
) -> Iterator[tuple[str, Receiver]]:
    """Prometheus, at the URL that is yielded, Alertmanager, and the receiver of its alerts.

    Prometheus scrapes these targets, and those in the files of the directory `targets` (`write_targets`).
    """
    require("prometheus", "prometheus-alertmanager")
    with ExitStack() as stack:
        receiver = stack.enter_context(Receiver())
        posted = replace(config, webhook_urls={"page": receiver.url, "ticket": receiver.url})
        alertmanager_url = stack.enter_context(alertmanager(alertmanager_config(posted), directory))
        content: dict[str, Any] = prometheus_config(
            config,
            rule_files=write_rules(config, directory / "rules"),
            agent_targets=targets,
            alertmanager_targets=[alertmanager_url.removeprefix("http://")],
        )
        (directory / "targets").mkdir()
        content["scrape_configs"][0]["file_sd_configs"] = [{"files": [f"{directory}/targets/*.json"]}]
        port = stack.enter_context(reserved_port())
        itself = {"job_name": "prometheus", "static_configs": [{"targets": [f"127.0.0.1:{port}"]}]}
        content["scrape_configs"].append(itself)
        (directory / "prometheus.yml").write_text(to_yaml(content))
        yield stack.enter_context(prometheus_at(port, directory / "prometheus.yml")), receiver


def write_targets(directory: Path, name: str, agents: Iterable[AgentProcess]) -> None:
    """Let the Prometheus of `servers` scrape these agents from now on."""
    groups = [{"targets": [each.address for each in agents]}]
    unfinished = directory / f"{name}.unfinished"
    unfinished.write_text(json.dumps(groups))
    unfinished.replace(directory / "targets" / f"{name}.json")


@contextmanager
def node_agents(
    directory: Path, config: RuleConfig, nodes: Sequence[str], flags: Sequence[str] = ()
) -> Iterator[dict[str, AgentProcess]]:
    """An agent for each node, by its name."""
    with ExitStack() as stack:
        agents = {}
        for node in nodes:
            (directory / node).mkdir()
            own = ("--node", node, "--step-window-seconds", f"{config.step_window_seconds:g}", *flags)
            agents[node] = stack.enter_context(agent_process(directory / node, *own))
        yield agents


@contextmanager
def monitored_system(
    directory: Path,
    config: RuleConfig,
    nodes: Sequence[str],
    *,
    agent_flags: Sequence[str] = (),
    more_agents: Sequence[AgentProcess] = (),
) -> Iterator[MonitoredSystem]:
    """An agent for each node, and one of each server. All jobs end with it.

    `more_agents` are scraped too, but belong to others.
    """
    with ExitStack() as stack:
        agents = stack.enter_context(node_agents(directory, config, nodes, agent_flags))
        addresses = [each.address for each in (*agents.values(), *more_agents)]
        url, receiver = stack.enter_context(servers(directory, config, addresses))
        system = MonitoredSystem(directory, url, agents, receiver)
        stack.callback(system.end_jobs)
        yield system
