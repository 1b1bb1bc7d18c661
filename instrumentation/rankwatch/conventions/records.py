"""The series the recording rules write: each declared once, with its labels and help.

Names are `level:metric:operations`: the level says by what a series is kept apart, the metric where
it comes from, the operations what was done, the last one first in time.
"""

from __future__ import annotations

from dataclasses import dataclass

from rankwatch.conventions.labels import Label


@dataclass(frozen=True, kw_only=True)
class Record:
    """One recorded series: the only place its name, labels and help are written."""

    name: str
    labels: tuple[Label, ...]
    """All labels; `cluster` is empty where the agents are told none."""
    help: str


_RUN = (Label.CLUSTER, Label.RUN)
_STAGE = (*_RUN, Label.STAGE)
_RANK = (*_RUN, Label.RANK)
_PLACED = (*_RANK, Label.NODE, Label.STAGE)
_CAUSE = (*_PLACED, Label.CAUSE)


def _record(name: str, labels: tuple[Label, ...], text: str) -> Record:
    return Record(name=name, labels=labels, help=text)


_PROGRESS = (
    _record("rank:rankwatch_rank_running:bool", _RANK, "1 while the rank starts or runs, 0 once it ended."),
    _record("run:rankwatch_ranks_running:sum", _RUN, "Ranks of the run that start or run; 0 once all ended."),
    _record(
        "run:rankwatch_progress_timestamp_seconds:max",
        _RUN,
        "Unix time at which any rank of the run last made progress, or else the latest start of a rank.",
    ),
    _record(
        "run:rankwatch_progress_timeout_seconds:max",
        _RUN,
        "Longest time without progress that is normal for the run: learnt, above a floor, or the fallback.",
    ),
    _record(
        "run:rankwatch_checkpoint_last_good_timestamp_seconds:max",
        _RUN,
        "Unix time of the run's last good checkpoint, or of its earliest start where it has none.",
    ),
)

_STEPS = (
    _record(
        "rank:rankwatch_rank_stage:info", _PLACED, "Pipeline stage of each rank that has just one; always 1."
    ),
    _record(
        "rank:rankwatch_steps:rate", _PLACED, "Steps per second of the rank; no series while it makes none."
    ),
    _record("rank:rankwatch_step_seconds:mean", _PLACED, "Mean seconds per step of the rank."),
    _record(
        "rank:rankwatch_step_local_seconds:mean",
        _PLACED,
        "Mean seconds per step in which the rank worked and was not blocked in collectives.",
    ),
    _record(
        "run:rankwatch_step_seconds:mean", _RUN, "Mean seconds per step of the run: median of its ranks."
    ),
)

_STRAGGLERS = (
    _record(
        "stage:rankwatch_step_local_seconds:median",
        _STAGE,
        "Median of the mean local seconds of the stage's ranks.",
    ),
    _record("stage:rankwatch_ranks:count", _STAGE, "Ranks of the stage that make steps: the cohort."),
    _record(
        "rank:rankwatch_step_work:mean", _PLACED, "Mean tokens per step of the rank, where it reports them."
    ),
    _record(
        "rank:rankwatch_step_work:relative",
        _PLACED,
        "Tokens per step of the rank over the median of its stage, where all ranks of the stage report them.",
    ),
    _record(
        "rank:rankwatch_step_local_seconds:work_adjusted",
        _PLACED,
        "Mean local seconds per step divided by relative work, where that is known.",
    ),
    _record(
        "stage:rankwatch_step_local_seconds:work_adjusted_median",
        _STAGE,
        "Median of the work-adjusted local seconds of the stage's ranks.",
    ),
    _record(
        "stage:rankwatch_step_local_seconds:work_adjusted_mad",
        _STAGE,
        "Median absolute deviation of the work-adjusted local seconds in the stage.",
    ),
    _record(
        "rank:rankwatch_step_local_seconds:residual",
        _PLACED,
        "Work-adjusted local seconds of the rank over the median of its stage, minus one.",
    ),
    _record(
        "rank:rankwatch_step_local_seconds:excess",
        _PLACED,
        "Seconds per step by which the rank's local time exceeds the median of its stage.",
    ),
    _record(
        "rank:rankwatch_straggler:slowdown",
        _PLACED,
        "Step time over the step time with the rank at its peers' value; only of suspected stragglers.",
    ),
)

_CAUSES = (
    _record(
        "rank_cause:rankwatch_step_local_seconds:mean",
        _CAUSE,
        "Mean local seconds per step of the rank by cause: phases of one kind together.",
    ),
    _record(
        "rank_cause:rankwatch_step_local_seconds:excess",
        _CAUSE,
        "Seconds per step by which the cause's time exceeds the median of the rank's stage.",
    ),
    _record(
        "rank_cause:rankwatch_step_local_seconds:excess_share",
        _CAUSE,
        "Share of the rank's positive excess that the cause holds.",
    ),
)

RECORDS: tuple[Record, ...] = (*_PROGRESS, *_STEPS, *_STRAGGLERS, *_CAUSES)

_BY_NAME = {each.name: each for each in RECORDS}


def record(name: str) -> Record:
    """The declaration of a recorded series; raises KeyError for a name that is not declared."""
    return _BY_NAME[name]
