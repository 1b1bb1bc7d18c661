"""Recorded series of goodput, and of the advice about the checkpoint interval."""

from __future__ import annotations

from rankwatch.conventions.declaration import recorded
from rankwatch.conventions.labels import Label

_RUN = (Label.CLUSTER, Label.RUN)

RECORDED_GOODPUT = (
    recorded(
        "run:rankwatch_checkpoint_save_seconds:recent",
        _RUN,
        "Mean time of the run's last saves, if there were enough.",
    ),
    recorded(
        "run:rankwatch_checkpoint_save_seconds:past",
        _RUN,
        "Mean time of the run's saves before those, if there were enough.",
    ),
    recorded(
        "run:rankwatch_checkpoint_blocking:share",
        _RUN,
        "Share of the time for which the last saves blocked training.",
    ),
    recorded(
        "run:rankwatch_model_flops_utilisation:ratio",
        (*_RUN, Label.DTYPE),
        "Program goodput: model FLOPs utilisation (MFU) against the peak of each type of numbers that the "
        "GPUs have. No series where FLOPs per token or the peak of a GPU of the run are not known.",
    ),
    recorded(
        "run:rankwatch_gpu_utilization:mean",
        _RUN,
        "Share of the time in which a kernel ran, averaged over the GPUs of the nodes of the run.",
    ),
    recorded(
        "run:rankwatch_scaling_efficiency:ratio",
        _RUN,
        "Tokens per second and rank over those of one rank alone, as the run states them.",
    ),
    recorded(
        "run_state:rankwatch_goodput_ranks:rate",
        (*_RUN, Label.STATE),
        "Ranks of the run in each state of goodput lately.",
    ),
    recorded(
        "run_state:rankwatch_goodput_ranks:mean",
        (*_RUN, Label.STATE),
        "Ranks of the run in each state of goodput, averaged over the window of goodput.",
    ),
    recorded(
        "run:rankwatch_goodput_requested_ranks:mean",
        _RUN,
        "Ranks in any state, also between attempts, averaged over the window of goodput.",
    ),
    recorded(
        "run:rankwatch_goodput_allocated_ranks:mean",
        _RUN,
        "Ranks that had a process, averaged over the window of goodput.",
    ),
    recorded(
        "run:rankwatch_goodput_scheduling:ratio",
        _RUN,
        "Scheduling goodput: allocated time over requested time of the ranks.",
    ),
    recorded(
        "run:rankwatch_goodput_runtime:ratio",
        _RUN,
        "Runtime goodput: productive time over allocated time of the ranks.",
    ),
    recorded(
        "run:rankwatch_goodput_ettr:ratio",
        _RUN,
        "Effective training time ratio: productive time over requested time, which is scheduling times "
        "runtime goodput.",
    ),
    recorded(
        "run_state:rankwatch_badput:share",
        (*_RUN, Label.STATE),
        "Share of the requested time in each state that is not productive.",
    ),
    recorded(
        "run:rankwatch_checkpoint_saves:rate",
        _RUN,
        "Successful saves per second of the rank that saves most often.",
    ),
    recorded(
        "run:rankwatch_checkpoint_save_blocking:rate",
        _RUN,
        "Share of time for which saves block training, on the rank that they block most.",
    ),
    recorded(
        "run:rankwatch_checkpoint_save:rate",
        _RUN,
        "Share of time in which saves are under way, blocking or not, on the rank that takes longest.",
    ),
    recorded(
        "run:rankwatch_checkpoint_blocking_seconds:mean",
        _RUN,
        "Mean time for which a save blocks training.",
    ),
    recorded(
        "run:rankwatch_checkpoint_interval_seconds:mean",
        _RUN,
        "Mean time from one save to the next.",
    ),
    recorded(
        "run:rankwatch_interruptions:count",
        _RUN,
        "Attempts that the run has begun anew within the window of the advice.",
    ),
    recorded(
        "run:rankwatch_failure_interval_seconds:mean",
        _RUN,
        "Mean time between interruptions; no series for a run with fewer than two.",
    ),
    recorded(
        "run:rankwatch_checkpoint_interval_advice_seconds:best",
        _RUN,
        "Time from one save to the next that costs least: the root of 2 x blocking time of a save x mean "
        "time between interruptions, but no shorter than a save takes.",
    ),
    recorded(
        "run:rankwatch_checkpoint_interval_advice:gain",
        _RUN,
        "Share of the run's time that saving at the advised interval would win.",
    ),
)
