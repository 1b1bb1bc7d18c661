"""Pages on the rules: how to generate and load them, every setting, and every alert."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path

from rankwatch.settings import toml_value
from rankwatch_alerts.config import RuleConfig
from rankwatch_alerts.rule_files import alert_rules
from rankwatch_alerts.rules import duration

_PAGE = Path(__file__).with_name("reference.md")
"""How to generate and load the rules; the settings follow it."""


def rules_reference(texts: Mapping[str, str]) -> Iterator[str]:
    """The page, below its title, in Markdown; `texts` holds the docstring of each field of RuleConfig."""
    defaults = RuleConfig()
    interval = duration(defaults.scrape_interval_seconds)
    text = _PAGE.read_text(encoding="utf-8") % {"interval": interval, "job": defaults.agent_job}
    yield from (text, "## Settings", "")
    yield from settings_reference(defaults, texts, column="default")


def settings_reference(config: RuleConfig, texts: Mapping[str, str], column: str = "value") -> Iterator[str]:
    """A table of the settings and their values, in Markdown; `texts` as above."""
    yield from (f"| setting | {column} | meaning |", "| --- | --- | --- |")
    for name, value in asdict(config).items():
        number = isinstance(value, int | float) and not isinstance(value, bool)
        shown = f"{value:g}" if number else toml_value(value)
        yield f"| `{name}` | `{shown}` | {' '.join(texts[name].split())} |"


def alerts_reference(config: RuleConfig) -> Iterator[str]:
    """A table of the alerting rules, in Markdown, in the order of triage."""
    yield from ("| alert | severity | owner | for | what it says |", "| --- | --- | --- | --- | --- |")
    for rule in alert_rules(config):
        reason = f", `{rule.reason}`" if rule.reason else ""
        link = f"[{rule.alert}](../runbooks/{rule.alert}.md)"
        severity, owner = rule.severity or "of the run", rule.labels["owner"]
        waits, says = duration(rule.for_seconds), rule.annotations["summary"]
        yield f"| {link}{reason} | {severity} | {owner} | {waits} | {says} |"
