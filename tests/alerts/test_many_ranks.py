"""A loss of many ranks at once is still one alert."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rankwatch_alerts import RuleConfig, write_rules
from support.alerts.rule_test import groups_of, run_promtool, write_cases

RANKS = 1001
"""One more than a group once let pass: Prometheus drops all alerts of a rule that exceeds a `limit`."""


@pytest.mark.process
def test_lost_ranks(tmp_path: Path) -> None:
    """One alert for the run, whose text has the number of its ranks and names 16 of them."""
    lost = 'rankwatch_rank_state{cluster="c", run="r", rank="%d", node="n%d", state="lost"}'
    alert = {"alertname": "RankwatchRunFailed", "cluster": "c", "run": "r", "reason": "ranks_lost"}
    of_all = {"product": "rankwatch", "owner": "training", "severity": "warning"}
    fires = {**alert, **of_all, "alertstate": "firing"}
    labels = ",".join(f'{name}="{value}"' for name, value in fires.items())
    case = {
        "interval": "15s",
        "input_series": [{"series": lost % (rank, rank // 8), "values": "1x10"} for rank in range(RANKS)],
        "promql_expr_test": [
            {
                "expr": 'ALERTS{alertname="RankwatchRunFailed"}',
                "eval_time": "1m",
                "exp_samples": [{"labels": f"ALERTS{{{labels}}}", "value": 1}],
            }
        ],
        "alert_rule_test": [{"alertname": alert["alertname"], "eval_time": "1m", "exp_alerts": []}],
    }
    found = run_promtool(write_cases((case,), groups_of(RuleConfig()), "15s", tmp_path)).stdout
    assert "expr:" not in found, found  # only the alert itself is not as expected: nobody counts its names
    assert f"{RANKS} rank(s) of run r are gone" in found
    assert found.count("(node n") == 16


def test_no_limit(tmp_path: Path) -> None:
    for each in write_rules(RuleConfig(), tmp_path):
        assert not re.search(r"^\s*limit:", each.read_text(), re.MULTILINE)
