"""Several Prometheus servers, where the rules of all runs are too much for one.

A run is whole in one shard, because the rules compare its ranks. The fleet server has the machines, and adds
up runs. Each scrapes all agents and keeps what its own rules read; what one records and the other's rules
read is federated, a few series of a run. Grafana asks a server without data, which reads from all others.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from rankwatch_alerts.config import RuleConfig
from rankwatch_alerts.generation import prometheus_config, remove_generated, rule_file, write_yaml
from rankwatch_alerts.rule_files import alert_groups, recording_groups
from rankwatch_alerts.rules import AlertRule, RecordingRule, RuleGroup

AGENTS_FILE = "agents.yml"
"""Targets of all agents, as `file_sd_configs` reads them; the only file that is not generated."""
_FILES = ("runs.rules.yml", "fleet.rules.yml", "fleet.yml", "query.yml")
SHARDS_JOB, FLEET_JOB = "rankwatch-shards", "rankwatch-fleet"
"""Values of `job` where one of these servers reads what the others record."""
_METRIC = re.compile(r'(?<![\w:"$.])(?:[a-z][a-z_0-9]*:)?rankwatch_[a-z_0-9]+(?::[a-z_0-9]+)*')
_SHARD = "__tmp_shard"


@dataclass(frozen=True)
class Role:
    """Rule groups of one kind of server, and what they read."""

    groups: tuple[RuleGroup, ...]

    @property
    def rules(self) -> tuple[RecordingRule | AlertRule, ...]:
        """All rules of the groups."""
        return tuple(rule for group in self.groups for rule in group.rules)

    @property
    def recorded(self) -> frozenset[str]:
        """Names of the series that its rules record."""
        return frozenset(rule.record for rule in self.rules if isinstance(rule, RecordingRule))

    @property
    def read(self) -> frozenset[str]:
        """Names of the series that its rules read, also for the texts of alerts."""
        return frozenset(
            name for rule in self.rules for text in _texts(rule) for name in _METRIC.findall(text)
        )

    @property
    def scraped(self) -> tuple[str, ...]:
        """Metrics of agents among them."""
        return tuple(sorted(name for name in self.read if ":" not in name))


def roles(config: RuleConfig) -> tuple[Role, Role]:
    """The role of the shards, and that of the fleet server: each group is in one of them."""
    groups = (*recording_groups(config), *alert_groups(config))
    return (
        Role(tuple(each for each in groups if not each.of_fleet)),
        Role(tuple(each for each in groups if each.of_fleet)),
    )


def write_sharded(config: RuleConfig, directory: Path) -> list[Path]:
    """Write rules and configuration of each server and return the paths. Nothing without `prometheus_shards`.
    What an earlier call wrote for further shards is removed.

    Raises OSError where the directory cannot be written.
    """
    remove_generated(directory, *_FILES, "shard-*.yml")
    shards = config.prometheus_shards
    if not shards:
        return []
    of_runs, of_fleet = roles(config)
    runs_rules, fleet_rules, fleet, query = _FILES
    documents: dict[str, Mapping[str, object]] = {
        runs_rules: rule_file(config, of_runs.groups),
        fleet_rules: rule_file(config, of_fleet.groups),
        fleet: _server(
            config,
            config.prometheus_fleet,
            rules=fleet_rules,
            kept=_kept_by_fleet(config, of_fleet),
            federated=_federated(SHARDS_JOB, shards, of_fleet.read & of_runs.recorded),
        ),
        query: {"remote_read": [_read(each) for each in (*shards, config.prometheus_fleet)]},
    }
    from_fleet = _federated(FLEET_JOB, (config.prometheus_fleet,), of_runs.read & of_fleet.recorded)
    for number, address in enumerate(shards):
        documents[f"shard-{number}.yml"] = _server(
            config,
            address,
            rules=runs_rules,
            kept=_kept_by_shard(config, of_runs, number),
            federated=from_fleet,
        )
    return [write_yaml(directory / name, document) for name, document in documents.items()]


def _texts(rule: RecordingRule | AlertRule) -> Iterable[str]:
    yield rule.expression
    if isinstance(rule, AlertRule):
        yield from rule.annotations.values()


def _server(
    config: RuleConfig,
    address: str,
    *,
    rules: str,
    kept: list[dict[str, object]],
    federated: dict[str, object],
) -> dict[str, object]:
    agents = {
        "job_name": config.agent_job,
        "file_sd_configs": [{"files": [AGENTS_FILE]}],
        "metric_relabel_configs": kept,
    }
    itself = {"job_name": "prometheus", "static_configs": [{"targets": [address]}]}
    one = prometheus_config(
        config, rule_files=[Path(rules)], agent_targets=(), alertmanager_targets=[config.alertmanager_address]
    )
    return one | {"scrape_configs": [agents, federated, itself]}


def _kept_by_fleet(config: RuleConfig, role: Role) -> list[dict[str, object]]:
    """What belongs to no run, and of runs what the rules read."""
    run = config.label_names.get("run", "run")
    names = "|".join(role.scraped)
    return [{"source_labels": ["__name__", run], "regex": f"[^;]+;|({names});.*", "action": "keep"}]


def _kept_by_shard(config: RuleConfig, role: Role, number: int) -> list[dict[str, object]]:
    """The runs of this shard, by a hash of cluster and run, and what its rules read of no run."""
    cluster, run = (config.label_names.get(each, each) for each in ("cluster", "run"))
    modulus, names = len(config.prometheus_shards), "|".join(role.scraped)
    of_no_run: Mapping[str, object] = {"source_labels": ["__name__", run], "target_label": _SHARD}
    return [
        {"source_labels": [cluster, run], "modulus": modulus, "target_label": _SHARD, "action": "hashmod"},
        {**of_no_run, "regex": "[^;]+;", "replacement": "none"},
        {**of_no_run, "regex": f"({names});", "replacement": f"{number}"},
        {"source_labels": [_SHARD], "regex": f"{number}", "action": "keep"},
        {"regex": _SHARD, "action": "labeldrop"},
    ]


def _federated(job: str, addresses: tuple[str, ...], names: Iterable[str]) -> dict[str, object]:
    """A scrape of what other servers record. Their times are left out, so that a series ends when it does."""
    return {
        "job_name": job,
        "metrics_path": "/federate",
        "honor_labels": True,
        "honor_timestamps": False,
        "params": {"match[]": [f'{{__name__=~"{"|".join(sorted(names))}"}}']},
        "static_configs": [{"targets": list(addresses)}],
    }


def _read(address: str) -> dict[str, object]:
    return {"url": f"http://{address}/api/v1/read", "read_recent": True}
