"""The agent's own figures, read from its /metrics as Prometheus reads them."""

from __future__ import annotations

import statistics
import urllib.request
from dataclasses import dataclass
from http.client import HTTPException

from prometheus_client.parser import text_string_to_metric_families

from rankwatch_cli.demo.workspace import DemoError

_WANTED = frozenset(
    {
        "rankwatch_steps_total",
        "rankwatch_step_seconds_total",
        "rankwatch_step_local_seconds_total",
        "rankwatch_step_phase_seconds_total",
        "rankwatch_rank_info",
    }
)


@dataclass(frozen=True)
class RankFigures:
    """Totals of one rank."""

    steps: float = 0.0
    seconds: float = 0.0
    local_seconds: float = 0.0
    phases: tuple[tuple[str, float], ...] = ()
    node: str = ""


Figures = dict[int, RankFigures]
"""By rank."""


def read_figures(address: str) -> Figures:
    """One scrape of the agent at HOST:PORT; raises DemoError."""
    try:
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=5.0) as reply:
            text = reply.read().decode()
    except (OSError, HTTPException) as error:  # URLError is an OSError
        raise DemoError(f"could not read http://{address}/metrics: {error}") from error
    totals: dict[int, dict[str, float]] = {}
    phases: dict[int, list[tuple[str, float]]] = {}
    nodes: dict[int, str] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name not in _WANTED or not sample.labels.get("rank", "").isdecimal():
                continue
            rank = int(sample.labels["rank"])
            nodes[rank] = sample.labels.get("node", "")
            if phase := sample.labels.get("phase"):
                phases.setdefault(rank, []).append((phase, sample.value))
            else:
                totals.setdefault(rank, {})[sample.name] = sample.value
    return {
        rank: RankFigures(
            steps=found.get("rankwatch_steps_total", 0.0),
            seconds=found.get("rankwatch_step_seconds_total", 0.0),
            local_seconds=found.get("rankwatch_step_local_seconds_total", 0.0),
            phases=tuple(phases.get(rank, ())),
            node=nodes[rank],
        )
        for rank, found in sorted(totals.items())
    }


@dataclass(frozen=True, kw_only=True)
class Suspect:
    """A straggler, as two scrapes of one agent tell it."""

    rank: int
    node: str
    residual: float
    """Share by which its local time exceeds the median of its peers."""
    slowdown: float
    """Step time over the step time with this rank at its peers' median."""
    phase: str
    """The phase that holds most of the excess."""


def suspect(before: Figures, now: Figures, *, least_residual: float, least_ranks: int) -> Suspect | None:
    """The rank whose local time per step stands out between two scrapes, or None.

    The method of the recording rules, for ranks of one role: compare with the median, abstain where
    there are too few.
    """
    ranks = [rank for rank in now if rank in before and now[rank].steps - before[rank].steps >= 5]
    if len(ranks) < least_ranks:
        return None
    local = {rank: _per_step(before[rank], now[rank], "local_seconds") for rank in ranks}
    median = statistics.median(local.values())
    worst = max(ranks, key=lambda rank: local[rank])
    excess = local[worst] - median
    if median <= 0.0 or excess <= least_residual * median:
        return None
    step = _per_step(before[worst], now[worst], "seconds")
    spent = {rank: _phases_per_step(before[rank], now[rank]) for rank in ranks}
    extra = {
        phase: seconds - statistics.median(each.get(phase, 0.0) for each in spent.values())
        for phase, seconds in spent[worst].items()
        if phase != "communication"
    }
    return Suspect(
        rank=worst,
        node=now[worst].node,
        residual=excess / median,
        slowdown=step / max(step - excess, 1e-9),
        phase=max(extra, key=lambda phase: extra[phase]),
    )


def _per_step(before: RankFigures, now: RankFigures, field: str) -> float:
    grown: float = getattr(now, field) - getattr(before, field)
    return grown / (now.steps - before.steps)


def _phases_per_step(before: RankFigures, now: RankFigures) -> dict[str, float]:
    steps = now.steps - before.steps
    earlier = dict(before.phases)
    return {phase: (seconds - earlier.get(phase, 0.0)) / steps for phase, seconds in now.phases}
