"""What an evaluation of the rules reads for each rank, counted from the rules themselves.

PromQL refuses many-to-many joins, so the work of a rule is in proportion to the series that it selects and
to the samples of its windows. These are held here; `tests/bench/rules_scale.py` measures seconds.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from math import prod
from typing import Any, NamedTuple

import promql_parser
import pytest

from rankwatch.conventions.metrics import Label
from rankwatch.conventions.states import SlowPhase
from rankwatch_alerts import RuleConfig, alert_groups, recording_groups
from rankwatch_alerts.promql import labels_of, parse
from rankwatch_alerts.rules import AlertRule, RecordingRule

CONFIG = RuleConfig()
VALUES = {
    Label.PHASE: 8, Label.UNIT: 2, Label.NAME: 3, Label.OPERATION: 3, Label.OUTCOME: 2, Label.GROUP: 3,
    Label.SOURCE: 2, Label.TERM: 6,
}  # fmt: skip
"""Values of a label on one rank, about those of docs/cardinality.md; of any other label a rank has one."""
OF_LEVEL = {"rank_phase": {Label.PHASE: len(SlowPhase)}, "rank_reason": {Label.REASON: 2}}
"""The same in recorded series of these levels."""
MOST_SERIES, MOST_SAMPLES = 355, 1_750
"""Of one rank, in one evaluation of all rules."""


class Read(NamedTuple):
    """What one selector reads for one rank."""

    metric: str
    series: int
    samples: float
    far_back: bool
    """Over more than the window of steps."""


def _reads(node: Any) -> Iterator[Read]:
    match node:
        case promql_parser.VectorSelector():
            yield from _read(node, 0.0)
        case promql_parser.MatrixSelector():
            yield from _read(node.vector_selector, node.range.total_seconds())
        case promql_parser.SubqueryExpr():
            times = node.range / node.step
            yield from (
                each._replace(samples=each.samples * times, far_back=True) for each in _reads(node.expr)
            )
        case promql_parser.Call():
            for argument in node.args:
                yield from _reads(argument)
        case promql_parser.BinaryExpr():
            yield from _reads(node.lhs)
            yield from _reads(node.rhs)
        case promql_parser.ParenExpr() | promql_parser.UnaryExpr() | promql_parser.AggregateExpr():
            yield from _reads(node.expr)
        case promql_parser.NumberLiteral() | promql_parser.StringLiteral():
            pass
        case _:
            raise AssertionError(f"no cost is known of {type(node).__name__}")


def _read(selector: Any, window_seconds: float) -> Iterator[Read]:
    labels = labels_of(selector.name or "") or frozenset()
    level, _, recorded = str(selector.name).partition(":")
    of_ranks = level.startswith("rank") if recorded else selector.name != "ALERTS"
    if Label.RANK not in labels or not of_ranks:  # of runs and alerts only one rank has a series
        return
    matched = {each.name: each for each in selector.matchers.matchers}
    values = VALUES | OF_LEVEL.get(level, {})
    series = prod(_values(values[Label(each)], matched.get(each)) for each in labels & set(map(str, values)))
    scrapes = max(1.0, window_seconds / CONFIG.scrape_interval_seconds)
    yield Read(selector.name, series, series * scrapes, window_seconds > CONFIG.step_window_seconds)


def _values(count: int, matcher: Any) -> int:
    """How many series of a rank differ in a label, where those are matched that the matcher lists."""
    if matcher is None or str(matcher.op) not in _LISTING:
        return count
    return min(count, len(re.split(r"\|", matcher.value)))


_MOST_FAR_BACK = 3
"""The operations of checkpoints that can fail: save, verify, and upload, which few runs have."""
_LISTING = ("=", "=~", "MatchOp.Equal", "MatchOp.Re")


def _rules() -> Iterator[tuple[str, list[Read]]]:
    for group in (*recording_groups(CONFIG), *alert_groups(CONFIG)):
        for rule in group.rules:
            name = rule.record if isinstance(rule, RecordingRule) else rule.alert
            assert isinstance(rule, RecordingRule | AlertRule)
            yield name, list(_reads(parse(rule.expression)))


def _expensive(name: str, reads: list[Read]) -> list[str]:
    """Why a rule is expensive: a long window over several series of a rank, or the same window twice."""
    far = [each for each in reads if each.far_back]
    found = [
        f"{name} looks back on {each.series} series of {each.metric} of a rank"
        for each in far
        if each.series > _MOST_FAR_BACK
    ]
    twice = sorted({each.metric for each in far if [other.metric for other in far].count(each.metric) > 1})
    return found + [f"{name} looks back on {each} more than once" for each in twice]


def test_long_windows() -> None:
    """A rule reads windows longer than that of steps for at most three series of a rank, and once."""
    assert [reason for name, reads in _rules() for reason in _expensive(name, reads)] == []


def test_cost_of_a_rank() -> None:
    """A rule that reads every phase or group once more is seen here before a large run feels it."""
    reads = [each for _, found in _rules() for each in found]
    assert sum(each.series for each in reads) <= MOST_SERIES
    assert sum(each.samples for each in reads) <= MOST_SAMPLES


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        (
            "count by (run) (present_over_time(rankwatch_step_variation_total[30m]))",
            "it looks back on 6 series of rankwatch_step_variation_total of a rank",
        ),
        (
            "max by (run) (avg_over_time(rank:rankwatch_step_local_seconds:residual[10m]))"
            " > avg by (run) (avg_over_time(rank:rankwatch_step_local_seconds:residual[10m]))",
            "it looks back on rank:rankwatch_step_local_seconds:residual more than once",
        ),
    ],
)
def test_expensive_rule(expression: str, reason: str) -> None:
    """Both shapes were in the rules once."""
    assert _expensive("it", list(_reads(parse(expression)))) == [reason]


def test_cost_of_a_subquery() -> None:
    """It reads its expression anew for each of its steps."""
    (read,) = _reads(parse("max_over_time((rankwatch_progress_timestamp_seconds > 0)[1h:10m])"))
    assert (read.samples, read.far_back) == (6.0, True)


def test_cost_of_matched_series() -> None:
    """Two phases of eight, over ten scrapes."""
    window = int(10 * CONFIG.scrape_interval_seconds)
    expression = f'rate(rankwatch_step_phase_seconds_total{{phase=~"forward|backward"}}[{window}s])'
    assert list(_reads(parse(expression))) == [
        Read("rankwatch_step_phase_seconds_total", series=2, samples=20.0, far_back=False)
    ]
