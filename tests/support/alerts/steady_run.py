"""A run whose ranks go on as they are, and what the rules record of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

from rankwatch_alerts import RuleConfig
from support.alerts.rule_test import ask, groups_of

SCRAPE_SECONDS = 30
_CONFIG = RuleConfig(scrape_interval_seconds=SCRAPE_SECONDS)

_NONE = range(0)

Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True, kw_only=True)
class SteadyRank:
    """What one rank does in each step of one second, on average."""

    stage: int = 0
    replica: int = 0
    local_seconds: float = 0.5
    message_seconds: float = 0.0
    late_steps: float = 0.0
    """Share of the steps that are late."""
    late_seconds: float = 0.0
    squared_deviation: float = 0.0
    data_wait_seconds: float = 0.0
    since_scrape: int = 0
    """Scrape from which `local_seconds` holds; until then it is 0.5."""


def recorded_by(
    ranks: Sequence[SteadyRank],
    expressions: Sequence[str],
    directory: Path,
    *,
    minutes: int = 11,
    missing: range = _NONE,
) -> list[dict[Labels, float]]:
    """The samples of each expression at the end; labels without those of the run, in order of names.

    missing: scrapes at which nothing is seen of any rank.
    """
    scrapes = minutes * 60 // SCRAPE_SECONDS
    series = [each for number, rank in enumerate(ranks) for each in _series(number, rank, scrapes, missing)]
    tests = [{"expr": each, "eval_time": f"{minutes}m", "exp_samples": []} for each in expressions]
    interval = f"{SCRAPE_SECONDS}s"
    case = {"interval": interval, "input_series": series, "promql_expr_test": tests}
    return [
        {_own(each.labels): each.value for each in samples}
        for samples in ask(case, groups_of(_CONFIG), interval, directory)
    ]


def _series(number: int, rank: SteadyRank, scrapes: int, missing: range) -> Iterator[dict[str, str]]:
    place = f'cluster="c",run="r",rank="{number}",node="n{number}"'
    info = f'rankwatch_rank_info{{{place},stage="{rank.stage}",data_parallel="{rank.replica}"}}'
    counters: dict[str, float] = {
        "rankwatch_steps_total": 1.0,
        "rankwatch_step_seconds_total": 1.0,
        "rankwatch_step_message_seconds_total": rank.message_seconds,
        "rankwatch_late_steps_total": rank.late_steps,
        "rankwatch_late_step_seconds_total": rank.late_seconds,
        'rankwatch_step_variation_total{term="local"}': rank.squared_deviation,
        'rankwatch_step_phase_seconds_total{phase="data_wait"}': rank.data_wait_seconds,
    }
    values = {info: [1.0] * (scrapes + 1)}
    for name, in_a_step in counters.items():
        if in_a_step:
            values[_placed(name, place)] = [in_a_step * SCRAPE_SECONDS * at for at in range(scrapes + 1)]
    local = [0.5 if at < rank.since_scrape else rank.local_seconds for at in range(scrapes)]
    totals = accumulate(local, initial=0.0)
    values[_placed("rankwatch_step_local_seconds_total", place)] = [SCRAPE_SECONDS * each for each in totals]
    for series, samples in values.items():
        written = ("_" if at in missing else f"{each:.9f}" for at, each in enumerate(samples))
        yield {"series": series, "values": " ".join(written)}


def _placed(name: str, place: str) -> str:
    plain, _, labels = name.partition("{")
    return f"{plain}{{{place}{',' + labels if labels else '}'}"


def _own(labels: Mapping[str, str]) -> Labels:
    return tuple(sorted((name, value) for name, value in labels.items() if name not in _OF_RUN))


_OF_RUN = ("__name__", "cluster", "run")
