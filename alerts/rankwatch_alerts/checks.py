"""Checks of rules: mistakes that Prometheus and promtool accept, and what other rulers refuse.

Each check yields violations. Needs promql-parser.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from rankwatch.conventions.metrics import METRICS, OF_RANKS_THAT_HAD_THEM, OF_RUNNING_RANKS, Kind
from rankwatch_alerts.config import RuleConfig
from rankwatch_alerts.promql import (
    COUNTERS_OF_PROMETHEUS,
    declared,
    labels_of,
    parse,
    possible_labels,
    result_labels,
    selectors,
)
from rankwatch_alerts.rule_files import (
    RuleFileError,
    alert_groups,
    alert_rules,
    recording_groups,
    recording_rules,
)
from rankwatch_alerts.rules import Alert, AlertRule, RecordingRule, RuleGroup

_EVER_MOVED = frozenset({"rankwatch_flight_recorder_pulls_total"})
"""Counters of which the rule of unresponsive ranks asks whether they ever moved, however long ago."""
_EVER_CARRIED = frozenset({"rankwatch_rdma_receive_bytes_total"})
"""The same for the rule of RDMA ports that are down, which must have carried data."""
UNRESPONSIVE = "rank:rankwatch_stall_unresponsive:bool"
_PRESENCE_OF: Mapping[str, frozenset[str]] = {
    Alert.TELEMETRY_ABSENT: frozenset((*OF_RUNNING_RANKS, *OF_RANKS_THAT_HAD_THEM)),
    Alert.LINK_DOWN: _EVER_CARRIED,
    # Also what an agent had counted before this Prometheus saw it, of which no increase tells.
    Alert.TELEMETRY_INCOMPLETE: frozenset({"rankwatch_blackbox_faults_total"}),
    # The first save or load of a run may fail before the first scrape.
    Alert.CHECKPOINT_AT_RISK: frozenset(
        {"rankwatch_checkpoint_operations_total", "rankwatch_checkpoint_stage_failures_total"}
    ),
}
"""Counters of which the rule of an alert asks whether they exist."""
_RATES = frozenset({"rate", "irate", "increase", "resets"})
_PRESENCE = frozenset({"present_over_time", "absent", "absent_over_time"})
_COUNTERS = frozenset(
    name for each in METRICS if each.kind in (Kind.COUNTER, Kind.HISTOGRAM) for name in each.series
) | frozenset(COUNTERS_OF_PROMETHEUS)
_LABEL_IN_TEMPLATE = re.compile(r"\$labels\.(\w+)")
_QUERY_IN_TEMPLATE = re.compile(r"printf `([^`]*)`")


class Violation(NamedTuple):
    """One mistake: which check found it, where, and what is wrong."""

    check: str
    where: str
    message: str


LONGEST_EXPRESSION = 1500
"""Letters. Nobody reads a longer one at night: record a part of it."""
MOST_RULES = 20
"""Of a group: the default limit of Mimir (`ruler_max_rules_per_rule_group`)."""
_LISTED = re.compile(r"\b(?:on|by) \(([^)]*)\)(?! label_replace\(vector\(1\))")
"""Labels of joins and sums, but for those with a reason that the settings name."""
_COUNTED = re.compile(r"count_over_time\([^()]*\[[^]]*\]\) [<>=]")
_COUNTS_ITS_SAMPLES = frozenset(
    {"class:rankwatch_goodput_burn_fast:rate", "class:rankwatch_goodput_burn_slow:rate"}
)
"""They want half of the samples of a window, which their own group writes; no edge of it decides."""
_OF_A_SERVER = frozenset({"rule_group", "job", "instance"})
"""Labels of what belongs to a Prometheus, and to no cluster."""


def violations(config: RuleConfig) -> list[Violation]:
    """Return all that is wrong with the rules as this configuration renders them. Raises RuleFileError."""
    groups = (*recording_groups(config), *alert_groups(config))
    with declared(recording_rules(config)):
        return [
            *(each for rule in recording_rules(config) for each in check_record(rule)),
            *(each for rule in alert_rules(config) for each in check_alert(rule)),
            *(each for group in groups for each in check_group(group)),
        ]


def refuse_wrong(config: RuleConfig) -> None:
    """Raise RuleFileError with the first of the violations, and how many there are."""
    if found := violations(config):
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        raise RuleFileError(f"{found[0].where}: {found[0].message}{more}")


def check_group(group: RuleGroup) -> Iterator[Violation]:
    """Yield what keeps a group from being read by people, or evaluated by another ruler."""
    if len(group.rules) > MOST_RULES:
        yield Violation("group-size", group.name, f"{len(group.rules)} rules are more than {MOST_RULES}")
    for rule in group.rules:
        where = rule.record if isinstance(rule, RecordingRule) else f"{rule.alert} {rule.reason}".rstrip()
        if len(rule.expression) > LONGEST_EXPRESSION:
            yield Violation("length", where, f"{len(rule.expression)} letters are too many to read")
        if "ALERTS" in rule.expression:
            yield Violation("alerts", where, "reads ALERTS, which alerts of Grafana do not write")
        if _COUNTED.search(rule.expression) and where not in _COUNTS_ITS_SAMPLES:
            yield Violation("samples", where, "counts samples, of which a slower ruler has fewer")
        for labels in _LISTED.findall(rule.expression):
            named = {each.strip() for each in labels.split(",")} - {""}
            if named and "cluster" not in named and not named <= _OF_A_SERVER:
                yield Violation("cluster", where, f"joins or sums by {labels} without cluster")


def check_record(rule: RecordingRule) -> list[Violation]:
    """Return the violations in one recording rule."""
    presence_of = _EVER_MOVED if rule.record == UNRESPONSIVE else frozenset[str]()
    found = check_expression(rule.record, rule.expression, presence_of)
    if not found and (given := result_labels(parse(rule.expression))) != set(rule.labels):
        message = f"its labels are {', '.join(sorted(given))}, and it declares {', '.join(rule.labels)}"
        found.append(Violation("labels", rule.record, message))
    return found


def check_alert(rule: AlertRule) -> list[Violation]:
    """Return the violations in one alerting rule: expression, annotations and the queries inside them."""
    return [
        *check_expression(rule.alert, rule.expression, _PRESENCE_OF.get(rule.alert, frozenset())),
        *_annotation_labels(rule),
        *_annotation_text(rule),
        *_template_queries(rule),
    ]


def check_expression(where: str, text: str, presence_of: frozenset[str] = frozenset()) -> list[Violation]:
    """Return the violations in one expression; of counters in `presence_of` only the existence matters."""
    try:
        tree = parse(text)
    except ValueError as error:
        return [Violation("parses", where, f"does not parse: {error}")]
    return [*_known_metrics(where, tree), *_counter_use(where, tree, presence_of)]


def _known_metrics(where: str, expression: Any) -> Iterator[Violation]:
    """Yield undeclared names: Prometheus takes them, the alert stays silent and the panel empty, for ever."""
    for each in selectors(expression):
        labels = labels_of(each.metric)
        if labels is None:
            yield Violation("known-metrics", where, f"{each.metric or 'a nameless selector'} is not declared")
            continue
        for label in each.matched:
            if label not in labels:
                yield Violation("known-metrics", where, f"{each.metric} has no label {label}")


def _counter_use(where: str, expression: Any, presence_of: frozenset[str]) -> Iterator[Violation]:
    """Yield raw counters, which tell when a process started, and rated gauges, whose falls are restarts."""
    for each in selectors(expression):
        rated = each.function in _RATES
        if each.metric in _COUNTERS and not rated:
            if each.function not in _PRESENCE and each.metric not in presence_of:
                yield Violation("counter-use", where, f"counter {each.metric} without rate or increase")
        elif rated and each.metric not in _COUNTERS:
            yield Violation("counter-use", where, f"{each.function} of {each.metric}, which is no counter")


def _annotation_labels(rule: AlertRule) -> Iterator[Violation]:
    """Yield labels in templates that the expression lacks: they render as nothing."""
    labels = possible_labels if len(rule.first_acts) > 1 else result_labels
    present = labels(parse(rule.expression)) | set(rule.labels)
    for annotation, text in rule.annotations.items():
        for label in sorted(set(_LABEL_IN_TEMPLATE.findall(text)) - present):
            message = f"{annotation} names label {label}, which the alert lacks"
            yield Violation("annotation-labels", rule.alert, message)


def _annotation_text(rule: AlertRule) -> Iterator[Violation]:
    """Yield summaries, descriptions and links that help nobody."""
    summary = rule.annotations.get("summary", "")
    if "{{" in summary:
        yield Violation("annotation-text", rule.alert, "summary is templated; it must not change")
    if not summary[:1].isupper() or not summary.endswith("."):
        yield Violation(
            "annotation-text", rule.alert, "summary is no sentence: capital first, full stop last"
        )
    names = result_labels(parse(rule.expression))
    if names and "{{" not in rule.annotations.get("description", ""):
        yield Violation("annotation-text", rule.alert, "description is not templated; it names no one")


def _template_queries(rule: AlertRule) -> Iterator[Violation]:
    """Check the queries of annotations like expressions."""
    for annotation, text in rule.annotations.items():
        for query in template_queries(text):
            presence_of = _PRESENCE_OF.get(rule.alert, frozenset())
            yield from check_expression(f"{rule.alert} {annotation}", query, presence_of)


def template_queries(text: str) -> Iterator[str]:
    """Yield the queries of an annotation or a label, with x as the value of every label."""
    for query in _QUERY_IN_TEMPLATE.findall(text):
        yield query.replace("%q", '"x"')
