"""A real Prometheus that scrapes the pages of a large job, and its figures about its own rules."""

from __future__ import annotations

import json
import re
import shutil
import sys
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
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
def server(
    directory: Path, config: RuleConfig, address: str, nodes: int, shards: int = 1, only: str = ""
) -> Iterator[Server]:
    """Prometheus with all generated rules, scraping one path for each node; raises BenchError.

    only: of the servers that share the runs, as `rankwatch generate` configures them, this one alone, as on a
    machine of its own.
    """
    directory.mkdir()
    port, fleet, *ports = free_ports(2 + shards)
    if not only:
        path, rules = directory / "prometheus.yml", write_rules(config, directory / "rules")
        generated = prometheus_config(config, rule_files=rules, agent_targets=())
        scrapes = [{"job_name": config.agent_job, "static_configs": _targets(address, nodes)}]
        path.write_text(to_yaml(generated | {"scrape_configs": scrapes, "alerting": {}}))
    else:
        servers = tuple(f"127.0.0.1:{each}" for each in ports)
        config = replace(config, prometheus_shards=servers, prometheus_fleet=f"127.0.0.1:{fleet}")
        path = directory / f"{only}.yml"
        write_sharded(config, directory)
        (directory / AGENTS_FILE).write_text(json.dumps(_targets(address, nodes)))
        if not path.exists():
            raise BenchError(f"there is no server {only}: expected fleet or shard-0 to shard-{shards - 1}")
    with _started(path, port) as started:
        yield started


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
