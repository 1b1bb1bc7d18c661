"""Lints of runbooks: what a page must have so that somebody who was just woken can work with it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import promql_parser

from rankwatch_alerts import RuleConfig, alert_rules
from rankwatch_alerts.checks import Violation, check_expression
from rankwatch_alerts.promql import labels_of, parse, selectors
from support.alerts.reasons import ALERTS

HEADINGS = ("Do now", "What it means", "Causes by evidence", "Verify")
DO_NOW_LINES = 25
LONGEST, LONGEST_MEDIAN = 220, 120
"""Lines of a page."""

_CHECK = "runbook-page"
_PLACED = frozenset({"node", "rank", "gpu", "device", "alertname"})
"""Labels that leave few series, by a matcher."""
_MANY = frozenset({"instance", "rank", "gpu"})
"""Labels that leave many series, in a list after `by`."""
_DASHBOARDS = [
    (rule.alert, rule.annotations["dashboard_url"].rpartition("/")[2].partition("?")[0])
    for rule in alert_rules(RuleConfig(dashboard_base_url="https://grafana.test"))
]
"""Alert and uid of a dashboard that it links to."""
_HEADING = re.compile(r"^## (.+)$", re.MULTILINE)
_SECTION = re.compile(r"^### (.+)$", re.MULTILINE)
_NUMBERED = re.compile(r"^\d+\. ", re.MULTILINE)
_BLOCK = re.compile(r"^ *```(\w+)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
_ASKED = re.compile(r'\bask "([^"]*)"')
_ANCHOR = re.compile(r"\]\((Rankwatch\w+\.md)?#([\w-]+)\)")
_LEVEL_OF_FEW = re.compile(r"(?:run|class|run_cause|run_state|run_reason):")


def check_runbook(alert: str, text: str) -> list[Violation]:
    """Violations in one page: its form, its sections, and queries that work and ask for little."""
    messages = (*_form(alert, text), *_sections(alert, text))
    form = [Violation(_CHECK, alert, message) for message in messages]
    return form + [each for query in runbook_queries(text) for each in _query(alert, query)]


def commands(text: str) -> str:
    """All shell blocks of a page."""
    return "\n".join(body for language, body in _BLOCK.findall(text) if language == "sh")


def runbook_queries(text: str, variables: Mapping[str, str] = {}) -> Iterator[str]:
    """What `ask` asks for; a variable of the reader without a value counts as a plain word."""
    for query in _ASKED.findall(commands(text)):
        yield re.sub(r"\$(\w+)", lambda found: variables.get(found[1], "x"), query)


def anchors(text: str) -> Iterator[tuple[str, str]]:
    """Page (empty for this one) and section of each link to a section of a runbook."""
    yield from _ANCHOR.findall(text)


def _form(alert: str, text: str) -> Iterator[str]:
    if not text.startswith(f"# {alert}\n"):
        yield f"the first line is not '# {alert}'"
    if tuple(_HEADING.findall(text)) != HEADINGS:
        yield f"the headings are not {', '.join(HEADINGS)}"
    do_now = text.partition("## What it means")[0]
    if len(_NUMBERED.findall(do_now)) != 3:
        yield "Do now has not three numbered lines"
    if len(do_now.partition("\nDashboard:")[0].rstrip().splitlines()) > DO_NOW_LINES:
        yield f"Do now does not end within {DO_NOW_LINES} lines"
    if "](README.md#before-you-begin)" not in do_now:
        yield "it does not say what its commands need"
    linked = sorted({uid for name, uid in _DASHBOARDS if name == alert})
    if linked and not any(f"`{uid}`" in do_now for uid in linked):
        yield f"no dashboard is named: {', '.join(linked)}"
    if len(text.splitlines()) > LONGEST:
        yield f"it has more than {LONGEST} lines"
    if "scalate" not in text.partition("## Verify")[2]:
        yield "nobody to escalate to is named"


def _sections(alert: str, text: str) -> Iterator[str]:
    causes = text.partition("## Causes by evidence")[2].partition("\n## ")[0]
    named = _SECTION.findall(causes)
    for reason in ALERTS[alert]:
        if named.count(reason) != 1:
            yield f"there is not one section {reason}"
    for name, body in zip(named, _SECTION.split(causes)[2::2], strict=True):
        if "\n| " not in body and "```sh" not in body:
            yield f"section {name} has neither evidence nor a command"
    if not named and "\n| " not in causes:
        yield "there is no table of causes"


def _query(alert: str, query: str) -> Iterator[Violation]:
    wrong = check_expression(alert, query)
    yield from wrong
    if wrong:
        return
    tree = parse(query)
    for each in selectors(tree):
        if "cluster" not in each.matched and "cluster" in (labels_of(each.metric) or ()):
            yield Violation(_CHECK, alert, f"{each.metric} is asked of all clusters: {query}")
    if not _is_bounded(tree):
        yield Violation(_CHECK, alert, f"it may answer with a series for each rank: {query}")


def _is_bounded(node: Any) -> bool:
    """True if the answer is short however large the run is."""
    match node:
        case promql_parser.AggregateExpr():
            by = set(node.modifier.labels) if node.modifier else set()
            return str(node.op) in ("topk", "bottomk") or not by & _MANY
        case promql_parser.BinaryExpr():
            return _is_bounded(node.lhs) and _is_bounded(node.rhs)
        case promql_parser.ParenExpr() | promql_parser.UnaryExpr() | promql_parser.SubqueryExpr():
            return _is_bounded(node.expr)
        case promql_parser.Call():
            return all(map(_is_bounded, node.args))
        case promql_parser.MatrixSelector():
            return _is_bounded(node.vector_selector)
        case promql_parser.VectorSelector():
            placed = {each.name for each in node.matchers.matchers} & _PLACED
            return bool(placed) or bool(_LEVEL_OF_FEW.match(node.name or ""))
        case _:
            return True
