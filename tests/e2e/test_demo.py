"""The demo as a person plays it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from support.cli.demo import demo
from support.servers.prometheus import require

pytestmark = pytest.mark.e2e


def test_the_demo_prints_the_alert_that_names_the_injected_rank_and_leaves_nothing(tmp_path: Path) -> None:
    """The rank is known to the demo alone; the alert has come through Prometheus and Alertmanager."""
    require("prometheus", "prometheus-alertmanager")
    result = tmp_path / "result.json"
    with demo(tmp_path, "--result", str(result)) as running:
        running.wait_for("injected: ")
        status = running.ended()
        said = running.said
    assert status == 0, said
    outcome = json.loads(result.read_text())
    rank = outcome["injected_rank"]
    assert outcome["right"]
    assert outcome["named_rank"] == rank
    assert _shown(said, "alertname") == "RankwatchStraggler"
    assert _shown(said, "run") == "demo"
    assert _shown(said, "rank") == str(rank)
    assert _shown(said, "node")
    assert _shown(said, "cause") == "slow_rank"
    assert _shown(said, "phase") == "compute"
    assert float(_shown(said, "slowdown")) > 1.2
    assert _shown(said, "runbook_url").endswith("/RankwatchStraggler")
    assert re.search(rf"RIGHT: rank {rank} was slowed down and named \d+ s later", said)


def _shown(said: str, name: str) -> str:
    """The value in the line of a label or an annotation."""
    found = re.search(rf"^  {name} +(\S.*)$", said, re.MULTILINE)
    assert found, f"no line for {name} in:\n{said}"
    return found[1]
