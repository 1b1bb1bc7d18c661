"""What users change in rules without editing them: owners, labels, severities, waits, and what is off."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from rankwatch.conventions.metrics import Label
from rankwatch.settings import FieldError, expect
from rankwatch_alerts.label_names import RESERVED
from rankwatch_alerts.rules import Severity, reason_of

FIXED_LABELS = frozenset({"product", *RESERVED, *map(str, Label)})
"""Labels by which rules, routes and inhibitions work."""


class _Option(NamedTuple):
    expected: str
    valid: Callable[[object], bool]


@dataclass(frozen=True, kw_only=True)
class Adjustments:
    """Settings that change rules by name: `RankwatchRunSlow`, or `RankwatchRunSlow/jitter` for one reason."""

    owners: Mapping[str, str] = field(default_factory=dict)
    """Who acts on an alert, by its name, where it is not `platform` or `training` as shipped. Each owner has
    the receivers `page-OWNER` and `ticket-OWNER`, which fall back on `page` and `ticket`."""
    extra_labels: Mapping[str, str] = field(default_factory=dict)
    """Further labels of every alert: `{team = "ml-platform"}` where routes of yours ask for them. None that
    rules, routes or inhibitions use."""
    disabled_alerts: tuple[str, ...] = ()
    """Alerts that are left out, by name, or by name and reason: `["RankwatchGpusWasted/mfu"]`."""
    overrides: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Changes of an alert, by name, or by name and reason, which wins: `severity`, `for_seconds`, `labels`,
    such as `{RankwatchRunLate = {severity = "critical", for_seconds = 600, labels = {tier = "2"}}}`. A
    severity here wins over the one that the run's class decides."""

    def check_adjustments(self) -> None:
        """Raise FieldError for an option that does not exist, or a label that must stay."""
        known = all(map(_OWNER.fullmatch, self.owners.values()))
        expect(self, "owners", known, "names of alerts, each with an owner of small letters, digits and _")
        self._check_labels("extra_labels", self.extra_labels)
        for name, changes in self.overrides.items():
            for option, value in changes.items():
                expected, valid = _OPTIONS.get(
                    option, _Option(f"some of {', '.join(_OPTIONS)}", lambda _: False)
                )
                expect(self, "overrides", valid(value), f"for {name} {expected}")
            self._check_labels("overrides", changes.get("labels", {}), f"for {name} ")
            kept = name != "RankwatchWatchdog" or "severity" not in changes
            expect(
                self,
                "overrides",
                kept,
                "no severity of RankwatchWatchdog, which must neither page nor be a ticket",
            )

    def _check_labels(self, field: str, given: Mapping[str, Any], of: str = "") -> None:
        """Raise FieldError for a label that Prometheus refuses, or that an alert has."""
        for name, text in given.items():
            wrong = ""
            if not _LABEL.fullmatch(name):
                wrong = f"names of letters, digits and _ that do not begin with __, unlike {name!r}"
            elif name in {*FIXED_LABELS, *getattr(self, "label_names", {}).values()}:
                wrong = f"no label {name}, by which rules, routes or inhibitions work"
            elif not (isinstance(text, str) and text and is_plain(text)):
                wrong = f"printable text without template braces for the label {name}"
            if wrong:
                raise FieldError(field, getattr(self, field), of + wrong)


def adjusted(rules: Iterable[Mapping[str, Any]], config: Adjustments) -> Iterator[dict[str, Any]]:
    """Yield the alerting rules of a group, as the settings want them; those that are off are left out, and
    those that differ in nothing but their reasons any more are one."""
    found: dict[object, dict[str, Any]] = {}
    for rule in rules:
        if rule["alert"] not in config.disabled_alerts:
            for each in (_adjusted(part, config) for part in _parts(rule, config)):
                by_reason = isinstance(each["annotations"].get("description"), Mapping)
                labels = sorted(each["labels"].items())
                key = (each["alert"], each.get("for"), *labels) if by_reason else len(found)
                found[key] = _together(found[key], each) if key in found else each
    yield from found.values()


def _together(rule: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Return one rule for both: Prometheus takes two with equal labels for one that was written twice."""
    described = {**rule["annotations"]["description"], **other["annotations"]["description"]}
    return {
        **rule,
        "expr": f"{rule['expr'].strip()}\nor\n{other['expr'].strip()}\n",
        "annotations": {**rule["annotations"], **other["annotations"], "description": described},
    }


def _parts(rule: Mapping[str, Any], config: Adjustments) -> Iterator[Mapping[str, Any]]:
    """Yield the rule without reasons that are off. Where its series have the reason, each that has an
    override is a rule of its own."""
    reasons = reasons_of(rule)
    off = [each for each in reasons if f"{rule['alert']}/{each}" in config.disabled_alerts]
    if _static(rule) or not reasons:
        if not off:
            yield rule
        return
    own = [each for each in reasons if f"{rule['alert']}/{each}" in config.overrides and each not in off]
    label = rule.get("by", "reason")
    yield _joined(rule, "unless", label, *off, *own)
    for each in own:
        yield {**_joined(rule, "and", label, each), "labels": {**rule["labels"], label: each}}


def _joined(rule: Mapping[str, Any], how: str, label: str, *reasons: str) -> Mapping[str, Any]:
    """Return the rule with only these reasons in its expression (`and`), or without them (`unless`)."""
    if not reasons:
        return rule
    lines = "".join(f"  {line}\n" for line in rule["expr"].strip().splitlines())
    joins = "".join(
        f'\n{how} on ({label}) label_replace(vector(1), "{label}", "{each}", "", "")' for each in reasons
    )
    return {**rule, "expr": f"(\n{lines}){joins}\n"}


def links(alert: str, dashboard: str = "", *, runbooks: str = "", dashboards: str = "") -> dict[str, str]:
    """Return annotations that link to the runbook and a dashboard (its uid and variables), below base URLs.

    None where a base URL is empty: a link that leads nowhere costs time at night.
    """
    found = {
        "runbook_url": runbooks and f"{runbooks.rstrip('/')}/{alert}",
        "dashboard_url": dashboards and f"{dashboards.rstrip('/')}/d/{dashboard}",
    }
    return {name: url for name, url in found.items() if url}


def refuse_unknown(rules: Iterable[Mapping[str, Any]], config: Adjustments) -> None:
    """Raise FieldError for a name in the settings that no rule has."""
    alerts = reasons_by_alert(rules)
    named = {*alerts, *(f"{alert}/{each}" for alert, reasons in alerts.items() for each in reasons)}
    for setting, known, what in (
        ("owners", set(alerts), "names of alerts"),
        ("disabled_alerts", named, _NAMED),
        ("overrides", named, _NAMED),
    ):
        unknown = next((each for each in getattr(config, setting) if each not in known), "")
        expect(config, setting, not unknown, f"{what}: no rule has the name and reason {unknown}")


def reasons_by_alert(rules: Iterable[Mapping[str, Any]]) -> dict[str, tuple[str, ...]]:
    """Return the reasons of each alert: values of its label `reason`, or `cause` of a slow run."""
    found: dict[str, dict[str, None]] = {}
    for rule in rules:
        found.setdefault(rule["alert"], {}).update(dict.fromkeys(reasons_of(rule)))
    return {alert: tuple(reasons) for alert, reasons in found.items()}


def _static(rule: Mapping[str, Any]) -> str:
    """Return the reason that a label of the rule gives all its series; empty if they have it themselves."""
    return reason_of(rule.get("labels", {}))


def reasons_of(rule: Mapping[str, Any]) -> tuple[str, ...]:
    """Return all reasons the rule may have: of its label, `reasons`, its texts, or its expression."""
    if static := _static(rule):
        return (static,)
    described = rule.get("annotations", {}).get("description")
    texts = described if isinstance(described, Mapping) else ()
    return tuple(dict.fromkeys((*rule.get("reasons", ()), *texts, *_IN_EXPRESSION.findall(rule["expr"]))))


def _adjusted(rule: Mapping[str, Any], config: Adjustments) -> dict[str, Any]:
    changes: dict[str, Any] = {}
    labels = {**rule.get("labels", {}), **config.extra_labels}
    for each in (rule["alert"], f"{rule['alert']}/{_static(rule)}"):
        given = config.overrides.get(each, {})
        labels |= given.get("labels", {})
        changes |= given
    if owner := config.owners.get(rule["alert"]):
        labels["owner"] = owner
    if "severity" in changes:
        labels["severity"] = changes["severity"]
    waits = {"for": changes["for_seconds"]} if "for_seconds" in changes else {}
    return {**rule, **waits, "labels": labels}


def is_plain(text: str) -> bool:
    """Return True for printable text in which no template begins."""
    return text.isprintable() and "{{" not in text


def _waits(seconds: object) -> bool:
    return isinstance(seconds, int | float) and not isinstance(seconds, bool) and 0 <= seconds <= 31_536_000


_NAMED = "names of alerts, or of an alert and one of its reasons, such as RankwatchRunSlow/jitter"
_IN_EXPRESSION = re.compile(r'"(?:reason|cause)", "(\w+)", "", ""')
"""A reason that `label_replace` gives to a part of an expression."""
_OWNER = re.compile(r"[a-z][a-z0-9_]{0,31}")
_LABEL = re.compile(r"(?!__)[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_OPTIONS = {
    "severity": _Option(f"a severity of {', '.join(Severity)}", lambda value: value in tuple(Severity)),
    "for_seconds": _Option("for_seconds from 0 to a year", _waits),
    "labels": _Option("a table of labels", lambda value: isinstance(value, Mapping)),
}
