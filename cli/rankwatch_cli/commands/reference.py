"""`rankwatch reference`: print the reference of metrics, indicators, settings or rules, as Markdown."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, fields
from types import MappingProxyType
from typing import Any

from rankwatch.conventions.metrics import METRICS
from rankwatch.settings import SentenceParser, field_help, flag_name
from rankwatch_agent.runtime.config import ENVIRONMENT_PREFIX, AgentConfig
from rankwatch_agent.runtime.source import COLLECTORS, source_of
from rankwatch_cli.output import show_text

_GENERATED = "<!-- Written by `make generate`; edit the declarations instead. -->"


def main(arguments: Sequence[str]) -> int:
    """Print the reference that was asked for; returns 0."""
    parser = SentenceParser(
        prog="rankwatch reference",
        description="Print the reference of metrics, of the service level indicators, of the agent's "
        "settings or of the rules as Markdown.",
    )
    parser.add_argument("subject", choices=tuple(_SUBJECTS), help="what to print")
    subject = parser.parse_args(arguments).subject
    show_text("\n".join((*_SUBJECTS[subject](), "")))
    return 0


def _metrics() -> Iterator[str]:
    yield from ("# Metrics", "", _GENERATED, "")
    yield "Every series of the agent also carries `node`, and `cluster` if the agent has that setting."
    yield from ("", "## Exported by the agent", "", "| metric | type | unit | labels | meaning |")
    yield "| --- | --- | --- | --- | --- |"
    for each in METRICS:
        labels = ", ".join(f"`{label}`" for label in each.labels)
        yield f"| `{each.name}` | {each.kind} | {each.unit} | {labels} | {each.help} |"
    yield from ("", "## Written by the recording rules", "", "| series | labels | meaning |")
    yield "| --- | --- | --- |"
    # Only here: the agent is of use without the rules.
    from rankwatch_alerts import RuleConfig, recording_rules

    for recorded in recording_rules(RuleConfig()):
        labels = ", ".join(f"`{label}`" for label in recorded.labels)
        yield f"| `{recorded.record}` | {labels} | {recorded.help} |"


def _settings() -> Iterator[str]:
    yield from ("# Settings of the agent", "", _GENERATED, "")
    yield "A flag wins over the environment, the environment over the TOML file (`--config`)."
    yield "`rankwatch agent --print-config` prints what is in force, and where each value came from."
    yield f"The variable of a setting is its name in capitals behind `{ENVIRONMENT_PREFIX}`."
    yield from ("", "| setting | flag | default | meaning |", "| --- | --- | --- | --- |")
    texts = field_help(AgentConfig)
    for each in fields(AgentConfig):
        yield f"| `{each.name}` | `{flag_name(each.name)}` | {_default(each)} | {texts[each.name]} |"
    yield from ("", "Collectors and their schedules:", "", "| collector | interval | deadline |")
    yield "| --- | --- | --- |"
    for name in COLLECTORS:
        schedule = source_of(name).schedule
        yield f"| `{name}` | {schedule.interval_seconds:g} s | {schedule.deadline_seconds:g} s |"


def _default(setting: Field[Any]) -> str:
    value = setting.default
    if value is MISSING or value in (None, "", ()):
        return ""
    return f"`{','.join(map(str, value)) if isinstance(value, tuple) else value}`"


def _rules() -> Iterator[str]:
    # Only here: the agent is of use without the rules.
    from rankwatch_alerts import RuleConfig
    from rankwatch_alerts.generation import rules_reference

    yield from ("# Rules", "", _GENERATED, "")
    yield from rules_reference(field_help(RuleConfig))


def _slis() -> Iterator[str]:
    # Only here: it needs the dashboards, and they their SDK.
    from rankwatch_alerts import RuleConfig
    from rankwatch_dashboards.slis import slis_reference

    yield from ("# Service level indicators", "", _GENERATED, "")
    yield from slis_reference(RuleConfig())


_SUBJECTS: Mapping[str, Callable[[], Iterator[str]]] = MappingProxyType(
    {"metrics": _metrics, "slis": _slis, "settings": _settings, "rules": _rules}
)
"""Subjects that can be asked for, and what prints them."""
