"""Alerts on hardware where Prometheus scrapes and evaluates every 30 or 60 seconds."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from rankwatch_alerts import RuleConfig
from rankwatch_alerts.rules import HARDWARE_ALERTS
from support.alerts.rule_test import CASES, ask, cases_in, groups_of, without_keeping
from support.alerts.scenarios import STEP_SECONDS, samples_in

pytestmark = [pytest.mark.process, pytest.mark.nightly]

SELDOM = "scrape_interval_seconds"
FILES = sorted(each for each in CASES.glob("*.yml") if each.stem.partition(".")[0] in HARDWARE_ALERTS)


@pytest.mark.parametrize("seconds", [30, 60])
@pytest.mark.parametrize("cases", FILES, ids=lambda path: path.stem)
def test_same_alerts(cases: Path, seconds: int, tmp_path: Path) -> None:
    """In each case the same alerts fire as at 15 s, with the same labels, and no others."""
    groups = without_keeping(groups_of(RuleConfig(scrape_interval_seconds=seconds)))
    for case in (each for each in cases_in(cases)["tests"] if SELDOM not in each):
        (found,) = ask(_thinned(case, seconds), groups, f"{seconds}s", tmp_path)
        fired = {json.dumps(dict(each.labels), sort_keys=True) for each in found}
        assert fired == set(_expected(case)), case["name"]


def _thinned(case: Mapping[str, Any], seconds: int) -> dict[str, Any]:
    """The case as this Prometheus sees it, and all that has fired until its end."""
    names = "|".join(sorted({each["alertname"] for each in case["alert_rule_test"]}))
    fired = f'max_over_time(ALERTS{{alertstate="firing", alertname=~"{names}"}}[1d])'
    return {
        "interval": f"{seconds}s",
        "input_series": [_every(each, seconds // STEP_SECONDS) for each in case["input_series"]],
        "promql_expr_test": [{"expr": fired, "eval_time": "70m", "exp_samples": []}],
    }


def _every(series: Mapping[str, str], steps: int) -> dict[str, str]:
    seen = [*samples_in(series["values"])][::steps]
    return {**series, "values": " ".join("_" if each is None else str(each) for each in seen)}


def _expected(case: Mapping[str, Any]) -> Iterator[str]:
    """The alerts of the case as series, without what all of them have."""
    for each in case["alert_rule_test"]:
        for alert in each["exp_alerts"]:
            labels = {**alert["exp_labels"], "alertname": each["alertname"], "alertstate": "firing"}
            yield json.dumps(labels, sort_keys=True)
