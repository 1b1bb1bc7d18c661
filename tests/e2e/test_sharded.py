"""Rules divided among servers: two runs of two nodes in two shards, a fleet server, and one that reads all.

Agents, ranks and all four Prometheus servers are real; the configuration is what `rankwatch generate` writes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest

from rankwatch_alerts import Alert, RuleConfig
from rankwatch_alerts.generation import AGENTS_FILE, write_sharded
from support.agent.process import agent_process
from support.servers.prometheus import get_json, poll, prometheus_at, query, require, reserved_port
from support.training.ranks import rank

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]

SHARDS = 2
RUNS = ("job-1", "job-2")
DEADLINE_SECONDS = 120.0
LOOP = """
steps(2, 0.05)
print("ready", flush=True)
while True: steps(1, 0.05)
"""


class Servers(NamedTuple):
    """URLs of the servers."""

    shards: list[str]
    fleet: str
    query: str


def test_each_run_in_one_shard(tmp_path: Path) -> None:
    """Shards have whole runs, the fleet server machines and classes, and Grafana's server sees all."""
    config = replace(
        RuleConfig.for_demo(),
        clock_error_seconds=0.001,  # the kernel's bound is more, 2 s after each correction
    )
    with _servers(config, tmp_path) as servers:
        for number, url in enumerate(servers.shards):
            (own,) = (run for run in RUNS if _shard(run) == number)
            _await(url, "run:rankwatch_steps:rate", "run", {own})
            _await(url, "rankwatch_rank_info", "run", {own})
            _await(url, "rankwatch_agent_info", "node", {"node-0", "node-1"})
            assert not _labels(url, "rankwatch_host_cpus", "node")
        _await(servers.fleet, "run_state:rankwatch_goodput_ranks:mean", "run", set(RUNS))
        _await(servers.query, "run:rankwatch_steps:rate", "run", set(RUNS))
        assert not _labels(servers.fleet, "rankwatch_step_seconds_total", "run")
        _await(servers.fleet, "rankwatch_host_cpus", "node", {"node-0", "node-1"})
        poll(lambda: _classes(servers.fleet) > 0, DEADLINE_SECONDS, "rank seconds of the class of runs")
        name, reason = Alert.HOST_FAULT, "clock"
        clocks = f'ALERTS{{alertname="{name}", reason="{reason}", alertstate="firing"}}'
        _await(servers.query, clocks, "node", {"node-0", "node-1"})
        assert not any(_labels(url, clocks, "node") for url in servers.shards)
        poll(lambda: _runs_in_texts(servers.fleet) == set(RUNS), DEADLINE_SECONDS, "runs in texts")
        _await(servers.query, "rankwatch_step_seconds_total", "run", set(RUNS))
        _await(servers.query, "run:rankwatch_step_seconds:mean", "run", set(RUNS))


def _await(url: str, expression: str, label: str, expected: set[str]) -> None:
    poll(lambda: _labels(url, expression, label) == expected, DEADLINE_SECONDS, f"{expected} in {expression}")


def _labels(url: str, expression: str, label: str) -> set[str]:
    return {each["metric"][label] for each in query(url, f"group by ({label}) ({expression})")}


def _runs_in_texts(url: str) -> set[str]:
    """Runs that the alerts on clocks speak of."""
    alerts = get_json(f"{url}/api/v1/alerts")["data"]["alerts"]
    texts = [each["annotations"]["description"] for each in alerts if each["labels"]["reason"] == "clock"]
    return {run for run in RUNS if any(run in text for text in texts)}


def _classes(url: str) -> float:
    found = query(url, "sum(class:rankwatch_total_rank_seconds:increase)")
    return float(found[0]["value"][1]) if found else 0.0


def _shard(run: str) -> int:
    """As Prometheus hashes labels: the last eight bytes of the MD5 of their values, with ; between them."""
    digest = hashlib.md5(f"test;{run}".encode(), usedforsecurity=False).digest()
    return int.from_bytes(digest[8:], "big") % SHARDS


@contextmanager
def _servers(config: RuleConfig, directory: Path) -> Iterator[Servers]:
    require("prometheus")
    with ExitStack() as stack:
        agents = []
        for number, run in enumerate(RUNS):
            node = f"node-{number}"
            boxes = directory / node / "blackboxes"
            boxes.mkdir(parents=True)
            stack.enter_context(rank(boxes, LOOP, run=run, number=0, world=1))
            agent = agent_process(directory / node, "--node", node, "--cluster", "test")
            agents.append(stack.enter_context(agent))
        *shards, fleet, front = (stack.enter_context(reserved_port()) for _ in range(SHARDS + 2))
        config = replace(
            config,
            prometheus_shards=tuple(f"127.0.0.1:{port}" for port in shards),
            prometheus_fleet=f"127.0.0.1:{fleet}",
        )
        folder = directory / "prometheus"
        write_sharded(config, folder)
        targets = [{"targets": [agent.address for agent in agents]}]
        (folder / AGENTS_FILE).write_text(json.dumps(targets))
        yield Servers(
            [
                stack.enter_context(prometheus_at(port, folder / f"shard-{number}.yml"))
                for number, port in enumerate(shards)
            ],
            stack.enter_context(prometheus_at(fleet, folder / "fleet.yml")),
            stack.enter_context(prometheus_at(front, folder / "query.yml")),
        )
