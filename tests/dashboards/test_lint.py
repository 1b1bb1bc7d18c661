"""The shipped dashboard passes the lints, and each lint finds its mistake."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from rankwatch_alerts import LEARNING_UID, ON_CALL_UID, RUN_DEBUG_UID, RuleConfig
from rankwatch_dashboards import dashboards
from support.dashboards.lint import check_dashboard, drawn, filled_in, first_screen, links

Dashboard = dict[str, Any]


def _run_debug(config: RuleConfig) -> Dashboard:
    return next(each for each in dashboards(config) if each["uid"] == RUN_DEBUG_UID)


def _panel(dashboard: Dashboard) -> dict[str, Any]:
    panel = next(each for each in drawn(dashboard) if each["type"] == "timeseries")
    assert isinstance(panel, dict)
    return panel


def _asks(expression: str, legend: str = "x") -> Callable[[Dashboard], None]:
    def change(dashboard: Dashboard) -> None:
        _panel(dashboard)["targets"][0] |= {"expr": expression, "legendFormat": legend}

    return change


def _sets(key: str, value: object) -> Callable[[Dashboard], None]:
    return lambda dashboard: dashboard.update({key: value})


def _sets_in_panel(key: str, value: object) -> Callable[[Dashboard], None]:
    return lambda dashboard: _panel(dashboard).update({key: value})


def _places(place: dict[str, int]) -> Callable[[Dashboard], None]:
    """Moves the first panel."""
    return lambda dashboard: dashboard["panels"][0].update(gridPos=place)


def _sets_in_variable(name: str, key: str, value: object) -> Callable[[Dashboard], None]:
    def change(dashboard: Dashboard) -> None:
        next(each for each in dashboard["templating"]["list"] if each["name"] == name)[key] = value

    return change


@pytest.mark.parametrize("board", dashboards(RuleConfig()), ids=lambda board: str(board["uid"]))
def test_dashboard(board: Dashboard) -> None:
    """Identity, layout, texts, variables, queries and names of series, one screen with the geometry of all
    boards, and links that lead to the next one on what was clicked."""
    uids = frozenset(each["uid"] for each in dashboards(RuleConfig()))
    assert [*check_dashboard(board), *first_screen(board), *links(board, uids)] == []


def test_links_of_the_table() -> None:
    """They carry what was clicked."""
    (board,) = [each for each in dashboards(RuleConfig()) if each["uid"] == ON_CALL_UID]
    table = next(each for each in drawn(board) if each["title"] == "What is wrong now, and the other runs")
    urls = {
        each["matcher"]["options"]: link["url"]
        for each in table["fieldConfig"]["overrides"]
        for one in each["properties"]
        if one["id"] == "links"
        for link in one["value"]
    }
    assert "var-run=${__data.fields.run}&var-rank=${__data.fields.rank}" in urls["rank"]
    assert urls["node"].startswith("/d/rankwatch-hardware?${cluster:queryparam}&var-node=")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda panel: panel["gridPos"].update(h=4), "not at the places of a first screen"),
        (lambda panel: panel.update(description="Pages."), "does not say what no data means"),
        (lambda panel: panel.update(links=[{"url": "/d/gone?x"}]), "the board gone does not exist"),
        (lambda panel: panel.update(links=[{"url": "/d/gone?x"}]), "carries no cluster"),
        (lambda panel: panel.update(links=[{"url": "/d/gone?x"}]), "does not keep the time shown"),
        (lambda panel: panel["targets"][0].update(instant=False), "for the wrong time"),
    ],
)
def test_wrong_first_screen(change: Callable[[dict[str, Any]], None], message: str) -> None:
    """A person on call would have to search, or would see what is over."""
    (board,) = [each for each in dashboards(RuleConfig()) if each["uid"] == ON_CALL_UID]
    change(board["panels"][2])
    uids = frozenset({ON_CALL_UID})
    found = [*first_screen(board), *links(board, uids), *check_dashboard(board)]
    assert any(message in violation.message for violation in found)


def test_first_screen_of_many_ranks() -> None:
    """A panel that reads a series per rank over time asks for a moment each minute."""
    (board,) = [copy.deepcopy(each) for each in dashboards(RuleConfig()) if each["uid"] == LEARNING_UID]
    panel = next(each for each in board["panels"] if each.get("interval") == "1m")
    panel["interval"] = "15s"
    assert any("is read at each scrape" in violation.message for violation in first_screen(board))


def test_interval_follows_the_setting() -> None:
    """Between two scrapes is nothing to draw, and less than four of them are no window."""
    for board in dashboards(RuleConfig(scrape_interval_seconds=60.0, step_window_seconds=240.0)):
        assert {each["interval"] for each in drawn(board)} == {"1m"}
        for event in board["annotations"]["list"]:
            assert "[1m]" not in event["expr"]


def test_closed_rows() -> None:
    """Panels inside a closed row that lie on top of each other are found."""
    board = _run_debug(RuleConfig())
    row = next(each for each in board["panels"] if len(each.get("panels", ())) > 1)
    row["panels"][1]["gridPos"] = row["panels"][0]["gridPos"]
    assert any("overlap" in violation.message for violation in check_dashboard(board))


def test_thresholds_are_those_of_the_rules() -> None:
    """One number for the line in the panel and for the alert."""
    board = _run_debug(RuleConfig(straggler_residual=0.25))
    residual = next(each for each in drawn(board) if each["title"] == "Residual per rank")
    steps = residual["fieldConfig"]["defaults"]["thresholds"]["steps"]
    assert steps[-1]["value"] == 0.25


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_sets("uid", "x" * 41), "uid is not 1 to 40 characters long"),
        (_sets("editable", True), "the dashboard is editable"),
        (_sets("__inputs", []), "__inputs is not part of Classic JSON"),
        (_sets_in_panel("id", 1), "panel id 1 occurs 2 times"),
        (_places({"x": 20, "y": 500, "w": 8, "h": 8}), "does not fit into 24 columns"),
        (_places({"x": 8, "y": 1, "w": 8, "h": 8}), "overlap"),
        (_sets_in_panel("type", "graph"), "type graph is gone since Grafana 12"),
        (_sets_in_panel("description", "Steps."), "no description that says what is bad"),
        (_sets_in_panel("title", ""), "no title"),
        (_sets_in_panel("description", "Above the line: RankwatchGone."), "RankwatchGone is no alert"),
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
