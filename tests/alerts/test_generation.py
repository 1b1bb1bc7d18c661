"""The committed rule files are what the generator writes, and Prometheus takes them."""

from __future__ import annotations

import re
import subprocess
import tomllib
from dataclasses import asdict, fields
from pathlib import Path

import pytest

import rankwatch_alerts
from rankwatch.settings import toml_value
from rankwatch_alerts import RuleConfig, load_config, prometheus_config, to_yaml, write_rules
from rankwatch_alerts.generation import rules_reference, write_alertmanager
from support.paths import ROOT
from support.servers.prometheus import require

GENERATED = ROOT / "alerts" / "generated"


def test_committed_files(tmp_path: Path) -> None:
    """`make generate` leaves the repository as it is."""
    written = (*write_rules(RuleConfig(), tmp_path), *write_alertmanager(RuleConfig(), tmp_path))
    assert sorted(each.name for each in written) == sorted(each.name for each in GENERATED.glob("[!.]*"))
    for each in written:
        assert each.read_bytes() == (GENERATED / each.name).read_bytes(), each.name


@pytest.mark.process
@pytest.mark.parametrize("time_scale", [1, 60, 1000])
def test_promtool_check(tmp_path: Path, time_scale: float) -> None:
    """At every time scale promtool finds no fault and no duplicate in rules or configuration."""
    require("promtool")
    config = RuleConfig().scaled(time_scale)
    rules = rankwatch_alerts.write_rules(config, tmp_path)
    path = tmp_path / "prometheus.yml"
    path.write_text(to_yaml(prometheus_config(config, rule_files=rules, agent_targets=["127.0.0.1:9477"])))
    result = subprocess.run(
        ["promtool", "check", "config", str(path)], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr
    lint = ["promtool", "check", "rules", "--lint=all", "--lint-fatal", *map(str, rules)]
    result = subprocess.run(lint, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


def test_public_names() -> None:
    """`__all__` is the interface other parts may rely on."""
    assert set(rankwatch_alerts.__all__) <= set(dir(rankwatch_alerts))
    assert {"RuleConfig", "write_rules", "alertmanager_config", "prometheus_config"} <= set(
        rankwatch_alerts.__all__
    )


PAGE = "\n".join(rules_reference({each.name: f"Meaning of {each.name}." for each in fields(RuleConfig)}))


def _blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, flags=re.DOTALL)


def test_page_lists_every_setting() -> None:
    """One row each."""
    for name, value in asdict(RuleConfig()).items():
        number = isinstance(value, int | float) and not isinstance(value, bool)
        default = f"{value:g}" if number else toml_value(value)
        assert f"| `{name}` | `{default}` | Meaning of {name}. |" in PAGE


@pytest.mark.parametrize("block", _blocks("toml"), ids=["rules", "notifications"])
def test_page_config_loads(block: str, tmp_path: Path) -> None:
    """As it is printed."""
    file = tmp_path / "rules.toml"
    file.write_text(block)
    loaded = asdict(load_config(file))
    for name, value in tomllib.loads(block).items():
        assert loaded[name] == (tuple(value) if isinstance(value, list) else value)


@pytest.mark.process
def test_page_prometheus_config(tmp_path: Path) -> None:
    """As it is printed, beside the rules it names."""
    require("promtool")
    (config,) = _blocks("yaml")
    (tmp_path / "prometheus.yml").write_text(config)
    write_rules(RuleConfig(), tmp_path / "rules")
    command = ["promtool", "check", "config", str(tmp_path / "prometheus.yml")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "SUCCESS: 2 rule files found" in done.stdout + done.stderr
    assert "job_name: rankwatch\n    scrape_interval: 15s" in config
