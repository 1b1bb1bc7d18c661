"""The series the recording rules write: each declared once, with its labels and help.

Names are `level:metric:operations`: the level says by what a series is kept apart, the metric where
it comes from, the operations what was done, the last one first in time.
"""

from __future__ import annotations

from rankwatch.conventions.declaration import RecordedSeries, recorded
from rankwatch.conventions.labels import Label
from rankwatch.conventions.recorded_checkpoints import RECORDED_CHECKPOINTS
from rankwatch.conventions.recorded_cost import RECORDED_COST
from rankwatch.conventions.recorded_goodput import RECORDED_GOODPUT
from rankwatch.conventions.recorded_hardware import RECORDED_HARDWARE
from rankwatch.conventions.recorded_life import RECORDED_LIFE
from rankwatch.conventions.recorded_nodes import RECORDED_NODES
from rankwatch.conventions.recorded_objectives import RECORDED_OBJECTIVES
from rankwatch.conventions.recorded_stalls import RECORDED_STALLS
from rankwatch.conventions.recorded_stragglers import RECORDED_STRAGGLERS
from rankwatch.conventions.replicas import RECORDED_REPLICAS

_RUN = (Label.CLUSTER, Label.RUN)
_STAGE = (*_RUN, Label.STAGE)
_RANK = (*_RUN, Label.RANK)
_PLACED = (*_RANK, Label.NODE, Label.STAGE)
_GROUP = (*_RUN, Label.GROUP, Label.MEMBERS)
_COLLECTIVE = (*_GROUP, Label.OPERATION, Label.SIZE_CLASS)

_PROGRESS = (
    recorded(
        "rank:rankwatch_rank_running:bool",
        (*_RANK, Label.NODE),
        "1 for each rank that starts or runs, of runs with ended ranks, with silent nodes, or that stall.",
    ),
    recorded(
        "run:rankwatch_ranks_running:sum", _RUN, "Ranks of the run that start or run; 0 once all have ended."
    ),
    recorded(
        "run:rankwatch_rank_start_timestamp_seconds:min",
        _RUN,
        "Unix time at which the first of the running ranks started.",
    ),
    recorded(
        "run:rankwatch_progress_timestamp_seconds:max",
        _RUN,
        "Unix time at which any rank of the run last made progress, or else the latest start of a rank.",
    ),
    recorded(
        "run:rankwatch_progress_timeout_seconds:max",
        _RUN,
        "Longest time without progress that is normal for the run: learnt, above a floor, or the fallback.",
    ),
    recorded("run:rankwatch_run_world_size:max", _RUN, "World size of the run."),
    recorded("run:rankwatch_run_small:bool", _RUN, "1 for a run that has too few ranks to page."),
    recorded(
        "run:rankwatch_loss_diverging:deviation",
        _RUN,
        "Deviation of a loss that stands too far above its trend; no series for all others.",
    ),
    recorded(
        "run:rankwatch_loss_scale_collapsed:count",
        _RUN,
        "Ranks of a running run whose loss scale has collapsed; no series where there is none.",
    ),
    recorded("run:rankwatch_loss_trend:median", _RUN, "Trend of the loss of the median rank."),
    recorded(
        "rank:rankwatch_loss_level:relative",
        (*_RANK, Label.NODE),
        "Trend of the rank's loss relative to the median rank's, where at least three ranks have a loss.",
    ),
    recorded(
        "rank:rankwatch_data_skew:ratio",
        (*_RANK, Label.NODE),
        "The same, of ranks for which it differs too much, also per token; no series for all others.",
    ),
    recorded(
        "rank:rankwatch_loss_level:odd",
        (*_RANK, Label.NODE),
        "The same, of ranks for which it differs too much.",
    ),
    recorded(
        "rank:rankwatch_loss_level:odd_per_token",
        (*_RANK, Label.NODE),
        "The same over the rank's tokens in a step, relative to the median rank's of its stage.",
    ),
    recorded(
        "rank:rankwatch_scalar_first_nonfinite_step:first",
        (*_RANK, Label.NODE, Label.NAME),
        "Step at which the scalar was first NaN or infinite, of the ranks of the run that had it first.",
    ),
    recorded(
        "server:rankwatch_rules_evaluated:bool",
        (),
        "1 at each moment at which the rules were evaluated: its gaps are those of Prometheus itself.",
    ),
    recorded(
        "instance:rankwatch_agent:info",
        (Label.CLUSTER, Label.NODE, Label.INSTANCE),
        "Node of an agent, by the address that Prometheus scrapes; also while it is down.",
    ),
    recorded(
        "collector:rankwatch_collector_failing:bool",
        (Label.CLUSTER, Label.NODE, Label.COLLECTOR),
        "1 for a collector that fails or has not succeeded for long.",
    ),
)

_STEPS = (
    recorded(
        "run:rankwatch_step_seconds:mean", _RUN, "Mean seconds per step of the run: median of its ranks."
    ),
)

_STAGES = (
    recorded(
        "stage:rankwatch_step_compute_seconds:median",
        _STAGE,
        "Median of the mean compute seconds of the stage's ranks.",
    ),
    recorded(
        "run:rankwatch_stages:count",
        _RUN,
        "Pipeline stages of the run.",
    ),
    recorded(
        "stage:rankwatch_step_compute_seconds:others_median",
        _STAGE,
        "Compute seconds of the other stages: of two stages that of the other, else the median over all "
        "stages.",
    ),
    recorded(
        "stage:rankwatch_step_compute_seconds:ratio",
        _STAGE,
        "Compute of the stage over that of the others.",
    ),
    recorded(
        "stage:rankwatch_slow_stage:slowdown",
        _STAGE,
        "Step time over the step time with the stage at the others' pace; only of slow stages.",
    ),
)

_VARIATION = (
    recorded(
        "run:rankwatch_step_waiting:share",
        _RUN,
        "Share of the step in which the median rank is blocked in collectives, transfers included.",
    ),
    recorded(
        "stage:rankwatch_step_tokens:median",
        _STAGE,
        "Median of the tokens per step of the stage's ranks, where all of them report tokens.",
    ),
    recorded(
        "run_reason:rankwatch_unequal_batches:share",
        (*_RUN, Label.REASON),
        "Share of the step that unequal batches cost, by evidence (reason: work, microbatches, ranks); only "
        "where the evidence is strong enough.",
    ),
    recorded(
        "run:rankwatch_unequal_batches:share",
        _RUN,
        "Share of the step that unequal batches cost, at most what ranks wait; only where it is too much.",
    ),
)

_JITTER = (
    recorded(
        "rank:rankwatch_late_step_seconds:in_turn",
        _PLACED,
        "Seconds per step that late steps take beyond what is normal for the rank, over twice the window; "
        "only of ranks that stand out and do not hold most of the run's lateness.",
    ),
    recorded(
        "run:rankwatch_late_step_seconds:long_sum",
        _RUN,
        "Seconds per step that late steps of all ranks take beyond what is normal, over twice the window.",
    ),
    recorded(
        "node:rankwatch_late_step_seconds:own",
        (*_RUN, Label.NODE),
        "The same of the rank that is most late on its node; only where it holds most of the run's lateness.",
    ),
    recorded(
        "run:rankwatch_late_step_seconds:share",
        _RUN,
        "Share of the run's step time that late steps of all its ranks take beyond what is normal.",
    ),
    recorded(
        "run:rankwatch_late_step_seconds:in_turn_share",
        _RUN,
        "The same without the ranks that hold most of the run's lateness.",
    ),
    recorded(
        "run:rankwatch_jitter:share",
        _RUN,
        "Share of the run's step time that jitter costs, at most what ranks wait; only where late steps are "
        "spread over ranks and cost too much.",
    ),
)

_DATA_LOADING = (
    recorded(
        "run:rankwatch_slow_data_loading:share",
        _RUN,
        "Share of the step that the median rank which loads data waits for it; only where most ranks wait "
        "too long.",
    ),
)

_NETWORK = (
    recorded(
        "group:rankwatch_collective_transfer_seconds:mean",
        _COLLECTIVE,
        "Mean seconds of a collective's last arriver; the least over the nodes.",
    ),
    recorded(
        "group:rankwatch_collective_bus_bytes:mean",
        _COLLECTIVE,
        "Mean bus bytes of a collective.",
    ),
    recorded(
        "run:rankwatch_step_local_seconds:median",
        _RUN,
        "Median over the stages of the run of the median of the mean local seconds of their ranks.",
    ),
    recorded(
        "group:rankwatch_collective_transfer_seconds:growth",
        _COLLECTIVE,
        "Transfer time over its baseline, its own median of the hours before.",
    ),
    recorded(
        "group:rankwatch_network_degraded:share",
        _COLLECTIVE,
        "Share of time that the growth of transfers costs; only where the network is to blame.",
    ),
)

_ESTIMATES = tuple(
    recorded(name, labels, f"What `{copy}` is copied from: it is evaluated every `ticket_interval_seconds`.")
    for name, labels, copy in (
        ("stage:rankwatch_slow_stage:estimate", _STAGE, "stage:rankwatch_slow_stage:slowdown"),
        ("run:rankwatch_unequal_batches:estimate", _RUN, "run:rankwatch_unequal_batches:share"),
        ("run:rankwatch_jitter:estimate", _RUN, "run:rankwatch_jitter:share"),
        ("run:rankwatch_slow_data_loading:estimate", _RUN, "run:rankwatch_slow_data_loading:share"),
        ("group:rankwatch_network_degraded:estimate", _COLLECTIVE, "group:rankwatch_network_degraded:share"),
    )
)

_COLLECTIVES = (
    recorded(
        "group:rankwatch_collective_bus_bandwidth:max",
        (*_GROUP, Label.OPERATION, Label.SIZE_CLASS),
        "Bytes per second on the bus while the group transfers, by the formulas of nccl-tests: those of a "
        "transfer over its time on the node of the last arriver, which waits for none.",
    ),
)

_ALERTS = (
    recorded(
        "alert:rankwatch_held_back:bool",
        (
            *("alertname", "severity", *_RANK, Label.NODE, Label.GPU, Label.REASON, Label.DEVICE, Label.PORT),
            *(Label.PATH, Label.COLLECTOR, Label.XID),
        ),
        "1 for each firing alert that another one explains: Alertmanager holds it back by the same rules.",
    ),
)

RECORDED_SERIES: tuple[RecordedSeries, ...] = (
    *_PROGRESS,
    *RECORDED_REPLICAS,
    *RECORDED_CHECKPOINTS,
    *RECORDED_STALLS,
    *RECORDED_NODES,
    *RECORDED_LIFE,
    *RECORDED_OBJECTIVES,
    *_STEPS,
    *RECORDED_STRAGGLERS,
    *_STAGES,
    *_VARIATION,
    *_JITTER,
    *_DATA_LOADING,
    *_NETWORK,
    *_ESTIMATES,
    *_COLLECTIVES,
    *RECORDED_GOODPUT,
    *RECORDED_COST,
    *RECORDED_HARDWARE,
    *_ALERTS,
)
