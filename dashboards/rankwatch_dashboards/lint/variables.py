"""Variables are declared, reload with the time range, and are matched in a way that fits them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from rankwatch_alerts.lint import Finding, check_expression
from rankwatch_alerts.lint.expressions import parse, result_labels
from rankwatch_dashboards.lint.targets import VARIABLE, filled_in, targets

_ON_TIME_RANGE_CHANGED = 2
_LABEL_VALUES = re.compile(r"label_values\((.+), (\w+)\)")


def variables(dashboard: Mapping[str, Any]) -> Iterator[Finding]:
    """Findings about templating variables and their use."""
    declared = {each["name"]: each for each in dashboard["templating"]["list"]}
    if "datasource" not in declared:
        yield Finding("variables", dashboard["uid"], "no variable named datasource")
    for name, variable in declared.items():
        yield from _declaration(name, variable)
    for variable in declared.values():
        if variable["type"] == "query":
            yield from _choices(variable)
    for each in targets(dashboard):
        used = {found[1] or found[2] for found in VARIABLE.finditer(each.expression)}
        for name in sorted(used - declared.keys()):
            if not name.startswith("__"):
                yield Finding("variables", each.where, f"${name} is not declared")
        for label, operator, name in re.findall(r'(\w+)\s*(=~|!~|!=|=)\s*"\$(\w+)"', each.expression):
            if operator in ("=", "!=") and declared.get(name, {}).get("includeAll"):
                yield Finding(
                    "variables", each.where, f"{label}{operator}${name} cannot match several values"
                )


def _choices(variable: Mapping[str, Any]) -> Iterator[Finding]:
    """Values come from label_values(selector, label) of a metric that has the label."""
    name, found = variable["name"], _LABEL_VALUES.fullmatch(variable["query"])
    if not found:
        yield Finding("variables", name, "the query is not label_values(selector, label)")
        return
    selector, label = filled_in(found[1]), found[2]
    yield from check_expression(name, selector)
    if label not in result_labels(parse(selector)):
        yield Finding("variables", name, f"{selector} has no label {label}")


def _declaration(name: str, variable: Mapping[str, Any]) -> Iterator[Finding]:
    if not variable.get("label"):
        yield Finding("variables", name, "no label")
    if variable["type"] == "query" and variable.get("refresh") != _ON_TIME_RANGE_CHANGED:
        yield Finding("variables", name, "does not reload when the time range changes")
    if variable.get("includeAll") and variable.get("allValue") not in (".+", ".*"):
        yield Finding("variables", name, "allValue is neither .+ nor .*: All would list every value")
