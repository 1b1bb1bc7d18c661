"""docs/adopting.md, as somebody with servers, rules and routes of their own follows it."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml

from rankwatch.settings import to_toml
from rankwatch_alerts import RuleConfig
from support.agent.process import agent_process
from support.paths import ROOT
from support.servers.notified import web_server
from support.servers.prometheus import alertmanager, get_json, poll, prometheus, query, require

pytestmark = pytest.mark.process

PAGE = (ROOT / "docs" / "adopting.md").read_text()
DEADLINE_SECONDS = 120.0
RESENT = ("--rules.alert.resend-delay=1s",)  # what was sent before Alertmanager was found is lost
ROUTES = """\
# Routes of the storage team.
route:
  receiver: team
  group_wait: 1s
  group_interval: 1s
  repeat_interval: 5s
  routes:
    - receiver: nobody  # for inhibitions only
      matchers: [severity="info"]
receivers:
  - name: team
    webhook_configs:
      - url: URL/team
  - name: nobody
inhibit_rules:
  - source_matchers: [alertname="StorageDown"]
    target_matchers: [alertname="StorageSlow"]
"""
RULES = """\
groups:
  - name: storage  # theirs
    rules:
      - {alert: StorageDown, expr: vector(1), labels: {severity: critical}}
      - {alert: StorageSlow, expr: vector(1), labels: {severity: warning}}
      - {alert: StorageNote, expr: vector(1), labels: {severity: info}}
"""
BOARDS = "apiVersion: 1\nproviders: []  # theirs\n"
PREAMBLE = """\
set -eu
pidof() { pgrep --full -- "--config.file=$PWD/etc/$1/$1.yml"; }
"""


class Servers(NamedTuple):
    """Their addresses."""

    prometheus: str
    alertmanager: str


def test_servers_with_files(tmp_path: Path) -> None:
    """Our watchdog reaches the dead man's switch through servers of others, whose own things stay theirs."""
    require("prometheus", "prometheus-alertmanager", "promtool", "amtool", "pgrep")
    files = _theirs(tmp_path)
    with web_server() as (url, posted), agent_process(tmp_path, "--cluster", "lab") as agent:
        routes = ROUTES.replace("URL", url)
        with alertmanager(yaml.safe_load(routes), files["routes"].parent) as notifier:
            files["routes"].write_text(routes)
            files["routes"].with_name("rankwatch.tmpl").unlink()  # the helper's
            target = {"static_configs": [{"targets": [notifier.removeprefix("http://")]}]}
            config = {
                "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
                "rule_files": ["rules/*.rules.yml"],
                "alerting": {"alertmanagers": [target]},
            }
            with prometheus(config, files["rules"].parents[1], RESENT) as asked:
                poll(lambda: posted.get("/team"), DEADLINE_SECONDS, "an alert of theirs")
                servers = Servers(asked, notifier)
                _follow(tmp_path, servers, agent.address, url)
                watchdog = 'ALERTS{alertname="RankwatchWatchdog", cluster="lab", alertstate="firing"}'
                poll(lambda: query(asked, watchdog), DEADLINE_SECONDS, "our watchdog in Prometheus")
                poll(lambda: posted.get("/dead-man"), DEADLINE_SECONDS, "our watchdog outside")
                before = len(posted["all /team"])
                poll(lambda: len(posted["all /team"]) > before, DEADLINE_SECONDS, "theirs once more")
                printed = _bash(tmp_path, _blocks("sh")[-1], servers)
                poll(
                    lambda: _tried(posted.get("all /ticket", [])),
                    DEADLINE_SECONDS,
                    "the ticket to try it out",
                )
                (held_back,) = get_json(f"{notifier}/api/v2/alerts", {"filter": 'alertname="StorageSlow"'})
    assert held_back["status"]["state"] == "suppressed"
    assert "rankwatch-page-platform" in printed.splitlines()
    assert "StorageDown" in _names(posted["all /team"])
    assert _names(posted["all /team"]) <= {"StorageDown", "StorageSlow"}  # which may come before its cause
    assert _names(posted["all /dead-man"]) == {"RankwatchWatchdog"}
    assert files["rules"].read_text() == RULES
    assert files["boards"].read_text() == BOARDS
    merged = iter(files["routes"].read_text().splitlines())
    assert [line for line in routes.splitlines() if line not in merged] == []  # in their order
    (provider,) = yaml.safe_load(files["boards"].with_name("rankwatch.yml").read_text())["providers"]
    assert len(list(Path(provider["options"]["path"]).glob("*.json"))) == 7


def _theirs(root: Path) -> dict[str, Path]:
    """Files that were there before us, below `root` in place of `/`."""
    files = {
        "rules": root / "etc/prometheus/rules/storage.rules.yml",
        "routes": root / "etc/alertmanager/alertmanager.yml",
        "boards": root / "etc/grafana/provisioning/dashboards/storage.yml",
    }
    for file, text in zip(files.values(), (RULES, ROUTES, BOARDS), strict=True):
        file.parent.mkdir(parents=True)
        file.write_text(text)
    return files


def _follow(root: Path, servers: Servers, agent: str, url: str) -> None:
    """Run the commands of the page up to the last, which asks whether all is right."""
    paths = {name: f"{url}/{name}" for name in ("page", "ticket")}
    config = replace(RuleConfig.for_demo(), webhook_urls=paths, dead_man_url=f"{url}/dead-man")
    (root / "rankwatch.toml").write_text(to_toml(config))
    installed = root / ".venv/bin/rankwatch"
    installed.parent.mkdir(parents=True)
    installed.write_text(f'#!/bin/sh\nexec {sys.executable} -m rankwatch_cli "$@"\n')
    installed.chmod(0o755)
    (block,) = _blocks("bash")
    _bash(root, block.splitlines()[-1], servers)  # without the installation
    _add_job(root / "etc/prometheus/prometheus.yml", agent)
    for block in _blocks("sh")[:-1]:
        _bash(root, block, servers)


def _add_job(file: Path, agent: str) -> None:
    """The job and the rules of the page, with the agent that there is."""
    config = yaml.safe_load(file.read_text())
    (block,) = (yaml.safe_load(each) for each in _blocks("yaml"))
    (job,) = block["scrape_configs"]
    rules = [*config["rule_files"], *block["rule_files"]]
    own = {"scrape_interval": "1s", "static_configs": [{"targets": [agent]}]}
    file.write_text(yaml.safe_dump({**config, "rule_files": rules, "scrape_configs": [{**job, **own}]}))


def _blocks(language: str) -> list[str]:
    """Of the section on servers with files."""
    section = PAGE[PAGE.index("\n## Files") : PAGE.index("\n## Operator")]
    return re.findall(rf"```{language}\n(.*?)```", section, flags=re.DOTALL)


def _bash(root: Path, commands: str, servers: Servers) -> str:
    """What the commands print, with `root` in place of `/`."""
    here = commands.replace("http://localhost:9090", servers.prometheus)
    here = here.replace("http://localhost:9093", servers.alertmanager)
    here = re.sub(r"(?<![\w.])/(etc|var)/", rf"{root}/\1/", here)
    script = root / "script.sh"  # a file: its text would be found by pgrep among the arguments of bash
    script.write_text(PREAMBLE + here)
    done = subprocess.run(["bash", script], cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def _tried(posted: list[dict[str, list[dict[str, dict[str, str]]]]]) -> bool:
    return any(alert["labels"].get("node") == "try" for each in posted for alert in each["alerts"])


def _names(posted: list[dict[str, list[dict[str, dict[str, str]]]]]) -> set[str]:
    return {alert["labels"]["alertname"] for each in posted for alert in each["alerts"]}
