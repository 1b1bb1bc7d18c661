"""Jobs of the reference trainer that hang, each by another fault of one rank, on a whole monitored system."""

from __future__ import annotations

import os
import random
import signal
import time
from typing import NamedTuple

from rankwatch_alerts import Alert
from rankwatch_cli.demo.receiver import Alert as DeliveredAlert
from support.e2e.game_day import SECONDS_TO_ALERT, MonitoredSystem
from support.servers.prometheus import poll, query

RANKS = 4
STRUCK_STEP = 45
"""Two checkpoints (of steps 20 and 40) and forty steps have taught what is normal by then."""
LEARNT_STEP = 20
"""Enough without a checkpoint: the first five steps of a process count as its start."""
SECONDS_TO_HANG = 300.0
"""Longest wait until a job has come that far, on a machine busy with other tests."""
_LOOK_BACK = "[10m]"


class HangFault(NamedTuple):
    """A way to hang, and the alert that must name the rank."""

    fault: str
    """Of the trainer."""
    alert: Alert


HANG_FAULTS: dict[str, HangFault] = {
    "asleep": HangFault("stall", Alert.RUN_STALLED),
    "killed": HangFault("kill", Alert.RANK_LOST),
    "skips-a-collective": HangFault("skip-collective", Alert.COLLECTIVES_DESYNCHRONISED),
    "calls-another-collective": HangFault("mismatched-collective", Alert.COLLECTIVES_DESYNCHRONISED),
    "stuck-in-data": HangFault("stuck-data", Alert.RUN_STALLED),
}
"""By the name of the run."""

OF_HANGS = frozenset(each.alert for each in HANG_FAULTS.values())
"""The alerts that may name a rank in a hang."""


class Named(NamedTuple):
    """The alert for a hang, as it was delivered."""

    alert: DeliveredAlert
    timeout_seconds: float
    """Learnt by the run; below the floor of the rules the floor counts."""
    seconds: float
    """From the last progress of the run to the arrival of the alert."""


def struck_ranks(seed: int) -> dict[str, int]:
    """Run -> the rank that is struck, drawn at random."""
    draw = random.Random(seed)
    return {run: draw.randrange(RANKS) for run in HANG_FAULTS}


def begin_hangs(system: MonitoredSystem, node: str, struck: dict[str, int]) -> None:
    """Start one job for each run; all hang at about the same step."""
    for run, rank in struck.items():
        fault = f"{HANG_FAULTS[run].fault}:rank={rank},from={STRUCK_STEP}"
        system.train(run, (fault,), node=node, ranks=RANKS)


def begin_waiting(system: MonitoredSystem, node: str, run: str, *, late_rank: int) -> None:
    """Start a job in which one rank is so late that all others wait in a collective most of the time."""
    system.train(run, (f"straggler:rank={late_rank},factor=3",), node=node, ranks=RANKS)


def stop_process(system: MonitoredSystem, run: str, rank: int) -> None:
    """Stop the process of a rank, all threads of it, once the run has taught what is normal."""
    poll(lambda: system.steps(run) >= LEARNT_STEP, SECONDS_TO_HANG, f"steps of {run}")
    (info,) = query(system.prometheus_url, f'rankwatch_rank_info{{run="{run}", rank="{rank}"}}')
    os.kill(int(info["metric"]["pid"]), signal.SIGSTOP)


def named_in(system: MonitoredSystem, run: str) -> Named:
    """The first alert of a hang that names a rank of this run."""
    poll(lambda: system.steps(run) >= LEARNT_STEP, SECONDS_TO_HANG, f"steps of {run}")

    def find() -> DeliveredAlert | None:
        return next((each for each in hang_alerts(system, run) if "rank" in each.labels), None)

    alert = poll(find, SECONDS_TO_ALERT, f"alert that names a rank of {run}")
    progress = _value(system, f'run:rankwatch_progress_timestamp_seconds:max{{run="{run}"}}')
    timeout = _value(
        system, f'max(max_over_time(rankwatch_progress_timeout_seconds{{run="{run}"}}{_LOOK_BACK}))'
    )
    arrived = time.time() - (time.monotonic() - alert.received_at)
    return Named(alert, timeout, arrived - progress)


def hang_alerts(system: MonitoredSystem, run: str) -> list[DeliveredAlert]:
    """Every alert about a hang of this run that was delivered up to now."""
    return [each for each in system.delivered() if each.labels.get("run") == run and each.name in OF_HANGS]


def _value(system: MonitoredSystem, expression: str) -> float:
    (series,) = query(system.prometheus_url, expression)
    return float(series["value"][1])
