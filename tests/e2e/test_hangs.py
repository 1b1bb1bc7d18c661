"""Hangs of real jobs: one rank holds up all others, and the delivered alert names that rank.

All jobs run at once, so the file takes as long as its slowest alert. `python -m tests.bench.live_hang`
measures how long each takes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pytest

from rankwatch_alerts import Alert, RuleConfig
from support.e2e.hangs import (
    HANG_FAULTS,
    faulty_ranks,
    hang_alerts,
    hang_naming_a_rank,
    named_rank,
    start_hanging_jobs,
    start_waiting_job,
    stop_rank,
)
from support.e2e.monitored_system import MonitoredSystem, monitored_system
from support.jobs.torch_release import NO_GLOO_RECORDER, serves_gloo_recorder
from support.servers.prometheus import require

pytestmark = pytest.mark.e2e

NODE = "node-a"
SEED = 20
STOPPED = "stopped"
"""A run that hangs without a fault of the trainer: one of its processes is stopped."""
STOPPED_RANK = 2
NEEDS_RECORDER = frozenset(
    run for run, fault in HANG_FAULTS.items() if fault.alert == Alert.COLLECTIVES_DESYNCHRONISED
)
"""Runs whose ranks wait in different collectives, which only gloo's flight recorder shows."""


class HungJobs(NamedTuple):
    """The system, and the rank at fault in each run."""

    system: MonitoredSystem
    faulty: dict[str, int]


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HungJobs]:
    """All jobs run, and the process of one rank is stopped."""
    require("prometheus", "prometheus-alertmanager")
    faulty = faulty_ranks(SEED)
    with monitored_system(tmp_path_factory.mktemp("hangs"), RuleConfig.for_demo(), (NODE,)) as system:
        start_hanging_jobs(system, NODE, faulty)
        start_waiting_job(system, NODE, STOPPED, late_rank=0)
        stop_rank(system, STOPPED, STOPPED_RANK)
        yield HungJobs(system, faulty)


@pytest.mark.parametrize("run", HANG_FAULTS)
def test_rank_at_fault_is_named(run: str, jobs: HungJobs) -> None:
    """The alert for this kind of hang names the rank and its node."""
    if run in NEEDS_RECORDER and not serves_gloo_recorder():
        pytest.skip(NO_GLOO_RECORDER)
    alert = hang_naming_a_rank(jobs.system, run).alert
    rank = str(jobs.faulty[run])
    assert (alert.name, named_rank(alert)) == (HANG_FAULTS[run].alert, (rank, NODE))
    assert f"rank {rank} " in alert.annotations["description"].lower()
    assert "not known" not in alert.annotations["description"]


def test_stopped_rank(jobs: HungJobs) -> None:
    """A rank that is stopped while it waits is named.

    All ranks wait in the same collective, so only its missing answers show which one it is.
    """
    alert = hang_naming_a_rank(jobs.system, STOPPED).alert
    rank = str(STOPPED_RANK)
    assert (alert.name, named_rank(alert)) == (Alert.RUN_STALLED, (rank, NODE))


def test_no_other_rank_is_named(jobs: HungJobs) -> None:
    """No waiting rank is named, and no second alert comes for the same hang."""
    runs = HANG_FAULTS.keys() - (frozenset() if serves_gloo_recorder() else NEEDS_RECORDER)
    for run in runs:
        hang_naming_a_rank(jobs.system, run)
    for run in runs:
        named = {(each.name, named_rank(each)) for each in hang_alerts(jobs.system, run)}
        assert named == {(HANG_FAULTS[run].alert, (str(jobs.faulty[run]), NODE))}
