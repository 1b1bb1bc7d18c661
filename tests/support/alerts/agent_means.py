"""What agents export of recent steps, from the counters of the same ranks: so rule tests state counters only.

The agents' own means have tests of their own (tests/agent/training/steps/test_recent.py). The table beside
this file has the rules.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from string import Template
from typing import Any

from rankwatch.conventions.metrics import OF_RANKS_THAT_HAD_THEM, OF_RUNNING_RANKS
from rankwatch.conventions.states import STEP_PHASES
from rankwatch_alerts import RuleConfig
from rankwatch_alerts.rules import duration

AGENT_GROUP = "agent"
_RANK, _NODE = "cluster, run, rank, node", "cluster, run, node"
_LIVING = f'and on ({_RANK}) (rankwatch_rank_state{{state=~"starting|running"}} == 1)'
_LABELS = {
    "rankwatch_step_phase_seconds_total": "phase",
    "rankwatch_scalar_nonfinite_total": "name",
    "rankwatch_checkpoint_operations_total": "operation",
    "rankwatch_step_variation_total": "term",
}
"""Of the value without which a metric does not count."""


def agent_group(config: RuleConfig) -> dict[str, Any]:
    """A group of rules, to be evaluated before all others."""
    window, interval = duration(config.step_window_seconds), duration(config.scrape_interval_seconds)
    variables = {
        "rank": _RANK,
        "node": _NODE,
        "collector": "cluster, node, collector",
        "living": _LIVING,
        "window": window,
        "floor": duration(config.stall_floor_seconds),
        "floor_seconds": f"{config.stall_floor_seconds:g}",
        "local": f"sum by ({_RANK}, stage) (rankwatch_recent_step_local_seconds)",
        "long": f"avg_over_time(rankwatch_recent_late_step_seconds[{duration(config.cause_for_seconds)}])",
        "placed": f"group by ({_RANK}, stage, data_parallel) (last_over_time(rankwatch_rank_info[{window}]))",
    }
    made = {"phases": _phases, "variation": _variation, "reporting": _reporting}
    rules = []
    table = Path(__file__).with_suffix(".txt").read_text()
    for row in re.split(r"\n(?! )", re.sub(r"^#.*\n", "", table, flags=re.MULTILINE).strip()):
        text = re.sub(r"\(\s*\n\s+", "(", row).replace("\n ", "")
        if text in made:
            rules += made[text]()
        elif text.startswith("rose "):
            rules.append(_rose(*text.removeprefix("rose ").split(" | "), interval=interval))
        elif text:
            record, _, expression = text.partition(" = ")
            rules.append((record, expression))
    return {
        "name": AGENT_GROUP,
        "interval": interval,
        "rules": [
            {"record": record, "expr": _mean(Template(expression).substitute(variables), window)}
            for record, expression in rules
        ],
    }


def _mean(expression: str, window: str) -> str:
    """Replace mean[COUNTER]."""
    steps = f"/ on ({_RANK}) group_right () sum by ({_RANK}, stage) (agent:steps:rate)"
    return re.sub(r"mean\[(.+?)\]", rf"sum by ({_RANK}) (rate(\1[{window}])) {steps}", expression)


def _rose(record: str, counter: str, by: str, *, interval: str) -> tuple[str, str]:
    before = f"last_over_time({counter}[5m] offset {interval})"
    now = f"timestamp({counter} > {before} or {counter} > 0 unless {before})"
    return record, f"max by ({by}) ({now}) or max by ({by}) (last_over_time({record}[1h]))"


def _phases() -> Iterator[tuple[str, str]]:
    for phase, parts in STEP_PHASES.items():
        mean = f'mean[rankwatch_step_phase_seconds_total{{phase=~"{"|".join(parts)}"}}]'
        yield "rankwatch_recent_step_phase_seconds", f'label_replace({mean}, "phase", "{phase}", "", "")'


def _variation() -> Iterator[tuple[str, str]]:
    on = f"on ({_RANK}, stage)"
    for reason, (one, other) in {"work": ("local", "work"), "microbatches": ("forward", "backward")}.items():
        both, first, second = (
            f'(mean[rankwatch_step_variation_total{{term="{term}"}}])'
            for term in (f"{one}_and_{other}", one, other)
        )
        covariance = f"(({both} - {on} {first} - {on} {second}) / 2)"
        work = f"({covariance} > 0) / {on} sqrt({second} > 0)"
        for name, each in (
            ("covariance", covariance),
            ("correlation", f"{covariance} / {on} sqrt({first} * {on} {second} > 0)"),
            # That of microbatches needs their number, so tests state it themselves.
            *((("sigma", work),) if reason == "work" else ()),
        ):
            median = f"quantile by ({_NODE}) (0.5, {each})"
            record = f"rankwatch_recent_run_{name}_ratio"
            yield record, f'label_replace({median}, "reason", "{reason}", "", "")'


def _reporting() -> Iterator[tuple[str, str]]:
    for name, value in (*OF_RUNNING_RANKS.items(), *OF_RANKS_THAT_HAD_THEM.items()):
        label = _LABELS.get(name)
        matchers = f'{{{label}="{value}"}}' if label else ""
        count = f"count by ({_NODE}) (group by ({_RANK}) ({name}{matchers}) {_LIVING})"
        count += f" or 0 * count by ({_NODE}) (rankwatch_rank_state)"
        yield "rankwatch_node_ranks_reporting", f'label_replace({count}, "name", "{name}", "", "")'
