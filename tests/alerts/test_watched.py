"""Whether silence is that of a run, or that of a Prometheus that was away: on a real server with a past."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from rankwatch_alerts import Alert, RuleConfig, prometheus_config
from support.alerts.rule_test import groups_of, needed
from support.servers.prometheus import backfill, get_json, poll, prometheus, query, require

pytestmark = pytest.mark.process

CONFIG = replace(RuleConfig(), scrape_interval_seconds=1.0, ticket_interval_seconds=1.0)
"""Evaluated each second; the memories and windows are those of production."""
SILENT_SECONDS = CONFIG.absence_window_seconds + 45.0


def _history(silent: str) -> Iterator[str]:
    """A sample a minute of the last 20 minutes. Series that match `silent` have none in the last ones."""
    now = time.time()
    for series in (
        'rankwatch_agent_info{cluster="c",node="n0"}',
        'run:rankwatch_ranks_running:sum{cluster="c",run="r"}',
        "server:rankwatch_rules_evaluated:bool",
    ):
        last = now - SILENT_SECONDS if re.match(silent, series) else now - 1.0
        yield from (f"{series} 1 {last - 60.0 * ago:.3f}" for ago in reversed(range(20)))


@contextmanager
def _started(silent: str, directory: Path) -> Iterator[str]:
    """A Prometheus with this past, which has not scraped any agent yet."""
    require("prometheus", "promtool")
    rules = directory / "rules.json"
    asked = {"alert_rule_test": [{"alertname": Alert.TELEMETRY_ABSENT, "exp_alerts": []}]}
    rules.write_text(json.dumps({"groups": needed(groups_of(CONFIG), asked)}))
    backfill(_history(silent), directory)
    with prometheus(prometheus_config(CONFIG, rule_files=[rules], agent_targets=[]), directory) as url:
        yield url


def _reasons(url: str) -> set[str]:
    """Of the alerts on absent telemetry that fire, or will if nothing changes."""
    alerts = get_json(f"{url}/api/v1/alerts")["data"]["alerts"]
    return {
        each["labels"]["reason"] for each in alerts if each["labels"]["alertname"] == Alert.TELEMETRY_ABSENT
    }


def test_away(tmp_path: Path) -> None:
    """A server that was down for longer than the window remembers the run, and has seen nothing since: no
    alert even begins to wait, however long its first scrapes take."""
    with _started("rankwatch|run|server", tmp_path) as url:
        evaluated = "count_over_time(server:rankwatch_rules_evaluated:bool[1m]) >= 5"
        poll(lambda: query(url, evaluated), 60.0, "evaluations")
        assert _reasons(url) == set()


def test_vanished(tmp_path: Path) -> None:
    """A server that evaluated its rules all the time, and no longer sees the run and its agents, says so."""
    with _started("rankwatch|run", tmp_path) as url:
        poll(lambda: _reasons(url) == {"run_vanished", "agents_missing"}, 60.0, "alerts on run and agents")
