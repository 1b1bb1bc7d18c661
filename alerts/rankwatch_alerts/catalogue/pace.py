"""The indicators of how fast a run goes, and of what holds it up."""

from __future__ import annotations

from rankwatch_alerts.catalogue.sli import sli
from rankwatch_alerts.rules import Alert

_OWN_PAST = "what is good differs between runs; the panel shows the run's own past"
_COST = "run_cause:rankwatch_lost_time:share"

STEPS = (
    sli(
        "progress",
        "Does the run complete steps?",
        "run:rankwatch_progress_timestamp_seconds:max",
        alerts=(Alert.RUN_STALLED,),
    ),
    sli(
        "step latency",
        "How long do steps take: p50, p95, p99?",
        "rankwatch_step_duration_seconds",
        no_alert=_OWN_PAST,
    ),
    sli(
        "step split",
        "Which part of the step takes the time?",
        "rankwatch_step_phase_seconds_total",
        "rankwatch_recent_step_compute_seconds",
        "rankwatch_recent_data_wait_ratio",
        alerts=(
            Alert.SLOW_STAGE,
            Alert.SLOW_DATA_LOADING,
        ),
    ),
    sli("throughput", "How many samples and tokens a second?", "rankwatch_work_total", no_alert=_OWN_PAST),
)

COLLECTIVES = (
    sli(
        "gradient synchronisation",
        "How long do collectives take, and how much of it is waiting?",
        "rankwatch_collective_seconds_total",
        "rankwatch_collective_wait_seconds_total",
        "group:rankwatch_collective_transfer_seconds:mean",
        alerts=(Alert.NETWORK_DEGRADED,),
    ),
    sli(
        "bus bandwidth",
        "How fast are transfers, by group, operation and size?",
        "group:rankwatch_collective_bus_bandwidth:max",
        no_alert="the alert on the network judges the time of a transfer against its own past",
    ),
)

STRAGGLERS = (
    sli(
        "slow rank",
        "Which rank does the run wait for, why, and what does it cost?",
        "rank:rankwatch_straggler:slowdown",
        "rank:rankwatch_step_local_seconds:residual",
        alerts=(Alert.STRAGGLER,),
    ),
    sli(
        "slow stage",
        "Is a pipeline stage slower than the others?",
        "stage:rankwatch_step_compute_seconds:ratio",
        alerts=(Alert.SLOW_STAGE,),
    ),
    sli(
        "unequal batches",
        "Do ranks wait for unequal batches?",
        "run:rankwatch_unequal_batches:share",
        _COST,
        alerts=(Alert.UNEQUAL_BATCHES,),
    ),
    sli(
        "data loading",
        "Do most ranks wait for input?",
        "run:rankwatch_slow_data_loading:share",
        _COST,
        alerts=(Alert.SLOW_DATA_LOADING,),
    ),
    sli(
        "network",
        "Did transfers become slow?",
        "group:rankwatch_network_degraded:share",
        _COST,
        alerts=(Alert.NETWORK_DEGRADED,),
    ),
    sli("jitter", "Are ranks late in turn?", "run:rankwatch_jitter:share", _COST, alerts=(Alert.JITTER,)),
)
