"""A whole monitored system: agents, Prometheus, Alertmanager, a receiver of alerts, and jobs to break."""

from __future__ import annotations

import queue
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from rankwatch_alerts import RuleConfig, alertmanager_config, prometheus_config, to_yaml, write_rules
from rankwatch_cli.demo.receiver import Alert, Receiver
from support.agent.process import AgentProcess, agent_process
from support.jobs.forked_ranks import ForkedRanks, forked_ranks
from support.processes.family import ProcessFamily
from support.servers.prometheus import alertmanager, poll, prometheus_at, query, reserved_port

SECONDS_TO_ALERT = 240.0
"""Longest wait for one alert."""
_TRAINER = (
    *("-m", "rankwatch_trainer", "--device", "emulated", "--steps", "100000", "--corpus-bytes", "200000"),
    *("--layers", "2", "--layer-forward-seconds", "0.03", "--layer-backward-seconds", "0.05"),
    *("--checkpoint-every", "20"),
)
"""Steps of about 0.16 s, nearly all of it asleep, and a checkpoint every few seconds."""
_TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--max-restarts=0")


@dataclass
class MonitoredSystem:
    """Watched nodes, their jobs, and the alerts received so far."""

    directory: Path
    prometheus_url: str
    agents: Mapping[str, AgentProcess]
    """By name of the node."""
    receiver: Receiver
    alerts: list[Alert] = field(default_factory=list)
    _family: ProcessFamily = field(default_factory=ProcessFamily)
    _jobs: list[subprocess.Popen[bytes]] = field(default_factory=list)
    _stack: ExitStack = field(default_factory=ExitStack)

    @cached_property
    def forked(self) -> ForkedRanks:
        """A server from which ranks fork at once, without importing torch again."""
        return self.forked_under()

    def forked_under(self, *prefix: str) -> ForkedRanks:
        """The same, started by a command such as `ip netns exec`."""
        return self._stack.enter_context(forked_ranks(self._family.environ, prefix=prefix))

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
        (forked or self.forked).start(arguments, environ, ranks=ranks, log=log)

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

    def train_under_torchrun(
        self, run: str, faults: Sequence[str], *, node: str, ranks: int, settings: Mapping[str, str] = {}
    ) -> None:
        """Start the trainer under torchrun, which ends all ranks when one ends. It takes seconds longer."""
        launcher = (*_TORCHRUN, f"--nproc-per-node={ranks}")
        command = [sys.executable, *launcher, *self._trainer(run, faults)]
        quiet = {"OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR"}
        environ = {**self._family.environ, **quiet, **self._job_environment(run, node), **settings}
        with (self.directory / f"{run}.log").open("wb") as log:
            self._jobs.append(subprocess.Popen(command, env=environ, stdout=log, stderr=subprocess.STDOUT))

    def _trainer(self, run: str, faults: Sequence[str], flags: Sequence[str] = ()) -> list[str]:
        checkpoints = self.directory / "checkpoints" / run
        given = [part for fault in faults for part in ("--fault", fault)]
        return [*_TRAINER, "--checkpoint-dir", str(checkpoints), *flags, *given]

    def _job_environment(self, run: str, node: str) -> dict[str, str]:
        return {"RANKWATCH_RUN": run, "RANKWATCH_DIR": str(self.directory / node / "blackboxes")}

    def end_jobs(self) -> None:
        """Kill every process of every job."""
        self._family.kill()
        for job in self._jobs:
            job.wait()
        self._stack.close()

    def alert(self, run: str, name: str, **labels: str) -> Alert:
        """Wait for the alert with these labels. An empty `run` stands for an alert without one."""
        wanted = {"alertname": name, **({"run": run} if run else {}), **labels}

        def find() -> Alert | None:
            return next((each for each in self.delivered() if wanted.items() <= each.labels.items()), None)

        return poll(find, SECONDS_TO_ALERT, f"alert {wanted}")

    def delivered(self) -> list[Alert]:
        """Every firing alert received so far."""
        while True:
            try:
                alert = self.receiver.alerts.get_nowait()
            except queue.Empty:
                return self.alerts
            if alert.firing:
                self.alerts.append(alert)

    def steps(self, run: str) -> float:
        """Steps of a run in Prometheus; 0 if there are none."""
        found = query(self.prometheus_url, f'max(rankwatch_steps_total{{run="{run}"}})')
        return float(found[0]["value"][1]) if found else 0.0


def complete(alert: Alert, config: RuleConfig) -> bool:
    """True if every annotation has a value, and no template was expanded to nothing."""
    texts = alert.annotations
    empty = ("no value", "  ", "not known", "unknown")
    return (
        {"summary", "description", "runbook_url", "dashboard_url"} <= texts.keys()
        and texts["runbook_url"] == f"{config.runbook_base_url}/{alert.name}"
        and not any(each in text for text in texts.values() for each in empty)
        and all(text.strip() for text in texts.values())
    )


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
        receiver = stack.enter_context(Receiver())
        agents = {}
        for node in nodes:
            (directory / node).mkdir()
            flags = ("--node", node, "--step-window-seconds", f"{config.step_window_seconds:g}", *agent_flags)
            agents[node] = stack.enter_context(agent_process(directory / node, *flags))
        alertmanager_url = stack.enter_context(
            alertmanager(alertmanager_config(config, receiver.url), directory)
        )
        content: dict[str, Any] = prometheus_config(
            config,
            rule_files=write_rules(config, directory / "rules"),
            agent_targets=[agent.address for agent in (*agents.values(), *more_agents)],
            alertmanager_targets=[alertmanager_url.removeprefix("http://")],
        )
        port = stack.enter_context(reserved_port())
        itself = {"job_name": "prometheus", "static_configs": [{"targets": [f"127.0.0.1:{port}"]}]}
        content["scrape_configs"].append(itself)
        (directory / "prometheus.yml").write_text(to_yaml(content))
        prometheus_url = stack.enter_context(prometheus_at(port, directory / "prometheus.yml"))
        system = MonitoredSystem(directory, prometheus_url, agents, receiver)
        stack.callback(system.end_jobs)
        yield system
