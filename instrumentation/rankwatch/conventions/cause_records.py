"""Recorded series of causes that name no rank: slow stage, unequal batches, data loading, network, jitter."""

from __future__ import annotations

from rankwatch.conventions.declaration import Record
from rankwatch.conventions.labels import Label

_RUN = (Label.CLUSTER, Label.RUN)
_STAGE = (*_RUN, Label.STAGE)
_PLACED = (*_RUN, Label.RANK, Label.NODE, Label.STAGE)
_REASON = (*_PLACED, Label.REASON)
_GROUP = (*_RUN, Label.GROUP, Label.MEMBERS, Label.OPERATION, Label.SIZE_CLASS)


def _record(name: str, labels: tuple[Label, ...], text: str) -> Record:
    return Record(name=name, labels=labels, help=text)


_STAGES = (
    _record(
        "rank:rankwatch_step_compute_seconds:mean",
        _PLACED,
        "Mean local seconds per step, waiting for data, checkpoints and evaluation left out.",
    ),
    _record(
        "stage:rankwatch_step_compute_seconds:median",
        _STAGE,
        "Median of the mean compute seconds of the stage's ranks.",
    ),
    _record(
        "run:rankwatch_stages:count",
        _RUN,
        "Pipeline stages of the run.",
    ),
    _record(
        "stage:rankwatch_step_compute_seconds:others_median",
        _STAGE,
        "What the other stages compute: of two stages the other's median, else the median over all stages.",
    ),
    _record(
        "stage:rankwatch_step_compute_seconds:ratio",
        _STAGE,
        "Compute of the stage over that of the others.",
    ),
    _record(
        "stage:rankwatch_slow_stage:slowdown",
        _STAGE,
        "Step time over the step time with the stage at the others' pace; only of stages that are too heavy.",
    ),
)

_VARIATION = (
    _record(
        "run:rankwatch_step_waiting:share",
        _RUN,
        "Share of the step in which the median rank is blocked in collectives, transfers included.",
    ),
    _record(
        "rank:rankwatch_step_variation:mean",
        (*_PLACED, Label.TERM),
        "Mean over steps of squared relative deviations, by term.",
    ),
    _record(
        "rank_reason:rankwatch_step_variation:covariance",
        _REASON,
        "Variation that local time shares with work, or forward with backward (reason: work, microbatches).",
    ),
    _record(
        "rank_reason:rankwatch_step_variation:correlation",
        _REASON,
        "Correlation of local time with work, and of forward with backward over the microbatches of a step.",
    ),
    _record(
        "rank_reason:rankwatch_step_variation:sigma",
        _REASON,
        "Standard deviation of the step's own time, as a share of it, that work or microbatches explain.",
    ),
    _record(
        "run_reason:rankwatch_unequal_batches:share",
        (*_RUN, Label.REASON),
        "Share of the step that unequal batches cost, by what shows it (work, microbatches, ranks), "
        "where it passes its test.",
    ),
    _record(
        "run:rankwatch_unequal_batches:share",
        _RUN,
        "Share of the step that unequal batches cost, at most what ranks wait; only where it is too much.",
    ),
)

_JITTER = (
    _record(
        "rank:rankwatch_late_step_seconds:mean",
        _PLACED,
        "Seconds per step that late steps take beyond what is normal for the rank.",
    ),
    _record(
        "rank:rankwatch_late_step_seconds:long_mean",
        _PLACED,
        "The same, on average over the time for which jitter must last.",
    ),
    _record(
        "run:rankwatch_late_step_seconds:share",
        _RUN,
        "The same over all ranks, as a share of the step.",
    ),
    _record(
        "run:rankwatch_jitter:share",
        _RUN,
        "The same, at most what ranks wait; only where late steps are spread over ranks and cost too much.",
    ),
)

_DATA_LOADING = (
    _record(
        "rank:rankwatch_step_data_wait:share",
        _PLACED,
        "Share of the step that the rank waits for data.",
    ),
    _record(
        "run:rankwatch_slow_data_loading:share",
        _RUN,
        "Share of the step that the median rank which loads data waits for it; only where most "
        "wait too long.",
    ),
)

_NETWORK = (
    _record(
        "group:rankwatch_collective_transfer_seconds:mean",
        _GROUP,
        "Mean seconds of a collective's last arriver; the least over the nodes.",
    ),
    _record(
        "group:rankwatch_collective_bus_bytes:mean",
        _GROUP,
        "Mean bus bytes of a collective.",
    ),
    _record(
        "run:rankwatch_step_local_seconds:median",
        _RUN,
        "Median of the mean local seconds of the run's ranks.",
    ),
    _record(
        "group:rankwatch_collective_transfer_seconds:growth",
        _GROUP,
        "Transfer time over its own median in the past.",
    ),
    _record(
        "group:rankwatch_network_degraded:share",
        _GROUP,
        "Share of time that the growth of transfers costs; only where the network is to blame.",
    ),
)

CAUSE_RECORDS: tuple[Record, ...] = (*_STAGES, *_VARIATION, *_JITTER, *_DATA_LOADING, *_NETWORK)
