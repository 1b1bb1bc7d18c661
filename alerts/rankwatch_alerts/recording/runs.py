"""Runs that are too small to wake anybody."""

from __future__ import annotations

from rankwatch_alerts.config import RuleConfig
from rankwatch_alerts.objectives import DEFAULT_CLASS
from rankwatch_alerts.recording.nodes import SILENT
from rankwatch_alerts.rules import RUN, RecordingRule, duration, promql, recorded

SMALL_RUN = "run:rankwatch_run_small:bool"
RUN_SIZE = "run:rankwatch_run_world_size:max"


def run_rules(config: RuleConfig) -> tuple[RecordingRule, ...]:
    """Runs with fewer ranks than their class needs to page. A run that declares no size pages."""
    named = [each for each in config.page_least_ranks if each != DEFAULT_CLASS]
    others = "\n".join(f"unless on ({RUN}) {_info(config, each)}" for each in named)
    parts = [_smaller(config, each, f"and on ({RUN}) {_info(config, each)}") for each in named]
    small = "or\n".join((*parts, _smaller(config, DEFAULT_CLASS, others), _remembered(config)))
    size = f"max by ({RUN}) (last_over_time(rankwatch_run_world_size[{_memory(config)}]))"
    return (recorded(RUN_SIZE, size), recorded(SMALL_RUN, small))


def _remembered(config: RuleConfig) -> str:
    """A lost node is remembered for longer than anything else of its run."""
    last = f"last_over_time({SMALL_RUN}[{duration(config.absence_lookback_seconds)}])"
    return f"({last} and on ({RUN}) {SILENT})"


def _smaller(config: RuleConfig, run_class: str, of_class: str) -> str:
    least = f"{config.page_least_ranks[run_class]:g}".replace("inf", "+Inf")
    return promql(f"group by ({RUN}) ({RUN_SIZE} < {least})\n") + f"\n{of_class}\n"


def _info(config: RuleConfig, run_class: str) -> str:
    return f'last_over_time(rankwatch_run_info{{run_class="{run_class}"}}[{_memory(config)}])'


def _memory(config: RuleConfig) -> str:
    """Longer than any rule remembers a rank: an alert must not become a page when its run is forgotten."""
    return duration(2 * config.absence_lookback_seconds)
