"""Hangs of real jobs: one rank holds up all others, and the delivered alert names that rank.

A cluster of the game day. `python -m tests.bench.live_hang` measures how long each takes.
"""

from __future__ import annotations

from contextlib import suppress
from typing import NamedTuple

import pytest

from rankwatch_alerts import Alert
from rankwatch_cli.demo.parts import Alert as DeliveredAlert
from support.e2e.game_day import GameDay
from support.e2e.hangs import (
    HANG_FAULTS,
    RANKS,
    HangFault,
    alert_naming_a_rank,
    faulty_ranks,
    hang_alerts,
    named_rank,
    start_hanging_jobs,
    start_waiting_job,
    stop_rank,
)
from support.e2e.monitored_system import MonitoredSystem
from support.jobs.torchrun import NO_GLOO_RECORDER, serves_gloo_recorder

pytestmark = [pytest.mark.process, pytest.mark.timeout(600)]

NODE = "node-a"
SEED = 20
STOPPED = "stopped"
"""A run that hangs without a fault of the trainer: one of its processes is stopped."""
STOPPED_RANK = 2
NEEDS_RECORDER = frozenset(run for run, fault in HANG_FAULTS.items() if fault.reason == "mismatch_known")
"""Runs whose ranks wait in different collectives, which only gloo's flight recorder shows."""


class HungJobs(NamedTuple):
    """The system, the rank at fault in each run, and the first alert of each run that names a rank."""

    system: MonitoredSystem
    faulty: dict[str, int]
    named: dict[str, DeliveredAlert]

    def check(self, run: str, fault: HangFault) -> None:
        """The alert of the run is this one, and names the rank at fault and its node."""
        if run in NEEDS_RECORDER and not serves_gloo_recorder():
            pytest.skip(NO_GLOO_RECORDER)
        assert run in self.named, hang_alerts(self.system, run)
        alert, rank = self.named[run], str(self.faulty[run])
        found = (alert.name, alert.labels["reason"], named_rank(alert))
        assert found == (fault.alert, fault.reason, (rank, NODE))


def play(day: GameDay) -> HungJobs:
    """All jobs run, and the process of one rank is stopped."""
    faulty, named = {**faulty_ranks(SEED), STOPPED: STOPPED_RANK}, {}
    system = day.cluster("hangs", (NODE,))
    system.stack.enter_context(day.room_for(len(faulty) * RANKS))
    start_hanging_jobs(system, NODE, faulty_ranks(SEED))
    start_waiting_job(system, NODE, STOPPED, late_rank=0)
    stop_rank(system, STOPPED, STOPPED_RANK)
    for run in faulty.keys() - (frozenset() if serves_gloo_recorder() else NEEDS_RECORDER):
        with suppress(pytest.fail.Exception):  # the test of each run tells which is missing
            named[run] = alert_naming_a_rank(system, run)
    system.end()
    return HungJobs(system, faulty, named)


@pytest.mark.parametrize("run", HANG_FAULTS)
def test_rank_at_fault_is_named(run: str, shown: HungJobs) -> None:
    """The alert for this kind of hang names the rank and its node."""
    shown.check(run, HANG_FAULTS[run])
    text = shown.named[run].annotations["description"]
    assert f"rank {shown.faulty[run]} " in text.lower()
    assert "not known" not in text


def test_stopped_rank(shown: HungJobs) -> None:
    """All ranks wait in the same collective, so only its missing answers show which one it is."""
    shown.check(STOPPED, HangFault("", Alert.RUN_STALLED, "rank_known"))


def test_no_other_rank_is_named(shown: HungJobs) -> None:
    """No waiting rank is named, and no second alert comes for the same hang."""
    for run in shown.named.keys() & HANG_FAULTS.keys():
        found = hang_alerts(shown.system, run)
        named = {(each.name, each.labels["reason"], named_rank(each)) for each in found}
        fault, rank = HANG_FAULTS[run], str(shown.faulty[run])
        assert named == {(fault.alert, fault.reason, (rank, NODE))}
