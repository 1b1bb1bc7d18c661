"""Plain words that boards show in the place of our own: causes, reasons, phases, and states of time."""

from __future__ import annotations

import re
from collections.abc import Mapping

from rankwatch.conventions import Cause, SlowPhase
from rankwatch.conventions.goodput import GoodputState
from rankwatch_alerts import HARDWARE_ALERTS, Alert

Words = Mapping[str, str]
"""A value of a label, and what a reader understands."""

_SHORT_FORMS = {
    **{each: each.upper() for each in ("Gpu", "Gpus", "Nic", "Rdma", "Tcp", "Xid", "Ecc")},
    "Gpus": "GPUs",
    "Nvlink": "NVLink",
    "Pcie": "PCIe",
    "Oom": "out-of-memory",
}


def words_of(alert: Alert) -> str:
    """The name of an alert as words: RankwatchGpuLost is "GPU lost"."""
    parts = re.findall("[A-Z][a-z]+", alert.removeprefix("Rankwatch"))
    return " ".join(_SHORT_FORMS.get(each, each.lower()) for each in parts)


_OF_STALLS = {
    "rank_known": "holds up its peers",
    "rank_unknown": "not known yet",
    "not_enqueued": "did not enter the collective",
    "not_in_collective": "is in no collective",
    "unresponsive": "does not answer",
    "disappeared": "process is gone",
    "waited": "killed while it waited",
    "killed_while_waiting": "killed while it waited",
    "node_unseen": "its node is not seen",
    "run_vanished": "all of the run vanished",
    "operation": "calls another collective",
    "number": "calls a collective less or more",
}
_OF_HARDWARE = {
    "collector_state": "collector fails",
    "sram_ecc_threshold": "too many SRAM errors",
    "row_remap_pending": "memory row waits for a reset",
    "row_remap_failed": "memory row not replaced",
    "row_remap_exhausted": "no spare memory rows",
    "retired_pages": "too many retired pages",
    "page_retirement_pending": "memory page waits for a reset",
    "fabric_manager": "fabric manager",
    "marked": "packets are marked",
    "resent": "packets are sent again",
    "gone": "is gone",
}
_OF_TELEMETRY = {
    "agents_missing": "fewer agents than nodes",
    "agent_down": "agent does not answer",
    "prometheus_down": "a Prometheus is down",
}
_OF_PACE = {
    "own_past": "slower than before",
    "last_run": "slower than the last run",
    "mfu": "low share of peak FLOPs",
    "gpu": "GPUs are little used",
    "blocking": "save blocks training",
    Cause.SLOW_STAGE: "slow pipeline stage",
    Cause.UNEQUAL_BATCHES: "unequal batches",
    Cause.DATA_LOADING: "data loading",
    Cause.SLOW_RANK: "slow rank",
    Cause.NETWORK: "slow network",
    Cause.JITTER: "ranks late in turn",
    **{f"slow: {each}": f"slow: {each.replace('_', ' ')}" for each in SlowPhase},
}
CAUSES: Words = {**_OF_STALLS, **_OF_HARDWARE, **_OF_TELEMETRY, **_OF_PACE}
"""Causes of suspected ranks and of lost time, and the reasons of alerts."""
ALERTS: Words = {
    **{each: words_of(each) for each in Alert},
    Alert.LOSS_NON_FINITE: "loss NaN or infinite",
}
_OF_RANKS = (
    *(Alert.RANK_LOST, Alert.CHECKPOINT_FAILED, Alert.CHECKPOINT_DAMAGED, Alert.CHECKPOINT_WRITER_SLOW),
    *(Alert.RESUME_FAILED, Alert.RESUMED_FROM_OLDER, Alert.REPLICAS_DISAGREE),
)
"""Alerts, where one of them is the only cause that is known."""
SUSPICIONS: Words = {
    **{each: CAUSES[each] for each in _OF_STALLS},
    **_OF_PACE,
    **{each: ALERTS[each] for each in (*HARDWARE_ALERTS, *_OF_RANKS)},
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
