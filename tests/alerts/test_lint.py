"""The shipped rules pass the lints, and each lint finds its mistake."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rankwatch.conventions.metrics import METRICS
from rankwatch_alerts import ALERT_NAMES, RuleConfig, alert_rules, recording_rules
from rankwatch_alerts.checks import check_alert, check_expression, check_group, violations
from rankwatch_alerts.promql import parse, result_labels
from rankwatch_alerts.rules import AlertRule, RecordingRule, RuleGroup, Severity

LONGEST_FIRST_ACT = 60
"""Letters that a cell of the on-call board shows."""
ALERTS = alert_rules(RuleConfig())
RECORDED = recording_rules(RuleConfig())
CLAIMED = {"replica", "prometheus", "prometheus_replica", "job", "instance", "tenant_id", "le", "quantile"}
"""Labels that scrapes, external labels, tenants, histograms and summaries set by themselves."""


def _straggler() -> AlertRule:
    return next(each for each in ALERTS if each.alert == "RankwatchRunSlow")


def test_records_are_unique() -> None:
    """Two producers of one name would be summed silently."""
    assert len({rule.record for rule in RECORDED}) == len(RECORDED)


def test_claimed_labels() -> None:
    """Monitoring systems set or drop these themselves. Records of `instance:` keep that of the scrape."""
    assert {each.name: found for each in METRICS if (found := CLAIMED.intersection(each.labels))} == {}
    for rule in RECORDED:
        own = {"instance"} if rule.record.startswith("instance:") else set()
        assert not CLAIMED.intersection(rule.labels) - own, rule.record


def test_alert_names() -> None:
    """An alert that is not in the registry has no runbook."""
    assert set(ALERT_NAMES) == {rule.alert for rule in ALERTS}


def test_first_acts() -> None:
    """Each alert that somebody gets says what to do first, short enough for a cell of a table."""
    for rule in ALERTS:
        assert rule.first_acts or rule.severity is Severity.INFO, rule.alert
        for act in rule.first_acts.values():
            assert len(act) <= LONGEST_FIRST_ACT
            assert "{{" not in act, "boards know no labels there"
            assert act[1:] in rule.annotations["description"]


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
    ],
)
def test_wrong_annotation(annotation: str, text: str, message: str) -> None:
    """promtool accepts each of these."""
    rule = _straggler()
    violations = check_alert(replace(rule, annotations={**rule.annotations, annotation: text}))
    assert any(message in each.message for each in violations)


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


def test_shipped_rules() -> None:
    """Expressions, annotations with their queries, labels of records, sizes of groups, and what another ruler
    would not take or never fire."""
    assert violations(RuleConfig()) == []


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("count_over_time(run:rankwatch_step:max[7m]) > 24", "counts samples"),
        ('last_over_time(ALERTS{alertname="RankwatchRunSlow"}[15m])', "reads ALERTS"),
        ("rankwatch_step * on (run) group_left () rankwatch_run_info", "by run without cluster"),
        ("sum by (node) (rankwatch_step)", "by node without cluster"),
        (f"rankwatch_step > {'1' * 1500}", "letters are too many to read"),
    ],
)
def test_wrong_rule_of_a_group(expression: str, message: str) -> None:
    """Each of these was silent or false on a stack that users run."""
    rule = RecordingRule(record="run:rankwatch_step:max", expression=expression, labels=(), help="")
    group = RuleGroup(name="rankwatch-x", interval_seconds=15, rules=(rule,))
    assert any(message in each.message for each in check_group(group))


def test_size_of_the_whole() -> None:
    """A pager that people can know by heart: names, those of them that can page, and rules."""
    rules = alert_rules(RuleConfig())
    assert len({each.alert for each in rules}) <= 32
    assert len({each.alert for each in rules if each.severity in (None, Severity.CRITICAL)}) <= 10
    assert len(rules) <= 60


def test_too_many_rules() -> None:
    """Mimir takes no group of more than twenty."""
    rule = RecordingRule(record="run:rankwatch_step:max", expression="vector(1)", labels=(), help="")
    group = RuleGroup(name="rankwatch-x", interval_seconds=15, rules=(rule,) * 21)
    assert [each.message for each in check_group(group)] == ["21 rules are more than 20"]
