"""The committed rule files are what the generator writes, and Prometheus takes them; so does each of several
servers (tests/e2e/test_sharded.py runs them)."""

from __future__ import annotations

import re
import tomllib
from dataclasses import asdict, fields, replace
from pathlib import Path

import pytest
import yaml

from rankwatch.settings import toml_value
from rankwatch_alerts import (
    RuleConfig,
    alert_groups,
    load_config,
    prometheus_config,
    recording_groups,
    to_yaml,
    write_rules,
)
from rankwatch_alerts.generation import roles, rules_reference, write_alertmanager, write_sharded
from support.paths import ROOT
from support.servers.prometheus import accepted

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
    config = RuleConfig().scaled(time_scale)
    rules = write_rules(config, tmp_path)
    path = tmp_path / "prometheus.yml"
    path.write_text(to_yaml(prometheus_config(config, rule_files=rules, agent_targets=["127.0.0.1:9477"])))
    accepted("promtool", "check", "config", path)
    accepted("promtool", "check", "rules", "--lint=all", "--lint-fatal", *rules)


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
    (config,) = _blocks("yaml")
    (tmp_path / "prometheus.yml").write_text(config)
    write_rules(RuleConfig(), tmp_path / "rules")
    assert "SUCCESS: 2 rule files found" in accepted(
        "promtool", "check", "config", tmp_path / "prometheus.yml"
    )
    assert "job_name: rankwatch\n    scrape_interval: 15s" in config


SHARDED = replace(RuleConfig(), prometheus_shards=("a:9090", "b:9090"), prometheus_fleet="c:9090")


def test_each_group_in_one_role() -> None:
    """No rule is lost or evaluated by both kinds of servers, and no record has two origins."""
    of_runs, of_fleet = roles(SHARDED)
    groups = [each.name for role in (of_runs, of_fleet) for each in role.groups]
    assert sorted(groups) == sorted(
        each.name for each in (*recording_groups(SHARDED), *alert_groups(SHARDED))
    )
    assert of_runs.groups
    assert of_fleet.groups
    assert not of_runs.recorded & of_fleet.recorded


def test_only_runs_are_federated() -> None:
    """A few series of each run go from shards to the fleet server: none of a rank, node or GPU."""
    of_runs, of_fleet = roles(SHARDED)
    for names in (of_fleet.read & of_runs.recorded, of_runs.read & of_fleet.recorded):
        assert names
        assert {name.partition(":")[0] for name in names} <= {"run", "run_state", "run_path"}


@pytest.mark.process
@pytest.mark.parametrize("names", [{}, {"run": "job_id", "cluster": "site"}])
def test_promtool_takes_each_server(names: dict[str, str], tmp_path: Path) -> None:
    """Prometheus takes each configuration, and runs are divided by the labels as the user calls them."""
    config = replace(SHARDED, label_names=names)
    written = write_sharded(config, tmp_path)
    servers = [each for each in written if not each.name.endswith(".rules.yml")]
    assert {each.stem for each in servers} == {"shard-0", "shard-1", "fleet", "query"}
    for each in servers:
        accepted("promtool", "check", "config", each)
    shard = yaml.safe_load((tmp_path / "shard-1.yml").read_text())
    hashed = shard["scrape_configs"][0]["metric_relabel_configs"][0]
    assert hashed["source_labels"] == [names.get("cluster", "cluster"), names.get("run", "run")]
    assert hashed["modulus"] == len(config.prometheus_shards)


def test_fewer_servers(tmp_path: Path) -> None:
    """What belongs to a server that is no more is removed, and nothing that others wrote."""
    agents = tmp_path / "agents.yml"
    agents.write_text("[]\n")
    more = replace(SHARDED, prometheus_shards=("a:9090", "b:9090", "d:9090"))
    assert tmp_path / "shard-2.yml" in write_sharded(more, tmp_path)
    assert {agents, *write_sharded(SHARDED, tmp_path)} == set(tmp_path.iterdir())
    assert not write_sharded(RuleConfig(), tmp_path)
    assert list(tmp_path.iterdir()) == [agents]


def test_one_server(tmp_path: Path) -> None:
    """Without shards nothing is written."""
    assert not write_sharded(RuleConfig(), tmp_path)
    assert not list(tmp_path.iterdir())
