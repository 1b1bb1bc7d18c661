"""Recorded series about slow ranks: how far they stand out, what they cost, which phase grew."""

from __future__ import annotations

from rankwatch.conventions.declaration import recorded
from rankwatch.conventions.labels import Label

_RUN = (Label.CLUSTER, Label.RUN)
_STAGE = (*_RUN, Label.STAGE)
_PLACED = (*_RUN, Label.RANK, Label.NODE, Label.STAGE)
_PHASE = (*_PLACED, Label.PHASE)

_STRAGGLERS = (
    recorded(
        "stage:rankwatch_step_local_seconds:median",
        _STAGE,
        "Median of the mean local seconds of the stage's ranks.",
    ),
    recorded(
        "stage:rankwatch_ranks:count",
        _STAGE,
        "Ranks of the stage that complete steps.",
    ),
    recorded(
        "stage:rankwatch_token_local_seconds:median",
        _STAGE,
        "Median of the local seconds per token of the stage's ranks, where all of them report tokens.",
    ),
    recorded(
        "rank:rankwatch_step_local_seconds:residual",
        (*_PLACED, Label.SHOWN),
        "Local seconds of the rank over the median of its stage, minus one; per token where all ranks of the "
        "stage report tokens.",
    ),
    recorded(
        "run_excess:rankwatch_ranks:count",
        (Label.CLUSTER, Label.RUN, Label.EXCESS),
        "Ranks by their local seconds over the median of their stage, in whole percents from -5 to 50; what "
        "is below or above is -6 or 50. Of large runs, the ranks that are exported one by one.",
    ),
    recorded(
        "half:rankwatch_step_local_seconds:residual",
        (Label.CLUSTER, Label.RUN, Label.NODE, Label.STAGE, Label.HALF),
        "The same of one half of the ranks of a node; only of large runs.",
    ),
    recorded(
        "stage:rankwatch_step_local_seconds:residual_deviation",
        _STAGE,
        "Median of the absolute residuals of the stage's ranks.",
    ),
    recorded(
        "rank:rankwatch_step_local_seconds:high_excess",
        _PLACED,
        "Seconds per step by which the rank's local time exceeds the median of its stage; only of ranks "
        "whose residual is that of a straggler.",
    ),
    recorded(
        "run:rankwatch_step_local_seconds:spread",
        _RUN,
        "Standard deviation of the ranks' residuals, from their median absolute deviation.",
    ),
    recorded(
        "run:rankwatch_step_local_seconds:learnt_spread",
        _RUN,
        "The same over the hours before: its 0.9 quantile, up to a limit; no series for a young run.",
    ),
    recorded(
        "run:rankwatch_straggler_residual:threshold",
        _RUN,
        "Residual from which a rank of the run stands out.",
    ),
    recorded(
        "rank:rankwatch_straggler_candidate:slowdown",
        _PLACED,
        "Step time over the step time without the wait for the rank; only of ranks that stand out.",
    ),
    recorded(
        "rank:rankwatch_straggler_candidate:replica",
        (*_PLACED, Label.REPLICA),
        "The same with the replica of the rank.",
    ),
    recorded(
        "rank:rankwatch_straggler:slowdown",
        _PLACED,
        "Step time over the step time without the wait for the rank; only of stragglers.",
    ),
    recorded(
        "rank:rankwatch_straggler_costly:slowdown", _PLACED, "The same, only of stragglers that cost much."
    ),
)

_COSTS = (
    recorded(
        "stage:rankwatch_step_arrival_seconds:median",
        _STAGE,
        "Median, over the stage's ranks, of the seconds per step after which they reach the collectives.",
    ),
    recorded(
        "run:rankwatch_step_variation:sigma",
        _RUN,
        "Standard deviation of the step's own time of the median rank, as a share of it.",
    ),
    recorded(
        "stage:rankwatch_step_arrival_seconds:margin",
        _STAGE,
        "Seconds by which the last of the stage's ranks is expected behind the median one, without a fault.",
    ),
    recorded(
        "rank:rankwatch_straggler:later_seconds",
        _PLACED,
        "Seconds per step by which the rank reaches the collectives after the median of its stage; only of "
        "ranks whose residual is that of a straggler.",
    ),
    recorded(
        "rank:rankwatch_straggler:late_steps_share",
        _PLACED,
        "Share of the steps of such a rank that are late.",
    ),
    recorded(
        "rank:rankwatch_straggler:late_step_seconds",
        _PLACED,
        "Part of its later seconds that lies in late steps.",
    ),
    recorded(
        "rank:rankwatch_straggler:lost_seconds",
        _PLACED,
        "Seconds per step that the run waits for such a rank, beyond the last of the others.",
    ),
    recorded(
        "rank:rankwatch_late_step_seconds:high_excess",
        _PLACED,
        "Seconds per step that late steps of such a rank take beyond what is normal for it.",
    ),
    recorded(
        "run_cause:rankwatch_lost_time:share",
        (*_RUN, Label.CAUSE),
        "Share of the run's time that is lost to each cause that is proved now.",
    ),
    recorded(
        "run_cause:rankwatch_lost_rank_seconds:rate",
        (*_RUN, Label.CAUSE),
        "Rank-seconds lost to each cause in each second; its sum over time is what the cause has cost.",
    ),
)

_PHASES = (
    recorded(
        "rank_phase:rankwatch_step_local_seconds:excess",
        _PHASE,
        "Seconds per step by which the phase's time exceeds the median of the rank's stage, where the rank "
        "stands out.",
    ),
    recorded(
        "rank_phase:rankwatch_step_local_seconds:excess_share",
        _PHASE,
        "Share of the rank's positive excess that the phase holds, where the rank stands out.",
    ),
)

RECORDED_STRAGGLERS = (*_STRAGGLERS, *_COSTS, *_PHASES)
