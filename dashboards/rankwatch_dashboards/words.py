"""Plain words that boards show in the place of our own: causes, reasons, phases, and states of time."""

from __future__ import annotations

import re
from collections.abc import Mapping

from rankwatch.conventions.states import Cause, GoodputState, SlowPhase
from rankwatch_alerts import Alert

Words = Mapping[str, str]
"""A value of a label, and what a reader understands."""

_SHORT_FORMS = {"Gpu": "GPU", "Gpus": "GPUs"}


def words_of(alert: Alert) -> str:
    """The name of an alert as words: RankwatchGpuFault is "GPU fault"."""
    parts = re.findall("[A-Z][a-z]+", alert.removeprefix("Rankwatch"))
    return " ".join(_SHORT_FORMS.get(each, each.lower()) for each in parts)


_OF_STALLS = {
    "rank_known": "holds up its peers",
    "rank_unknown": "rank not known yet",
    "mismatch_known": "collectives differ, rank known",
    "mismatch_unknown": "collectives differ",
    "not_enqueued": "did not enter the collective",
    "not_in_collective": "is in no collective",
    "unresponsive": "does not answer",
    "disappeared": "process is gone",
    "waited": "killed while it waited",
    "killed_while_waiting": "killed while it waited",
    "ranks_lost": "ranks are gone",
    "restarts_fail": "restarts do not help",
    "node_unseen": "its node is not seen",
    "run_vanished": "all of the run vanished",
    "operation": "calls another collective",
    "number": "calls a collective less or more",
}
_OF_PARTS = {
    "lost": "lost",
    "missing": "missing",
    "driver_unresponsive": "driver does not answer",
    "ecc_uncorrected": "uncorrected memory error",
    "xid": "XID error",
    "needs_reset": "needs a reset",
    "nvlink_down": "NVLink down",
    "throttled": "throttled",
    "power_brake": "power brake",
    "pcie": "PCIe link degraded",
    "nvlink_errors": "NVLink errors",
    "sram_ecc_threshold": "too many SRAM errors: replace it",
    "row_remap_failed": "memory row not replaced: replace it",
    "row_remap_exhausted": "no spare memory rows: replace it",
    "retired_pages": "too many retired pages: replace it",
    "rdma": "RDMA",
    "nic": "network interface",
    "flapping": "goes up and down",
    "marked": "packets are marked",
    "resent": "packets are sent again",
    "tcp": "TCP sends again",
    "clock": "clock is wrong",
    "clock_differs": "clock differs from the others",
    "oom_kill": "out-of-memory kill",
}
_OF_CHECKPOINTS = {
    "damaged": "damaged",
    "resume_failed": "resume failed",
    "disk_full": "no space for the next one",
    "failed": "save or restore failed",
    "stale": "too old",
    "disk_filling": "disk is filling",
    "resumed_from_older": "resumed from an older one",
    "blocking": "save blocks training",
    "one_writer": "one rank writes slowly",
    "overlap": "saves overlap",
}
_OF_TELEMETRY = {
    "agents_missing": "fewer agents than nodes",
    "agent_down": "agent does not answer",
    "prometheus_down": "a Prometheus is down",
    "rules_failing": "rules fail",
    "collector": "a collector fails",
    "collector_state": "a collector fails",
    "records_missed": "records are missed",
    "black_boxes": "black boxes are left out",
}
_OF_LEARNING = {
    "non_finite": "NaN or infinity",
    "loss_scale": "loss scale collapsed",
    "data_skew": "a rank has other data",
    "norm": "norm explodes",
    "trend": "above its trend",
}
_OF_PACE = {
    "last_run": "slower than the last run",
    "own_past": "slower than before",
    "behind_plan": "ends after its deadline",
    "startup": "start-up is slow",
    "mfu": "low share of peak FLOPs",
    Cause.SLOW_STAGE: "slow pipeline stage",
    Cause.UNEQUAL_BATCHES: "unequal batches",
    Cause.DATA_LOADING: "data loading",
    Cause.SLOW_RANK: "slow rank",
    Cause.NETWORK: "slow network",
    Cause.JITTER: "ranks late in turn",
    **{f"slow: {each}": f"slow: {each.replace('_', ' ')}" for each in SlowPhase},
}
ALERTS: Words = {each: words_of(each) for each in Alert}
REASONS: Words = {
    **_OF_STALLS,
    **_OF_PARTS,
    **_OF_CHECKPOINTS,
    **_OF_TELEMETRY,
    **_OF_LEARNING,
    **_OF_PACE,
    "gradient_norm": "gradient norm differs",
}
"""Reasons of alerts, beside the words of the alert."""
_KNOWN_BY_ALERT = {
    Alert.GPU_FAULT: "lost missing driver_unresponsive ecc_uncorrected xid needs_reset nvlink_down",
    Alert.GPU_DEGRADED: "throttled power_brake pcie nvlink_errors sram_ecc_threshold row_remap_failed "
    "row_remap_exhausted retired_pages",
    Alert.LINK_DOWN: "rdma nic flapping",
    Alert.LINK_ERRORS: "rdma nic marked resent tcp",
    Alert.HOST_FAULT: "clock clock_differs oom_kill",
    Alert.CHECKPOINT_AT_RISK: "damaged resume_failed disk_full failed stale disk_filling resumed_from_older",
    Alert.CHECKPOINT_SLOW: "one_writer overlap",
    Alert.REPLICAS_DISAGREE: "rank_known gradient_norm",
}
"""Alerts, with their reasons, that may be all that is known of a suspect."""
SUSPICIONS: Words = {
    **_OF_STALLS,
    **_OF_PACE,
    **{
        f"{alert} {reason}": f"{ALERTS[alert]}: {REASONS[reason]}"
        for alert, reasons in _KNOWN_BY_ALERT.items()
        for reason in reasons.split()
    },
}
"""What the cause of a run can be: few, because each is an override in the JSON."""
PHASES: Words = {SlowPhase.DATA_LOADING: "data loading", SlowPhase.COMPUTE: "compute"}
STATES: Words = {
    GoodputState.STARTUP: "start-up",
    GoodputState.DATA: "waiting for data",
    GoodputState.STRAGGLER: "slow ranks",
    GoodputState.CHECKPOINT: "checkpoints",
    GoodputState.RESTORE: "loading a checkpoint",
    GoodputState.REPLAYED: "steps done again",
    GoodputState.DOWN: "down between attempts",
    GoodputState.IDLE: "idle, ranks ended",
    GoodputState.UNKNOWN: "not known",
}
"""States of goodput, where their own names say less."""


def in_words(series: str, label: str, words: Words) -> str:
    """The series with these words as values of the label, for names that hold other labels, too."""
    for value, text in words.items():
        series = f'label_replace({series}, "{label}", "{text}", "{label}", "{value}")'
    return series
