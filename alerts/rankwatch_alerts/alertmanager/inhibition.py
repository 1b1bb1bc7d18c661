"""Which alert holds back which, read from alerts/rules/inhibitions.yaml and written out for Alertmanager.

The sources keep firing as long as their victims (`keep_firing_seconds`), so that no victim notifies in the
gap after its cause.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rankwatch_alerts.rules import shipped_rules

PRODUCT = 'product="rankwatch"'
"""Matcher of all alerts of ours, and of no other."""
MATCHER = re.compile(r'(\w+)(=~|!~|!=|=)"([^"\\]*)"')
"""Of Alertmanager: label, operator, value."""
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
    source: tuple[str, ...]
    target: tuple[str, ...]
    equal: tuple[str, ...] = ()
    """Labels that both have, with the same value."""
    alike: tuple[str, ...] = ()
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


def inhibitions() -> tuple[Inhibition, ...]:
    """The entries of the file. Raises ValueError for one that is malformed. Needs PyYAML."""
    import yaml

    file = shipped_rules() / "inhibitions.yaml"
    return tuple(map(_entry, yaml.safe_load(file.read_text(encoding="utf-8"))))


def _entry(given: Mapping[str, Any]) -> Inhibition:
    why = given.get("why")
    try:
        fields: dict[str, Any] = {
            key: tuple(each) if isinstance(each, list) else each for key, each in given.items()
        }
        entry = Inhibition(**fields)
    except TypeError as error:
        raise ValueError(f"could not read the inhibition {why!r}: {error}") from None
    for text in (*entry.source, *entry.target):
        if not MATCHER.fullmatch(text):
            raise ValueError(f"could not read the inhibition {why!r}: {text!r} is no matcher")
    if entry.severity not in _SEVERITIES:
        raise ValueError(f"could not read the inhibition {why!r}: severity is {entry.severity!r}")
    return entry


def inhibit_rules() -> list[dict[str, list[str]]]:
    """All of them, as Alertmanager reads them."""
    return [rule for each in inhibitions() for rule in each.rules()]
