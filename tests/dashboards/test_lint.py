"""The shipped dashboard passes the lints, and each lint finds its mistake."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from rankwatch_alerts import RUN_DEBUG_UID, RuleConfig
from rankwatch_dashboards import dashboards
from support.dashboards.lint import check_dashboard, filled_in

Dashboard = dict[str, Any]


def _run_debug(config: RuleConfig) -> Dashboard:
    return next(each for each in dashboards(config) if each["uid"] == RUN_DEBUG_UID)


def _panel(dashboard: Dashboard) -> dict[str, Any]:
    panel: dict[str, Any] = next(each for each in dashboard["panels"] if each["type"] == "timeseries")
    return panel


def _asks(expression: str, legend: str = "x") -> Callable[[Dashboard], None]:
    def change(dashboard: Dashboard) -> None:
        _panel(dashboard)["targets"][0] |= {"expr": expression, "legendFormat": legend}

    return change


def _sets(key: str, value: object) -> Callable[[Dashboard], None]:
    return lambda dashboard: dashboard.update({key: value})


def _sets_in_panel(key: str, value: object) -> Callable[[Dashboard], None]:
    return lambda dashboard: _panel(dashboard).update({key: value})


def _sets_in_variable(name: str, key: str, value: object) -> Callable[[Dashboard], None]:
    def change(dashboard: Dashboard) -> None:
        next(each for each in dashboard["templating"]["list"] if each["name"] == name)[key] = value

    return change


def test_dashboards() -> None:
    """Identity, layout, texts, data sources, variables, queries and names of series."""
    assert [violation for each in dashboards(RuleConfig()) for violation in check_dashboard(each)] == []


def test_thresholds_are_those_of_the_rules() -> None:
    """One number for the line in the panel and for the alert."""
    board = _run_debug(RuleConfig(straggler_residual=0.25))
    residual = next(each for each in board["panels"] if each["title"] == "Residual per rank")
    steps = residual["fieldConfig"]["defaults"]["thresholds"]["steps"]
    assert steps[-1]["value"] == 0.25


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_sets("uid", "x" * 41), "uid is not 1 to 40 characters long"),
        (_sets("editable", True), "the dashboard is editable"),
        (_sets("__inputs", []), "__inputs is not part of Classic JSON"),
        (_sets_in_panel("id", 1), "panel id 1 occurs 2 times"),
        (_sets_in_panel("gridPos", {"x": 20, "y": 500, "w": 8, "h": 8}), "does not fit into 24 columns"),
        (_sets_in_panel("gridPos", {"x": 8, "y": 1, "w": 8, "h": 8}), "overlap"),
        (_sets_in_panel("type", "graph"), "type graph is gone since Grafana 12"),
        (_sets_in_panel("description", "Steps."), "no description that says what is bad"),
        (_sets_in_panel("title", ""), "no title"),
        (_sets_in_panel("targets", []), "no query"),
        (_sets_in_panel("fieldConfig", {"defaults": {}}), "no unit"),
        (_sets_in_panel("datasource", {"uid": "P123"}), "not the data source variable"),
        (_sets_in_variable("cluster", "allValue", ""), "allValue is neither .+ nor .*"),
        (_sets_in_variable("run", "refresh", 1), "does not reload when the time range changes"),
        (_sets_in_variable("run", "label", ""), "no label"),
        (_sets_in_variable("run", "query", "label_values(rankwatch_rank_info, runs)"), "has no label runs"),
        (_sets_in_variable("run", "query", "label_values(run)"), "is not label_values(selector, label)"),
        (_sets_in_variable("run", "name", "job"), "$run is not declared"),
        (_asks('max(rankwatch_step{cluster=~"$cluster", rank="$rank"})'), "rank=$rank cannot match"),
        (_asks('max(rankwatch_stepp{cluster=~"$cluster"})'), "rankwatch_stepp is not declared"),
        (_asks("max(rankwatch_step)"), "rankwatch_step is not limited to $cluster"),
        (_asks('sum(rate(rankwatch_steps_total{cluster=~"$cluster"}[5m]))'), "rate over [5m] instead of"),
        (_asks('max(rankwatch_step{cluster=~"$cluster"})', ""), "no legend"),
        (_asks('rankwatch_step{cluster=~"$cluster"}'), "a line per rank or node without topk"),
        (_asks('topk(3, rankwatch_step{cluster=~"$cluster"})', "{{rank}}"), "names a rank without its node"),
    ],
)  # fmt: skip
def test_wrong_dashboard(change: Callable[[Dashboard], None], message: str) -> None:
    """Grafana shows each of these as an empty panel, or not at all."""
    dashboard = copy.deepcopy(_run_debug(RuleConfig()))
    change(dashboard)
    assert any(message in violation.message for violation in check_dashboard(dashboard))


def test_variables() -> None:
    """Both ways of writing them; what is unknown matches everything."""
    text = 'rate(a{run=~"$run", rank=~"${rank}"}[$__rate_interval])'
    assert filled_in(text, {"run": "r"}) == 'rate(a{run=~"r", rank=~".*"}[1m])'
