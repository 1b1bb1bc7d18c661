"""Rules and configuration of several Prometheus servers; tests/e2e/test_sharded.py runs them."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from rankwatch_alerts import RuleConfig, alert_groups, recording_groups
from rankwatch_alerts.generation import roles, write_sharded
from support.servers.prometheus import require

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
def test_promtool_check(names: dict[str, str], tmp_path: Path) -> None:
    """Prometheus takes each configuration, and runs are divided by the labels as the user calls them."""
    require("promtool")
    config = replace(SHARDED, label_names=names)
    written = write_sharded(config, tmp_path)
    servers = [each for each in written if not each.name.endswith(".rules.yml")]
    assert {each.stem for each in servers} == {"shard-0", "shard-1", "fleet", "query"}
    for each in servers:
        command = ["promtool", "check", "config", str(each)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
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
