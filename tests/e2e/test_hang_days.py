"""Hang days: a rank of a real job holds all others up, and the alert that is delivered names that rank.

All jobs run at once, so that the file takes as long as its slowest alert. How long each takes is measured by
`python -m tests.bench.live_hang`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pytest

from rankwatch_alerts import Alert, RuleConfig
from support.e2e.game_day import MonitoredSystem, monitored_system
from support.e2e.hang_days import (
    HANG_FAULTS,
    begin_hangs,
    begin_waiting,
    hang_alerts,
    named_in,
    stop_process,
    struck_ranks,
)
from support.jobs.torch_release import NO_GLOO_RECORDER, serves_gloo_recorder
from support.servers.prometheus import require

pytestmark = pytest.mark.e2e

NODE = "node-a"
SEED = 20
STOPPED = "stopped"
"""A run without a fault of the trainer that hangs."""
STOPPED_RANK = 2
NEEDS_RECORDER = frozenset(
    run for run, fault in HANG_FAULTS.items() if fault.alert == Alert.COLLECTIVES_DESYNCHRONISED
)
"""Runs whose ranks wait in different collectives, which only gloo's flight recorder tells."""


class HangDay(NamedTuple):
    """The system, and the rank that is struck in each run."""

    system: MonitoredSystem
    struck: dict[str, int]


@pytest.fixture(scope="module")
def day(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HangDay]:
    """All jobs are under way, and the process of one rank has been stopped."""
    require("prometheus", "prometheus-alertmanager")
    struck = struck_ranks(SEED)
    with monitored_system(tmp_path_factory.mktemp("hang-day"), RuleConfig.for_demo(), (NODE,)) as system:
        begin_hangs(system, NODE, struck)
        begin_waiting(system, NODE, STOPPED, late_rank=0)
        stop_process(system, STOPPED, STOPPED_RANK)
        yield HangDay(system, struck)


@pytest.mark.parametrize("run", HANG_FAULTS)
def test_the_alert_names_the_rank_that_holds_up_the_run(run: str, day: HangDay) -> None:
    """With its node, under the alert for this kind of hang, and in words."""
    if run in NEEDS_RECORDER and not serves_gloo_recorder():
        pytest.skip(NO_GLOO_RECORDER)
    alert = named_in(day.system, run).alert
    rank = str(day.struck[run])
    assert (alert.name, alert.labels["rank"], alert.labels["node"]) == (HANG_FAULTS[run].alert, rank, NODE)
    assert f"rank {rank} " in alert.annotations["description"].lower()
    assert "not known" not in alert.annotations["description"]


def test_a_rank_that_is_stopped_while_it_waits_is_named(day: HangDay) -> None:
    """All ranks wait in the same collective then; but this one does not answer any more."""
    alert = named_in(day.system, STOPPED).alert
    rank = str(STOPPED_RANK)
    assert (alert.name, alert.labels["rank"], alert.labels["node"]) == (Alert.RUN_STALLED, rank, NODE)


def test_no_other_rank_is_named(day: HangDay) -> None:
    """Neither a victim, nor by another alert for the same hang."""
    told = HANG_FAULTS.keys() - (frozenset() if serves_gloo_recorder() else NEEDS_RECORDER)
    for run in told:
        named_in(day.system, run)
    for run in told:
        rank = day.struck[run]
        named = {(each.name, each.labels.get("rank")) for each in hang_alerts(day.system, run)}
        assert named == {(HANG_FAULTS[run].alert, str(rank))}
