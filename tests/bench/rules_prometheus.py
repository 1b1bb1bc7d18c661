"""A real Prometheus that scrapes the pages of a large job, and its figures about its own rules."""

from __future__ import annotations

import json
import re
import shutil
import sys
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from rankwatch_alerts import RuleConfig, prometheus_config, to_yaml, write_rules, write_sharded
from rankwatch_alerts.generation import AGENTS_FILE

from .process_usage import cpu_seconds, resident_bytes
from .processes import background, free_ports, wait_until
from .result import BenchError

_TIMEOUT_SECONDS = 60.0
"""Longest wait for a server that evaluates rules on all cores."""
_MISSED = re.compile(r"^prometheus_rule_group_iterations_missed_total\{.*\} (\S+)$", re.MULTILINE)


class Evaluation(NamedTuple):
    """The last evaluation of a group of rules."""

    group: str
    moment: str
    """Its start as Prometheus writes it, which identifies the evaluation."""
    interval: float
    """Seconds from one to the next."""
    seconds: float
    rules: dict[str, float]
    """Seconds by record or alert. Rules with the same name are added."""
    failed: tuple[str, ...]
    """Errors of its rules."""


class Server:
    """A running Prometheus. Methods raise BenchError if it does not answer."""

    def __init__(self, url: str, pid: int) -> None:
        self._url, self._pid = url, pid

    def evaluations(self) -> list[Evaluation]:
        """The last evaluation of each group."""
        return [_evaluation(each) for each in self._api("rules")["groups"]]

    def firing(self) -> dict[str, set[str]]:
        """Ranks by name of the firing alerts that name one."""
        found: dict[str, set[str]] = {}
        for each in self._api("alerts")["alerts"]:
            if each["state"] == "firing" and "rank" in each["labels"]:
                found.setdefault(each["labels"]["alertname"], set()).add(each["labels"]["rank"])
        return found

    def value(self, expression: str) -> float:
        """Value of an instant query with one series; 0 if it has none."""
        series = self._api(f"query?{urllib.parse.urlencode({'query': expression})}")["result"]
        return float(series[0]["value"][1]) if series else 0.0

    def series(self) -> int:
        """Series in memory."""
        count: int = self._api("status/tsdb")["headStats"]["numSeries"]
        return count

    def missed(self) -> int:
        """Evaluations skipped because the previous one was still running."""
        return int(sum(map(float, _MISSED.findall(self._get("/metrics").decode()))))

    def peak_bytes(self) -> int:
        """Its largest resident memory so far."""
        return resident_bytes(self._pid)[1]

    def cpu_seconds(self) -> float:
        """CPU time used so far."""
        return cpu_seconds(self._pid)

    def ready(self) -> bool:
        """True once it answers."""
        try:
            self._get("/-/ready")
        except BenchError:
            return False
        return True

    def _api(self, path: str) -> Any:
        return json.loads(self._get(f"/api/v1/{path}"))["data"]

    def _get(self, path: str) -> bytes:
        try:
            with urllib.request.urlopen(self._url + path, timeout=_TIMEOUT_SECONDS) as answer:
                body: bytes = answer.read()
                return body
        except OSError as error:  # URLError is one
            raise BenchError(f"could not query Prometheus: {error}") from error


class Divided(Server):
    """Shards and a fleet server as one: figures are sums, and the names of groups begin with the server's."""

    def __init__(self, servers: Mapping[str, Server]) -> None:
        self._servers = servers

    def evaluations(self) -> list[Evaluation]:
        """The last evaluation of each group of each server."""
        return [
            each._replace(group=f"{name} {each.group}")
            for name, server in self._servers.items()
            for each in server.evaluations()
        ]

    def firing(self) -> dict[str, set[str]]:
        """Ranks by name of the alerts that fire on any server."""
        found: dict[str, set[str]] = {}
        for server in self._servers.values():
            for alert, ranks in server.firing().items():
                found.setdefault(alert, set()).update(ranks)
        return found

    def value(self, expression: str) -> float:
        """Sum over the servers."""
        return sum(each.value(expression) for each in self._servers.values())

    def series(self) -> int:
        """Series in the memory of all."""
        return sum(each.series() for each in self._servers.values())

    def missed(self) -> int:
        """Evaluations that any of them skipped."""
        return sum(each.missed() for each in self._servers.values())

    def peak_bytes(self) -> int:
        """Memory of the largest one."""
        return max(each.peak_bytes() for each in self._servers.values())

    def cpu_seconds(self) -> float:
        """CPU time of all."""
        return sum(each.cpu_seconds() for each in self._servers.values())


def _evaluation(group: dict[str, Any]) -> Evaluation:
    seconds: dict[str, float] = {}
    for rule in group["rules"]:
        seconds[rule["name"]] = seconds.get(rule["name"], 0.0) + rule["evaluationTime"]
    failed = tuple(f"{each['name']}: {each['lastError']}" for each in group["rules"] if each.get("lastError"))
    interval, taken = group["interval"], group["evaluationTime"]
    return Evaluation(group["name"], group["lastEvaluation"], interval, taken, seconds, failed)


@contextmanager
def pages(directory: Path, ranks: int, runs: int = 1) -> Iterator[str]:
    """The server of the pages of runs with so many ranks together; yields HOST:PORT."""
    address, log = directory / "pages-address", directory / "pages.log"
    command = [sys.executable, "-m", "tests.bench.rules_pages"]
    command += ["--ranks", str(ranks), "--runs", str(runs), "--address-file", str(address)]
    with background(command, log) as process:
        wait_until(address.exists, process, log, "could not serve the pages")
        yield address.read_text()


@contextmanager
def server(directory: Path, config: RuleConfig, address: str, nodes: int) -> Iterator[Server]:
    """Prometheus with all generated rules, scraping one path for each node; raises BenchError."""
    path = directory / "prometheus.yml"
    rules = write_rules(config, directory / "rules")
    generated = prometheus_config(config, rule_files=rules, agent_targets=())
    scrapes = [{"job_name": config.agent_job, "static_configs": _targets(address, nodes)}]
    path.write_text(to_yaml(generated | {"scrape_configs": scrapes, "alerting": {}}))
    with _started(path, free_ports(1)[0]) as started:
        yield started


@contextmanager
def divided(
    directory: Path, config: RuleConfig, address: str, nodes: int, shards: int, only: str = ""
) -> Iterator[Divided]:
    """Shards and the fleet server as `rankwatch generate` configures them, or one of them alone, as on a
    machine of its own; raises BenchError."""
    *ports, fleet = free_ports(shards + 1)
    config = replace(
        config,
        prometheus_shards=tuple(f"127.0.0.1:{port}" for port in ports),
        prometheus_fleet=f"127.0.0.1:{fleet}",
    )
    write_sharded(config, directory)
    (directory / AGENTS_FILE).write_text(json.dumps(_targets(address, nodes)))
    names = {f"shard-{number}": port for number, port in enumerate(ports)} | {"fleet": fleet}
    with ExitStack() as stack:
        yield Divided(
            {
                name: stack.enter_context(_started(directory / f"{name}.yml", port))
                for name, port in names.items()
                if only in ("", name)
            }
        )


@contextmanager
def _started(path: Path, port: int) -> Iterator[Server]:
    if shutil.which("prometheus") is None:
        raise BenchError("prometheus is not installed: apt install prometheus")
    log = path.with_suffix(".log")
    command = ["prometheus", f"--config.file={path}", f"--storage.tsdb.path={path.with_suffix('.data')}"]
    command += [f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn"]
    with background(command, log) as process:
        found = Server(f"http://127.0.0.1:{port}", process.pid)
        wait_until(found.ready, process, log, "could not start Prometheus")
        yield found


def _targets(address: str, nodes: int) -> list[dict[str, object]]:
    return [
        {"targets": [address], "labels": {"__metrics_path__": f"/node-{node}", "instance": f"node-{node}"}}
        for node in range(nodes)
    ]
