"""Jobs of the reference trainer that hang: one fault of one rank each, on a monitored system."""

from __future__ import annotations

import os
import random
import re
import signal
import time
from typing import NamedTuple

from rankwatch_alerts import Alert
from rankwatch_cli.demo.parts import Alert as DeliveredAlert
from support.e2e.monitored_system import SECONDS_TO_ALERT, MonitoredSystem
from support.servers.prometheus import poll, query

RANKS = 4
FAULT_STEP = 45
"""By then the timeout is learnt from two checkpoints (of steps 20 and 40) and forty steps."""
LEARNT_STEP = 20
"""Enough to learn a timeout without checkpoints: the first five steps count as the start of a process."""
SECONDS_TO_STEP = 300.0
"""Longest wait until a job has reached that step, on a machine that is busy with other tests."""
_LOOK_BACK = "[10m]"
_IN_TEXT = re.compile(r"[Rr]ank (\d+) \(node ([^,)]+)\)\.")


RANKS_LOST = ("ranks_lost", "killed_while_waiting", "waited")
"""Reasons of a failed run whose ranks were killed."""


class HangFault(NamedTuple):
    """A way to hang, and the alert that must name the rank."""

    fault: str
    """Name of the trainer's fault."""
    alert: Alert
    reason: str
    """Its label."""


HANG_FAULTS: dict[str, HangFault] = {
    "asleep": HangFault("stall", Alert.RUN_STALLED, "rank_known"),
    "killed": HangFault("kill", Alert.RUN_FAILED, "ranks_lost"),
    "skips-a-collective": HangFault("skip-collective", Alert.RUN_STALLED, "mismatch_known"),
    "calls-another-collective": HangFault("mismatched-collective", Alert.RUN_STALLED, "mismatch_known"),
    "stuck-in-data": HangFault("stuck-data", Alert.RUN_STALLED, "rank_known"),
}
"""By name of the run."""


class DeliveredHang(NamedTuple):
    """The delivered alert for a hang."""

    alert: DeliveredAlert
    timeout_seconds: float
    """The timeout that the run has learnt. The rules apply a floor to it."""
    seconds: float
    """From the last progress of the run to the arrival of the alert."""


def faulty_ranks(seed: int) -> dict[str, int]:
    """For each run the rank at fault, drawn at random."""
    draw = random.Random(seed)
    return {run: draw.randrange(RANKS) for run in HANG_FAULTS}


def start_hanging_jobs(system: MonitoredSystem, node: str, faulty: dict[str, int]) -> None:
    """Start a job for each run. All of them hang at about the same step."""
    for run, rank in faulty.items():
        fault = f"{HANG_FAULTS[run].fault}:rank={rank},from={FAULT_STEP}"
        system.train(run, (fault,), node=node, ranks=RANKS)


def start_waiting_job(system: MonitoredSystem, node: str, run: str, *, late_rank: int) -> None:
    """Start a job with a rank so slow that the others wait in a collective most of the time."""
    system.train(run, (f"straggler:rank={late_rank},factor=3",), node=node, ranks=RANKS)


def stop_rank(system: MonitoredSystem, run: str, rank: int) -> None:
    """Stop the process of a rank with all its threads, once a timeout is learnt."""
    poll(lambda: system.steps(run) >= LEARNT_STEP, SECONDS_TO_STEP, f"steps of {run}")
    info = f'rankwatch_rank_info{{run="{run}", rank="{rank}"}}'
    (found,) = poll(lambda: query(system.prometheus_url, info), SECONDS_TO_STEP, f"rank {rank} of {run}")
    os.kill(int(found["metric"]["pid"]), signal.SIGSTOP)


def alert_naming_a_rank(system: MonitoredSystem, run: str) -> DeliveredAlert:
    """Wait for the first hang alert that names a rank of this run."""
    poll(lambda: system.steps(run) >= LEARNT_STEP, SECONDS_TO_STEP, f"steps of {run}")

    def find() -> DeliveredAlert | None:
        return next((each for each in hang_alerts(system, run) if named_rank(each)), None)

    return poll(find, SECONDS_TO_ALERT, f"alert that names a rank of {run}")


def hang_naming_a_rank(system: MonitoredSystem, run: str) -> DeliveredHang:
    """The same, with its times."""
    alert = alert_naming_a_rank(system, run)
    recorded = (
        f'run:rankwatch_progress_timestamp_seconds:max{{run="{run}"}}'  # none once all ranks have ended
    )
    progress = _value(system, f"max(max_over_time({recorded}{_LOOK_BACK}))")
    timeout = _value(
        system, f'max(max_over_time(rankwatch_progress_timeout_seconds{{run="{run}"}}{_LOOK_BACK}))'
    )
    arrived = time.time() - (time.monotonic() - alert.received_at)
    return DeliveredHang(alert, timeout, arrived - progress)


def named_rank(alert: DeliveredAlert) -> tuple[str, str] | None:
    """The rank that an alert names, and its node: in its labels, or in its text where it is of the run."""
    if "rank" in alert.labels:
        return alert.labels["rank"], alert.labels["node"]
    found = _IN_TEXT.findall(alert.annotations["description"])
    return found[0] if len(found) == 1 else None


def hang_alerts(system: MonitoredSystem, run: str) -> list[DeliveredAlert]:
    """Every hang alert of this run delivered so far."""
    of_run = (each for each in system.delivered() if each.labels.get("run") == run)
    return [
        each for each in of_run if each.name == Alert.RUN_STALLED or each.labels.get("reason") in RANKS_LOST
    ]


def _value(system: MonitoredSystem, expression: str) -> float:
    (series,) = query(system.prometheus_url, expression)
    return float(series["value"][1])
