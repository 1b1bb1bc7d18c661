"""The shipped rules and runbooks pass the lints, and each lint finds its mistake."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rankwatch.conventions import RECORDED_SERIES
from rankwatch_alerts import ALERT_NAMES, RuleConfig, alert_groups, recording_groups
from rankwatch_alerts.rules import AlertRule, RecordingRule, Severity
from support.alerts.lint import check_alert, check_expression, check_record, check_runbook
from support.alerts.promql import parse, result_labels
from support.paths import ROOT

RUNBOOKS = ROOT / "runbooks"
LONGEST_FIRST_ACT = 60
"""Letters that a cell of the on-call board shows."""
ALERTS = [each for group in alert_groups(RuleConfig()) for each in group.rules if isinstance(each, AlertRule)]
RECORDED = [
    each
    for group in recording_groups(RuleConfig())
    for each in group.rules
    if isinstance(each, RecordingRule)
]


def _straggler() -> AlertRule:
    return next(each for each in ALERTS if each.alert == "RankwatchStraggler")


def test_alerts() -> None:
    """Expressions, annotations and the queries inside templates."""
    assert [violation for rule in ALERTS for violation in check_alert(rule)] == []


def test_records() -> None:
    """What dashboards and alerts may rely on is what the expression gives."""
    declared = {each.name: set(map(str, each.labels)) for each in RECORDED_SERIES}
    for rule in RECORDED:
        assert check_record(rule) == []
        assert result_labels(parse(rule.expression)) == declared[rule.record], rule.record


def test_records_are_unique() -> None:
    """Two producers of one name would be summed silently."""
    assert sorted(rule.record for rule in RECORDED) == sorted(each.name for each in RECORDED_SERIES)


def test_alert_names() -> None:
    """An alert that is not in the registry has no runbook."""
    assert set(ALERT_NAMES) == {rule.alert for rule in ALERTS}


def test_first_acts() -> None:
    """Each alert that somebody gets says what to do first, short enough for a cell of a table."""
    for rule in ALERTS:
        assert rule.first_act or rule.severity is Severity.INFO, rule.alert
        assert len(rule.first_act) <= LONGEST_FIRST_ACT
        assert "{{" not in rule.first_act, "boards know no labels there"
        assert rule.first_act[1:] in rule.annotations["description"]


@pytest.mark.parametrize("alert", ALERT_NAMES)
def test_runbook(alert: str) -> None:
    """Headings, commands, dashboard, and queries that parse and use known names."""
    text = (RUNBOOKS / f"{alert}.md").read_text(encoding="utf-8")
    assert check_runbook(alert, text) == []


def test_no_orphan_runbook() -> None:
    """A page nobody links to goes stale."""
    assert {each.stem for each in RUNBOOKS.glob("Rankwatch*.md")} == set(ALERT_NAMES)


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("rankwatch_stepp > 1", "rankwatch_stepp is not declared"),
        ('rankwatch_step{gpu="0"} > 1', "rankwatch_step has no label gpu"),
        ("rankwatch_steps_total > 1", "counter rankwatch_steps_total without rate or increase"),
        ("sum(rankwatch_steps_total) > 1", "counter rankwatch_steps_total without rate or increase"),
        ("rate(rankwatch_step[5m]) > 1", "rate of rankwatch_step, which is no counter"),
        ("sum by (run (rankwatch_step)", "does not parse"),
    ],
)
def test_wrong_expression(expression: str, message: str) -> None:
    """One fault, one violation that says it."""
    violations = check_expression("here", expression)
    assert len(violations) == 1
    assert message in violations[0].message


@pytest.mark.parametrize(
    ("annotation", "text", "message"),
    [
        ("description", "{{ $labels.gpu }}", "names label gpu, which the alert lacks"),
        ("description", "A rank is slow.", "description is not templated"),
        (
            "description",
            "{{ with printf `topk(1, nope{run=%q})` $labels.run | query }}",
            "nope is not declared",
        ),
        ("summary", "Rank {{ $labels.rank }} is slow.", "summary is templated"),
        ("summary", "a rank is slow", "summary is no sentence"),
        ("runbook_url", "https://runbooks.example.com/other", "does not end with the alert's name"),
        ("dashboard_url", "https://grafana.example.com", "names no dashboard"),
    ],
)
def test_wrong_annotation(annotation: str, text: str, message: str) -> None:
    """promtool accepts each of these."""
    rule = _straggler()
    violations = check_alert(replace(rule, annotations={**rule.annotations, annotation: text}))
    assert any(message in each.message for each in violations)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("## Impact", "## Background", "the headings are not"),
        ("```sh", "```text", "there is no command to copy"),
        ("rankwatch-run-debug", "some-board", "the dashboard rankwatch-run-debug is not named"),
        ("rank:rankwatch_step_local_seconds:residual", "rank:typo", "rank:typo is not declared"),
        ("sort_desc(", "sort_desc((", "does not parse"),
        ("# RankwatchStraggler", "# Straggler", "the first line is not"),
        ('"__name__":"rankwatch_recent', '"__name__":"rankwatch_old', "the output shows rankwatch_old"),
        ("| phase", "phase", "no table with at least 3 causes"),
        ("scalate", "tell", "nobody to escalate to is named"),
    ],
)
def test_wrong_runbook(old: str, new: str, message: str) -> None:
    """Commands in indented blocks of numbered steps are read too."""
    text = (RUNBOOKS / "RankwatchStraggler.md").read_text(encoding="utf-8").replace(old, new)
    assert any(message in each.message for each in check_runbook("RankwatchStraggler", text))


@pytest.mark.parametrize(
    ("expression", "labels"),
    [
        ("sum by (run) (rate(rankwatch_steps_total[5m]))", {"run"}),
        ("sum(rate(rankwatch_steps_total[5m]))", set()),
        ("absent(rankwatch_agent_info)", set()),
        ("sum by (run, rank) (rankwatch_step) / on (run) group_left (unit) sum by (run, unit) (up)",
         {"run", "rank", "unit"}),
        ("sum by (run) (rankwatch_step) * on (run) group_right () sum by (run, rank) (rankwatch_step)",
         {"run", "rank"}),
        ("sum by (run, rank) (rankwatch_step) / on (run) sum by (run) (rankwatch_step)", {"run"}),
        ("sum by (run, rank) (rankwatch_step) or sum by (run) (rankwatch_step)", {"run"}),
        ("time() - max by (run) (rankwatch_step) > 3", {"run"}),
        ('label_replace(sum by (run) (rankwatch_step), "cause", "x", "", "")', {"run", "cause"}),
    ],
)  # fmt: skip
def test_result_labels(expression: str, labels: set[str]) -> None:
    """Aggregation, matching and set operations each have their rule."""
    assert result_labels(parse(expression)) == labels
