"""The indicators of how fast a run goes, and of what holds it up."""

from __future__ import annotations

from rankwatch_alerts.catalogue.sli import Good, sli
from rankwatch_alerts.delivery import Owner
from rankwatch_alerts.rules import Alert

_OWN_PAST = "what is good differs between runs; the panel shows the run's own past"
_DURATIONS = "sum by (cluster, run, le) (rate(rankwatch_step_duration_seconds_bucket[$window]))"
_COST = "run_cause:rankwatch_lost_time:share"

STEPS = (
    sli(
        "progress",
        "Does the run complete steps?",
        "run:rankwatch_progress_timestamp_seconds:max",
        figure="time() - run:rankwatch_progress_timestamp_seconds:max",
        unit="seconds",
        good=Good.LOWER,
        alerts=(Alert.RUN_STALLED,),
    ),
    sli(
        "step latency",
        "How long do steps take: p50, p95, p99?",
        "rankwatch_step_duration_seconds",
        "run:rankwatch_step_seconds:mean",
        figure=(
            f"histogram_quantile(0.95, {_DURATIONS})"
            f" / on (cluster, run) histogram_quantile(0.5, {_DURATIONS})"
        ),
        unit="p95 / p50",
        good=Good.LOWER,
        objective="step_latency_objective",
        window="step_window_seconds",
        alerts=(Alert.STEP_TIME_REGRESSED,),
    ),
    sli(
        "step split",
        "Which part of the step takes the time?",
        "rankwatch_step_phase_seconds_total",
        "rankwatch_recent_stage_compute_seconds",
        "rankwatch_recent_stage_data_wait_ratio",
        figure=(
            'sum by (cluster, run) (rate(rankwatch_step_phase_seconds_total{phase="data_wait"}[$window]))'
            " / on (cluster, run)"
            " sum by (cluster, run) (rate(rankwatch_step_phase_seconds_total[$window]))"
        ),
        unit="share of the step that waits for data",
        good=Good.LOWER,
        objective="data_loading_share",
        window="step_window_seconds",
        alerts=(
            Alert.SLOW_STAGE,
            Alert.SLOW_DATA_LOADING,
        ),
    ),
    sli(
        "throughput",
        "How many samples and tokens a second?",
        "rankwatch_work_total",
        figure="sum by (cluster, run, unit) (rate(rankwatch_work_total[$window]))",
        unit="work units / second",
        good=Good.HIGHER,
        window="step_window_seconds",
        needs="work units that the run records",
        no_alert=_OWN_PAST,
    ),
)

COLLECTIVES = (
    sli(
        "gradient synchronisation",
        "How long do collectives take, and how much of it is waiting?",
        "rankwatch_collective_seconds_total",
        "rankwatch_collective_wait_seconds_total",
        "group:rankwatch_collective_transfer_seconds:mean",
        figure=(
            "sum by (cluster, run) (rate(rankwatch_collective_wait_seconds_total[$window]))"
            " / on (cluster, run)"
            " sum by (cluster, run) (rate(rankwatch_collective_seconds_total[$window]))"
        ),
        unit="share of the time in collectives that waits",
        good=Good.LOWER,
        window="step_window_seconds",
        owner=Owner.PLATFORM,
        needs="more than one rank",
        alerts=(Alert.NETWORK_DEGRADED,),
    ),
    sli(
        "bus bandwidth",
        "How fast are transfers, by group, operation and size?",
        "group:rankwatch_collective_bus_bandwidth:max",
        figure="max by (cluster, run, operation) (group:rankwatch_collective_bus_bandwidth:max)",
        unit="bytes / second",
        good=Good.HIGHER,
        window="step_window_seconds",
        owner=Owner.PLATFORM,
        needs="more than one rank",
        no_alert="the alert on the network judges the time of a transfer against its own past",
    ),
)

STRAGGLERS = (
    sli(
        "slow rank",
        "Which rank does the run wait for, why, and what does it cost?",
        "rank:rankwatch_straggler:slowdown",
        "rank:rankwatch_step_local_seconds:residual",
        figure="max by (cluster, run) (rank:rankwatch_step_local_seconds:residual)",
        unit="excess over the median of the stage",
        good=Good.LOWER,
        objective="straggler_residual",
        window="step_window_seconds",
        needs="three ranks in a stage",
        alerts=(Alert.STRAGGLER,),
    ),
    sli(
        "slow stage",
        "Is a pipeline stage slower than the others?",
        "stage:rankwatch_step_compute_seconds:ratio",
        figure="max by (cluster, run) (stage:rankwatch_step_compute_seconds:ratio)",
        unit="multiple of the other stages",
        good=Good.LOWER,
        objective="stage_ratio",
        window="step_window_seconds",
        needs="several pipeline stages",
        alerts=(Alert.SLOW_STAGE,),
    ),
    sli(
        "unequal batches",
        "Do ranks wait for unequal batches?",
        "run:rankwatch_unequal_batches:share",
        _COST,
        figure='sum by (cluster, run) (run_cause:rankwatch_lost_time:share{cause="unequal_batches"})',
        unit="share of the step",
        good=Good.LOWER,
        objective="cause_cost",
        window="step_window_seconds",
        alerts=(Alert.UNEQUAL_BATCHES,),
    ),
    sli(
        "data loading",
        "Do most ranks wait for input?",
        "run:rankwatch_slow_data_loading:share",
        _COST,
        figure='sum by (cluster, run) (run_cause:rankwatch_lost_time:share{cause="data_loading"})',
        unit="share of the step",
        good=Good.LOWER,
        objective="cause_cost",
        window="step_window_seconds",
        alerts=(Alert.SLOW_DATA_LOADING,),
    ),
    sli(
        "network",
        "Did transfers become slow?",
        "group:rankwatch_network_degraded:share",
        _COST,
        figure='sum by (cluster, run) (run_cause:rankwatch_lost_time:share{cause="network"})',
        unit="share of the step",
        good=Good.LOWER,
        objective="cause_cost",
        window="step_window_seconds",
        owner=Owner.PLATFORM,
        alerts=(Alert.NETWORK_DEGRADED,),
    ),
    sli(
        "jitter",
        "Are ranks late in turn?",
        "run:rankwatch_jitter:share",
        _COST,
        figure='sum by (cluster, run) (run_cause:rankwatch_lost_time:share{cause="jitter"})',
        unit="share of the step",
        good=Good.LOWER,
        objective="cause_cost",
        window="step_window_seconds",
        alerts=(Alert.JITTER,),
    ),
)
