"""Reading a PromQL expression: its selectors, and the labels its result carries."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from types import MappingProxyType
from typing import Any, NamedTuple

import promql_parser

from rankwatch.conventions.metrics import METRICS, Kind, Label
from rankwatch_alerts.config import RuleConfig
from rankwatch_alerts.rule_files import recording_rules
from rankwatch_alerts.rules import RecordingRule

_NAME = "__name__"
_EVERYWHERE = frozenset({str(Label.CLUSTER), str(Label.NODE), "job", "instance"})
_OF_ALERTS = frozenset({"alertname", "severity", "product", "owner", "contact", "instance", *map(str, Label)})
COUNTERS_OF_PROMETHEUS = tuple(
    f"prometheus_rule_{name}_total" for name in ("evaluation_failures", "group_iterations_missed")
)
"""On its own rules."""


@cache
def _declared() -> dict[str, frozenset[str]]:
    """Return each series that a rule may name, with all labels that it may carry."""
    buckets = {Kind.HISTOGRAM: frozenset({"le"})}
    return {
        **{
            name: frozenset(map(str, each.labels)) | _EVERYWHERE | buckets.get(each.kind, frozenset())
            for each in METRICS
            for name in (each.name, *each.series)
        },
        **{each.record: frozenset(each.labels) for each in recording_rules(RuleConfig())},
        **dict.fromkeys(
            (*COUNTERS_OF_PROMETHEUS, "prometheus_rule_group_interval_seconds"),
            frozenset({"rule_group", "job", "instance"}),
        ),
        **dict.fromkeys(
            ("up", "scrape_duration_seconds"), frozenset({"job", "instance", str(Label.CLUSTER)})
        ),
        "ALERTS": _OF_ALERTS | {"alertstate"},
        "ALERTS_FOR_STATE": _OF_ALERTS,
    }


_OWN: ContextVar[Mapping[str, frozenset[str]]] = ContextVar("_OWN", default=MappingProxyType({}))


@contextmanager
def declared(rules: Iterable[RecordingRule]) -> Iterator[None]:
    """Have the series that rules of one's own record known inside the block."""
    token = _OWN.set({each.record: frozenset(each.labels) for each in rules})
    try:
        yield
    finally:
        _OWN.reset(token)


class Selector(NamedTuple):
    """One selector, with the function it is the direct argument of (empty for none)."""

    metric: str
    matched: tuple[str, ...]
    function: str


def labels_of(metric: str) -> frozenset[str] | None:
    """Return all labels a metric or recorded series may carry; None for a name nobody declared."""
    return _OWN.get().get(metric, _declared().get(metric))


def parse(expression: str) -> Any:
    """Return the syntax tree; raises ValueError where the expression does not parse."""
    return promql_parser.parse(expression)


def selectors(node: Any, function: str = "") -> Iterator[Selector]:
    """Yield every selector of the tree, in order."""
    match node:
        case promql_parser.VectorSelector():
            yield _selector(node, function)
        case promql_parser.MatrixSelector():
            yield _selector(node.vector_selector, function)
        case promql_parser.Call():
            for argument in node.args:
                yield from selectors(argument, node.func.name)
        case promql_parser.BinaryExpr():
            yield from selectors(node.lhs)
            yield from selectors(node.rhs)
        case promql_parser.ParenExpr():
            yield from selectors(node.expr, function)
        case promql_parser.AggregateExpr() | promql_parser.UnaryExpr() | promql_parser.SubqueryExpr():
            yield from selectors(node.expr)


def _selector(node: Any, function: str) -> Selector:
    matched = tuple(each.name for each in node.matchers.matchers if each.name != _NAME)
    return Selector(metric=_metric(node), matched=matched, function=function)


def _metric(node: Any) -> str:
    """Return the name of a selector; of several names the first one, whose labels the others share."""
    named = next((each.value for each in node.matchers.matchers if each.name == _NAME), "")
    return str(node.name or named.partition("|")[0])


def result_labels(node: Any) -> frozenset[str]:
    """Return the labels the result may carry; those of an undeclared metric count as none."""
    match node:
        case promql_parser.VectorSelector():
            return labels_of(_metric(node)) or frozenset()
        case promql_parser.MatrixSelector():
            return result_labels(node.vector_selector)
        case promql_parser.ParenExpr() | promql_parser.UnaryExpr() | promql_parser.SubqueryExpr():
            return result_labels(node.expr)
        case promql_parser.AggregateExpr():
            return _of_aggregation(node)
        case promql_parser.Call():
            return _of_call(node)
        case promql_parser.BinaryExpr():
            return _of_operation(node)
    return frozenset()


def possible_labels(node: Any) -> frozenset[str]:
    """Return labels that some of the results carry: parts joined by `or` may name different things."""
    match node:
        case promql_parser.ParenExpr():
            return possible_labels(node.expr)
        case promql_parser.Call() if node.func.name == "label_replace":
            return possible_labels(node.args[0]) | {node.args[1].val}
        case promql_parser.BinaryExpr() if str(node.op) == "or":
            return possible_labels(node.lhs) | possible_labels(node.rhs)
        case promql_parser.BinaryExpr() if str(node.op) in ("and", "unless"):
            return possible_labels(node.lhs)
    return result_labels(node)


def _of_aggregation(node: Any) -> frozenset[str]:
    if str(node.op) in ("topk", "bottomk"):
        return result_labels(node.expr)
    if node.modifier is None:
        return frozenset()
    if node.modifier.type == promql_parser.AggModifierType.By:
        counted = {node.param.val} if str(node.op) == "count_values" else set()
        return frozenset(node.modifier.labels) | counted
    return result_labels(node.expr) - frozenset(node.modifier.labels)


def _of_call(node: Any) -> frozenset[str]:
    if node.func.name in ("absent", "absent_over_time", "time", "vector", "scalar"):
        return frozenset()
    labels = frozenset[str]().union(*(result_labels(each) for each in node.args))
    if node.func.name == "label_replace":
        return labels | {node.args[1].val}
    if node.func.name == "histogram_quantile":
        return labels - {"le"}
    return labels


def _of_operation(node: Any) -> frozenset[str]:
    left, right = result_labels(node.lhs), result_labels(node.rhs)
    if _is_scalar(node.lhs):
        return right
    if _is_scalar(node.rhs) or str(node.op) in ("and", "unless"):
        return left
    if str(node.op) == "or":
        return left & right
    return _of_matching(node.modifier, left, right)


def _of_matching(modifier: Any, left: frozenset[str], right: frozenset[str]) -> frozenset[str]:
    if modifier is None:
        return left & right
    extra = frozenset(modifier.group_labels or ())
    if modifier.card == promql_parser.VectorMatchCardinality.ManyToOne:
        return left | extra
    if modifier.card == promql_parser.VectorMatchCardinality.OneToMany:
        return right | extra
    if modifier.matching is None:
        return left & right
    named = frozenset(modifier.matching.labels)
    include = modifier.matching.type == promql_parser.LabelModifierType.Include
    return named if include else left - named


def _is_scalar(node: Any) -> bool:
    match node:
        case promql_parser.NumberLiteral():
            return True
        case promql_parser.Call():
            return node.func.name in ("time", "scalar")
        case promql_parser.ParenExpr() | promql_parser.UnaryExpr():
            return _is_scalar(node.expr)
        case promql_parser.BinaryExpr():
            return _is_scalar(node.lhs) and _is_scalar(node.rhs)
    return False
