"""Which alert holds back which, read from alerts/rules/inhibitions.yaml and written out for Alertmanager; and
which inhibitions of others take alerts of ours.

The sources keep firing as long as their victims (`keep_firing_seconds`), so that no victim notifies in the
gap after its cause.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rankwatch_alerts.adjustments import FIXED_LABELS
from rankwatch_alerts.config import RuleConfig
from rankwatch_alerts.delivery import all_owners
from rankwatch_alerts.rule_files import RuleFileError, document
from rankwatch_alerts.rules import ALERT_NAMES, Severity

PRODUCT = 'product="rankwatch"'
"""Matcher of all alerts of ours, and of no other."""
MATCHER = re.compile(r'(\w+)(=~|!~|!=|=)"([^"\\]*)"')
"""Of Alertmanager: label, operator, value."""
_ANY_MATCHER = re.compile(r'([\w.:]+)\s*(=~|!~|!=|=)\s*(?:"((?:\\.|[^"\\])*)"|([^\s,}]*))')
"""The same as people write it: the quotes may be missing, and braces may stand around several."""
_SEVERITIES = {
    "any": (('severity="critical"',), ('severity="warning"', 'severity=~"warning|info"')),
    "page": (('severity="critical"',),),
    "replaced": (('severity="critical"', 'severity="warning"'),),
}
"""Matchers of source and target of each rule that an entry becomes; a source never has less severity."""


@dataclass(frozen=True, kw_only=True)
class Inhibition:
    """An entry of the file."""

    why: str
    source: Sequence[str]
    target: Sequence[str]
    equal: Sequence[str] = ()
    """Labels that both have, with the same value."""
    alike: Sequence[str] = ()
    """Labels that have the same value, or that neither has."""
    severity: str = "any"

    def rules(self) -> Iterator[dict[str, list[str]]]:
        """As Alertmanager reads it."""
        present = tuple(f'{label}=~".+"' for label in self.equal if label != "alertname")
        for of_source, *of_target in _SEVERITIES[self.severity]:
            yield {
                "source_matchers": [PRODUCT, *self.source, *present, of_source],
                "target_matchers": [PRODUCT, *self.target, *present, *of_target],
                "equal": ["cluster", *self.equal, *self.alike],
            }


def inhibitions(directory: str = "") -> tuple[Inhibition, ...]:
    """The entries of the file, of the user's own directory if it is there. Raises RuleFileError."""
    try:
        found = tuple(Inhibition(**each) for each in document("inhibitions", directory))
    except TypeError as error:
        raise RuleFileError(f"could not use inhibitions.yaml: {error}") from error
    for each in found:
        matchers = all(MATCHER.fullmatch(str(one)) for one in (*each.source, *each.target))
        if not matchers or each.severity not in _SEVERITIES:
            raise RuleFileError(f"could not use inhibitions.yaml: wrong matcher or severity in {each.why!r}")
    return found


def inhibit_rules(directory: str = "") -> list[dict[str, list[str]]]:
    """All of them, as Alertmanager reads them."""
    return [rule for each in inhibitions(directory) for rule in each.rules()]


def that_take_ours(rules: Iterable[tuple[int, Mapping[str, Any]]], config: RuleConfig) -> Iterator[str]:
    """A sentence on each inhibition of others that can hold for alerts of ours. Given with their lines."""
    for line, rule in rules:
        matchers = {side: list(_matchers(rule, side)) for side in ("source", "target")}
        if ours := [f"{side}_matchers" for side, each in matchers.items() if _can_match(each, config)]:
            source, target = (" ".join(map("".join, each)) for each in matchers.values())
            yield (
                f"the inhibition in line {line}, of {target} by {source}, takes alerts of ours, too: "
                f'add product!="rankwatch" to its {" and ".join(ours)}'
            )


def _matchers(rule: Mapping[str, Any], side: str) -> Iterator[tuple[str, str, str]]:
    """Label, operator and value of each, also in the form of old releases."""
    for text in rule.get(f"{side}_matchers") or ():
        for label, how, quoted, bare in _ANY_MATCHER.findall(text):
            yield label, how, quoted or bare
    for key, how in ((f"{side}_match", "="), (f"{side}_match_re", "=~")):
        yield from ((label, how, str(value)) for label, value in (rule.get(key) or {}).items())


def _can_match(matchers: Iterable[tuple[str, str, str]], config: RuleConfig) -> bool:
    """True if an alert of ours can have labels with which all of them match."""
    overridden = (label for each in config.overrides.values() for label in each.get("labels", ()))
    free = {*FIXED_LABELS, *config.label_names.values(), *overridden}
    known = {
        **{label: (value,) for label, value in config.extra_labels.items() if label not in free},
        "product": ("rankwatch",),
        "alertname": ALERT_NAMES,
        "severity": tuple(Severity),
        "owner": all_owners(config.owners),
    }
    left = {label: known.get(label, ("",)) for label, _, _ in matchers if label in known or label not in free}
    for label, how, value in matchers:
        if label in left:
            left[label] = tuple(each for each in left[label] if _matches(each, how, value))
    return all(left.values())


def _matches(text: str, how: str, value: str) -> bool:
    if "~" not in how:
        return (text == value) == (how == "=")
    try:
        return bool(re.fullmatch(value, text)) == (how == "=~")
    except re.error:  # Go has forms that Python has not
        return True
