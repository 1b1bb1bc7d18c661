"""The series the recording rules write: each declared once, with its labels and help.

Names are `level:metric:operations`: the level says by what a series is kept apart, the metric where
it comes from, the operations what was done, the last one first in time.
"""

from __future__ import annotations

from rankwatch.conventions.cause_records import CAUSE_RECORDS
from rankwatch.conventions.collective_records import COLLECTIVE_RECORDS
from rankwatch.conventions.declaration import Record
from rankwatch.conventions.labels import Label

_RUN = (Label.CLUSTER, Label.RUN)
_STAGE = (*_RUN, Label.STAGE)
_RANK = (*_RUN, Label.RANK)
_NODE_RANK = (*_RANK, Label.NODE)
_MEMBER = (*_NODE_RANK, Label.GROUP, Label.MEMBERS)
_PLACED = (*_RANK, Label.NODE, Label.STAGE)
_PHASE = (*_PLACED, Label.PHASE)


def _record(name: str, labels: tuple[Label, ...], text: str) -> Record:
    return Record(name=name, labels=labels, help=text)


_PROGRESS = (
    _record("rank:rankwatch_rank_running:bool", _RANK, "1 while the rank starts or runs, 0 once it ended."),
    _record("run:rankwatch_ranks_running:sum", _RUN, "Ranks of the run that start or run; 0 once all ended."),
    _record(
        "run:rankwatch_rank_start_timestamp_seconds:min",
        _RUN,
        "Unix time at which the first of the ranks that run was started.",
    ),
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

_STALLS = (
    _record(
        "run:rankwatch_stall_seconds:max",
        _RUN,
        "Time without progress of a run that is past its timeout; no series for all others.",
    ),
    _record(
        "rank:rankwatch_stall_alive:bool", _NODE_RANK, "1 for a rank of a stalled run that starts or runs."
    ),
    _record(
        "rank:rankwatch_stall_waited:bool",
        _NODE_RANK,
        "1 for a rank that has waited for long in a stalled run, or had when it ended.",
    ),
    _record(
        "rank_group:rankwatch_collective_last_enqueued:stalled",
        _MEMBER,
        "Number of the last collective the rank has enqueued in the group; only of stalled runs.",
    ),
    _record(
        "rank_group:rankwatch_collective_oldest_incomplete_timestamp_seconds:stalled",
        _MEMBER,
        "Unix time since which the rank waits in the group; only of stalled runs.",
    ),
    _record(
        "rank:rankwatch_stall_waiting_timestamp_seconds:min",
        _NODE_RANK,
        "Unix time since which the rank waits in any process group; only of stalled runs.",
    ),
    _record(
        "group:rankwatch_stall_waiting:share",
        (*_RUN, Label.GROUP, Label.MEMBERS),
        "Ranks that wait in the process group over those whose numbers are known; only of stalled runs.",
    ),
    _record(
        "rank_group:rankwatch_collectives_behind:stalled",
        _MEMBER,
        "Collectives the rank has not enqueued while another rank of the group has, and some wait there.",
    ),
    _record(
        "rank:rankwatch_stall_disappeared:bool",
        _NODE_RANK,
        "1 for a rank that has left a stalled run, or sends nothing any more, while others wait.",
    ),
    _record(
        "rank:rankwatch_stall_not_in_collective:bool",
        _NODE_RANK,
        "1 for a live rank of a stalled run that waits in no collective and called none recently.",
    ),
    _record(
        "rank:rankwatch_stall_missing:bool",
        (*_NODE_RANK, Label.REASON),
        "1 for a rank that others wait for while it waits for nobody (reason: disappeared, not_enqueued, "
        "not_in_collective).",
    ),
    _record(
        "run:rankwatch_stall_all_waiting:count",
        _RUN,
        "Live ranks of a stalled run; only where all of them wait and none is missing.",
    ),
    _record(
        "rank_group:rankwatch_collective_last_completed:stalled",
        _MEMBER,
        "Number of the last collective the rank has completed, by its flight recorder; only of stalled runs.",
    ),
    _record(
        "rank_group:rankwatch_collective_oldest_incomplete_signature:stalled",
        _MEMBER,
        "What the rank calls at the place where most of its group stand; only where every rank waits.",
    ),
    _record(
        "rank_group:rankwatch_collectives_mismatched:bool",
        (*_MEMBER, Label.REASON),
        "1 for a rank that differs from the majority of its group (reason: operation, number).",
    ),
    _record(
        "run:rankwatch_collectives_desynchronised:bool",
        _RUN,
        "1 for a stalled run whose ranks wait in different collectives.",
    ),
    _record(
        "rank:rankwatch_stall_unresponsive:bool",
        _NODE_RANK,
        "1 for a live rank of a stalled run whose flight recorder answered before and no longer does.",
    ),
    _record(
        "rank:rankwatch_stall_root_cause:bool",
        (*_NODE_RANK, Label.REASON),
        "1 for a rank that a stalled run waits for (reason: disappeared, not_enqueued, not_in_collective, "
        "unresponsive).",
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
        "rank:rankwatch_step_local_seconds:high_excess",
        _PLACED,
        "The same, of ranks whose residual is that of a straggler.",
    ),
    _record(
        "rank:rankwatch_straggler_candidate:slowdown",
        _PLACED,
        "Step time over the step time with the rank at its peers' value; only of ranks that stand out.",
    ),
    _record(
        "rank:rankwatch_straggler:slowdown",
        _PLACED,
        "Step time over the step time with the rank at its peers' value; only of suspected stragglers.",
    ),
)

_PHASES = (
    _record(
        "rank_phase:rankwatch_step_local_seconds:mean",
        _PHASE,
        "Mean local seconds per step of the rank by phase (compute, data_loading, checkpoint, other).",
    ),
    _record(
        "rank_phase:rankwatch_step_local_seconds:excess",
        _PHASE,
        "Seconds per step by which the phase's time exceeds the median of the rank's stage.",
    ),
    _record(
        "rank_phase:rankwatch_step_local_seconds:excess_share",
        _PHASE,
        "Share of the rank's positive excess that the phase holds, where the rank stands out.",
    ),
)

RECORDS: tuple[Record, ...] = (
    *_PROGRESS,
    *_STALLS,
    *_STEPS,
    *_STRAGGLERS,
    *_PHASES,
    *CAUSE_RECORDS,
    *COLLECTIVE_RECORDS,
)

_BY_NAME = {each.name: each for each in RECORDS}


def record(name: str) -> Record:
    """The declaration of a recorded series; raises KeyError for a name that is not declared."""
    return _BY_NAME[name]
