"""The committed dashboards are what the generator writes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rankwatch_alerts import RUN_DEBUG_UID, RuleConfig, alert_rules
from rankwatch_dashboards import all_panels, dashboards, write_dashboards
from support.paths import ROOT

GENERATED = ROOT / "dashboards" / "generated"


def test_committed_files(tmp_path: Path) -> None:
    """`make generate` leaves the repository as it is."""
    written = write_dashboards(RuleConfig(), tmp_path)
    assert sorted(each.name for each in written) == sorted(each.name for each in GENERATED.glob("[!.]*"))
    for each in written:
        assert each.read_bytes() == (GENERATED / each.name).read_bytes(), each.name


def test_threshold(tmp_path: Path) -> None:
    """A panel draws the threshold its alert uses."""
    write_dashboards(RuleConfig(checkpoint_age_budget_seconds=7654.0), tmp_path)
    assert "7654" in (tmp_path / f"{RUN_DEBUG_UID}.json").read_text()


def test_alerts_link_to_the_dashboard() -> None:
    """The uid in every dashboard_url is that of a generated file."""
    for rule in alert_rules(RuleConfig(dashboard_base_url="https://grafana.test")):
        uid = rule.annotations["dashboard_url"].split("/d/")[1].split("?")[0]
        assert (GENERATED / f"{uid}.json").exists()


@pytest.mark.parametrize(
    ("base", "expected"),
    [("", []), ("https://wiki.test/rw/", ["https://wiki.test/rw/${__data.fields.alertname}"] * 2)],
)
def test_alerts_link_to_runbooks(base: str, expected: list[str]) -> None:
    """From both tables of alerts, if runbooks are published, and only then a panel says so."""
    panels = [each for board in dashboards(RuleConfig(runbook_base_url=base)) for each in all_panels(board)]
    properties = [
        each
        for panel in panels
        for override in panel.get("fieldConfig", {}).get("overrides", ())
        for each in override["properties"]
        if each["id"] == "links"
    ]
    assert [
        each["value"][0]["url"] for each in properties if each["value"][0]["title"] == "Runbook"
    ] == expected
    saying = [each for each in panels if "The alert opens its runbook." in each.get("description", "")]
    assert len(saying) == len(expected)


def test_tracker_is_one_click_away() -> None:
    """The run-debug dashboard opens the address that the run's info series carries, as it is."""
    board = json.loads((GENERATED / f"{RUN_DEBUG_UID}.json").read_text())
    panels = [each for row in board["panels"] for each in (row, *row.get("panels", []))]
    (panel,) = [each for each in panels if each["title"] == "Experiment tracker"]
    (link,) = panel["fieldConfig"]["defaults"]["links"]
    assert (link["url"], link["targetBlank"]) == ("${__field.labels.tracker_url:raw}", True)
    assert 'tracker_url!=""' in panel["targets"][0]["expr"]
