"""The series of recent means: of each rank, and of the ranks of a run on this node."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from statistics import median

from rankwatch.conventions import metric
from rankwatch.conventions.recent import TOGETHER
from rankwatch_agent.runtime.collector import Series, sample
from rankwatch_agent.training.recent import RecentMeans

Placed = tuple[str, str, str]
"""Run, rank and pipeline stage."""


def rank_series(key: Placed, replica: str, means: RecentMeans) -> Iterator[Series]:
    """What rules compare between ranks. `replica` is empty where the rank has none."""
    yield sample("rankwatch_recent_step_local_seconds", (*key, replica), means.local_seconds)
    yield sample("rankwatch_recent_step_arrival_seconds", key, means.arrival_seconds)
    yield sample("rankwatch_recent_step_compute_seconds", key, means.compute_seconds)
    for phase, seconds in means.phase_seconds.items():
        yield sample("rankwatch_recent_step_phase_seconds", (*key, phase), seconds)
    if means.tokens > 0:
        yield sample("rankwatch_recent_step_tokens", key, means.tokens)
        yield sample("rankwatch_recent_token_local_seconds", key, means.local_seconds / means.tokens)
    yield sample("rankwatch_recent_data_wait_ratio", key, means.data_wait_ratio)
    yield sample("rankwatch_recent_late_steps_ratio", key, means.late_steps_ratio)
    yield sample("rankwatch_recent_late_step_seconds", key, means.late_seconds)
    yield sample("rankwatch_recent_late_step_long_seconds", key, means.late_long_seconds)


def node_series(run: str, ranks: Mapping[Placed, RecentMeans]) -> Iterator[Series]:
    """Medians over the ranks of a run on this node: of these, rules take the median of the run."""
    if not ranks:
        return
    means = ranks.values()
    yield sample("rankwatch_recent_run_step_seconds", (run,), median(each.step_seconds for each in means))
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
    for stage in dict.fromkeys(stage for _, _, stage in ranks):
        of_stage = [each for (_, _, other), each in ranks.items() if other == stage]
        for phase in of_stage[0].phase_seconds:
            seconds = median(each.phase_seconds[phase] for each in of_stage)
            yield sample("rankwatch_recent_stage_phase_seconds", (run, stage, phase), seconds)


def _median(name: str, labels: tuple[str, ...], values: Iterable[float | None]) -> Iterator[Series]:
    known = [each for each in values if each is not None]
    if known:
        yield Series(metric(name), labels, median(known))
