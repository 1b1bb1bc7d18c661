"""The series of recent means: of each rank, and of the ranks of a run on this node."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import median

from rankwatch.conventions.metrics import TOGETHER, metric
from rankwatch_agent.runtime.collector import Series, sample
from rankwatch_agent.training.outstanding import halves
from rankwatch_agent.training.recent import RecentMeans

Placed = tuple[str, str, str]
"""Run, rank and pipeline stage."""


def rank_series(placed: Placed, shown: str, replica: str, means: RecentMeans) -> Iterator[Series]:
    """What rules compare between ranks. `replica` is empty where the rank has none, `shown` where every rank
    of its run is exported."""
    key = (*placed, shown)
    yield sample("rankwatch_recent_step_local_seconds", (*key, replica), means.local_seconds)
    yield sample("rankwatch_recent_step_arrival_seconds", key, means.arrival_seconds)
    yield sample("rankwatch_recent_step_compute_seconds", key, means.compute_seconds)
    for phase, seconds in means.phase_seconds.items():
        yield sample("rankwatch_recent_step_phase_seconds", (*key, phase), seconds)
    if means.tokens > 0:
        yield sample("rankwatch_recent_token_local_seconds", key, means.local_seconds / means.tokens)
    yield sample("rankwatch_recent_data_wait_ratio", key, means.data_wait_ratio)
    yield sample("rankwatch_recent_late_steps_ratio", key, means.late_steps_ratio)
    yield sample("rankwatch_recent_late_step_long_seconds", key, means.late_long_seconds)


def token_series(placed: Placed, shown: str, means: RecentMeans) -> Iterator[Series]:
    """Its tokens, if it reports any."""
    if means.tokens > 0:
        yield sample("rankwatch_recent_step_tokens", (*placed, shown), means.tokens)


def late_series(placed: Placed, shown: str, means: RecentMeans) -> Iterator[Series]:
    """What its late steps take."""
    yield sample("rankwatch_recent_late_step_seconds", (*placed, shown), means.late_seconds)


def half_series(run: str, ranks: Mapping[Placed, RecentMeans]) -> Iterator[Series]:
    """Of a large run: what speaks for all ranks of a stage on this node, where only some are exported."""
    for stage, of_stage in _by_stage(ranks).items():
        values = {
            "step_local_seconds": [each.local_seconds for each in of_stage],
            "step_arrival_seconds": [each.arrival_seconds for each in of_stage],
            "step_tokens": [each.tokens for each in of_stage if each.tokens > 0],
            "token_local_seconds": [each.local_seconds / each.tokens for each in of_stage if each.tokens > 0],
        }
        for name, known in values.items():
            for half, value in halves(known).items():
                yield sample(f"rankwatch_recent_half_{name}", (run, stage, half), value)


def step_series(run: str, steps: Iterable[float | None]) -> Iterator[Series]:
    """The step of the run, also where own time and waits are not told apart."""
    yield from _median("rankwatch_recent_run_step_seconds", (run,), steps)


def node_series(run: str, ranks: Mapping[Placed, RecentMeans]) -> Iterator[Series]:
    """Medians over the ranks of a run on this node: of these, rules take the median of the run."""
    if not ranks:
        return
    means = ranks.values()
    yield sample("rankwatch_recent_run_waiting_ratio", (run,), median(each.waiting_ratio for each in means))
    variances = [each.variance for each in means if each.variance is not None]
    if variances:
        yield sample("rankwatch_recent_run_step_variance_ratio", (run,), median(variances))
    for reason in TOGETHER:
        found = [each.together[reason] for each in means if reason in each.together]
        yield from _median(
            "rankwatch_recent_run_covariance_ratio", (run, reason), (each.covariance for each in found)
        )
        yield from _median(
            "rankwatch_recent_run_correlation_ratio", (run, reason), (each.correlation for each in found)
        )
        yield from _median("rankwatch_recent_run_sigma_ratio", (run, reason), (each.sigma for each in found))
    yield from _lateness(run, means)
    for stage, of_stage in _by_stage(ranks).items():
        yield from _stage_series((run, stage), of_stage)


def _by_stage(ranks: Mapping[Placed, RecentMeans]) -> dict[str, list[RecentMeans]]:
    stages: dict[str, list[RecentMeans]] = {}
    for (_, _, stage), each in ranks.items():
        stages.setdefault(stage, []).append(each)
    return stages


def _lateness(run: str, ranks: Iterable[RecentMeans]) -> Iterator[Series]:
    """What late steps take, and what of it a single rank holds."""
    late = sorted(ranks, key=lambda each: each.late_long_seconds, reverse=True)
    long = [each.late_long_seconds for each in late]
    values = {
        "late_step_seconds": math.fsum(each.late_seconds for each in late),
        "late_step_long_seconds": math.fsum(long),
        "late_ranks": float(sum(each > 0 for each in long)),
        "most_late_step_seconds": late[0].late_seconds,
        "most_late_step_long_seconds": long[0],
        "second_late_step_long_seconds": long[1] if len(long) > 1 else 0.0,
    }
    for name, value in values.items():
        yield sample(f"rankwatch_recent_run_{name}", (run,), value)


def _stage_series(key: tuple[str, str], ranks: Sequence[RecentMeans]) -> Iterator[Series]:
    """Medians and extremes of the ranks of one stage. key: run and stage."""
    yield sample("rankwatch_recent_stage_ranks", key, float(len(ranks)))
    compute = [each.compute_seconds for each in ranks]
    yield sample("rankwatch_recent_stage_compute_seconds", key, median(compute))
    yield sample("rankwatch_recent_stage_least_compute_seconds", key, min(compute))
    yield sample(
        "rankwatch_recent_stage_data_wait_ratio", key, median(each.data_wait_ratio for each in ranks)
    )
    for phase in ranks[0].phase_seconds:
        seconds = median(each.phase_seconds[phase] for each in ranks)
        yield sample("rankwatch_recent_stage_phase_seconds", (*key, phase), seconds)
    counted = [each for each in ranks if each.tokens > 0]
    yield sample("rankwatch_recent_stage_token_ranks", key, float(len(counted)))
    if counted:
        most = max(counted, key=lambda each: each.tokens)
        yield sample("rankwatch_recent_stage_most_tokens", key, most.tokens)
        yield sample("rankwatch_recent_stage_most_tokens_local_seconds", key, most.local_seconds)


def _median(name: str, labels: tuple[str, ...], values: Iterable[float | None]) -> Iterator[Series]:
    known = [each for each in values if each is not None]
    if known:
        yield Series(metric(name), labels, median(known))
