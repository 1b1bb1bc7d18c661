"""When an incident begins, how long it lasts, and what belongs to it, and the turns that users take."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankwatch.conventions.states import IncidentKind, RankState
from rankwatch_agent.incidents.collector import IncidentsCollector
from rankwatch_agent.incidents.diagnosis import root_causes_of
from rankwatch_agent.incidents.episodes import (
    MAX_GONE,
    MAX_LOSS_AGE_SECONDS,
    MAX_PENDING,
    MIN_OPEN_SECONDS,
    Episodes,
    IncidentRegistry,
)
from rankwatch_agent.runtime.collector import Schedule
from rankwatch_agent.training.collector import RanksCollector
from rankwatch_agent.training.conditions import RankCondition, RunConditions
from support.incidents.incidents import condition, incident, run_of
from support.processes.users import ALICE, BOB, become, node_directory, run_as
from support.training.ranks import rank

__all__ = ["node_directory"]


STALL, LOST = IncidentKind.STALL, IncidentKind.LOST_RANK


def observe(episodes: Episodes, moment: float, *ranks: RankCondition, run: str = "job") -> list[IncidentKind]:
    """Causes of the incidents that these ranks of one run open at this moment."""
    opened = episodes.observe({run: run_of(ranks, run=run, moment=moment)}, moment)
    return [each.kind for each in opened]


@pytest.mark.parametrize(
    ("moment", "opens"), [(109.0, False), (129.0, False), (131.0, True)], ids=["timeout", "floor", "beyond"]
)
def test_stall_threshold(moment: float, opens: bool) -> None:
    """A stall exceeds both the learnt timeout (10 s) and the configured minimum (30 s)."""
    assert bool(observe(Episodes(30.0), moment, condition(0), condition(1))) is opens


def test_no_stall() -> None:
    """Progress or an unknown history is no stall. Ranks that have ended do not count as making progress."""
    episodes = Episodes(30.0)
    assert observe(episodes, 500.0, condition(0), condition(1, progress=499.0)) == []
    assert observe(episodes, 500.0, condition(0), condition(1, timeout=None)) == []
    assert observe(episodes, 500.0, condition(0), condition(1, state=RankState.FINISHED)) == [STALL]


def test_one_incident_per_episode() -> None:
    """It ends when a rank makes progress, after a minute at the earliest."""
    episodes = Episodes(30.0)
    assert [observe(episodes, moment, condition(0)) for moment in (131.0, 132.0, 500.0)] == [[STALL], [], []]
    assert observe(episodes, 501.0, condition(0, progress=500.5)) == []
    assert "job" not in episodes.open
    assert observe(episodes, 540.0, condition(0, progress=500.5)) == [STALL]
    assert observe(episodes, 541.0, condition(0, progress=540.5)) == []
    assert "job" in episodes.open
    assert observe(episodes, 541.0 + MIN_OPEN_SECONDS, condition(0, progress=600.0)) == []
    assert "job" not in episodes.open
    assert episodes.totals == {("job", STALL): 2, ("job", LOST): 0}


def test_runs_that_come_and_go() -> None:
    """Lost ranks of runs that are gone at once hide no open incident of another user."""
    episodes, lost = Episodes(30.0), RankState.LOST
    observe(episodes, 101.0, condition(0, state=lost, owner=1), run="honest")
    for n in range(3 * MAX_GONE):
        observe(episodes, 102.0, condition(0, state=lost, owner=2), run=f"fake{n}")
    assert len(episodes.open) == MAX_GONE + 1
    assert {"honest", f"fake{3 * MAX_GONE - 1}"} < episodes.open.keys()


def test_losses_before_a_stall() -> None:
    """One incident with the stall: a second rank is lost a second later, and the others wait for both."""
    episodes = Episodes(30.0)
    lost = [condition(0, state=RankState.LOST), condition(1, state=RankState.LOST)]
    assert observe(episodes, 101.0, lost[0], condition(1), condition(2)) == [LOST]
    assert observe(episodes, 102.0, *lost, condition(2)) == []
    assert observe(episodes, 300.0, *lost, condition(2)) == []
    assert observe(episodes, 301.0, *lost, condition(2, progress=300.5)) == []
    assert "job" not in episodes.open
    assert observe(episodes, 302.0, *lost, condition(2, progress=300.5)) == []
    assert observe(episodes, 400.0, *lost, condition(2, progress=300.5)) == [STALL]


def test_kills_during_a_stall() -> None:
    """They are no second incident. The run ends, and the stall with it."""
    episodes = Episodes(30.0)
    assert observe(episodes, 200.0, condition(0), condition(1)) == [STALL]
    killed = [condition(number, state=RankState.LOST) for number in (0, 1)]
    assert observe(episodes, 201.0, *killed) == []
    assert observe(episodes, 200.0 + MIN_OPEN_SECONDS, *killed) == []
    assert not episodes.open


def test_loss_after_a_restart() -> None:
    """It is another incident, even if the process has the same id, as the first of a container has."""
    episodes = Episodes(30.0)
    assert observe(episodes, 101.0, condition(0, state=RankState.LOST)) == [LOST]
    assert observe(episodes, 165.0, condition(0, progress=160.0)) == []
    assert observe(episodes, 166.0, condition(0, progress=165.5, state=RankState.LOST)) == [LOST]


def test_loss_before_the_start() -> None:
    """An old loss is no incident when the agent starts. A rank lost shortly before the start is one."""
    old, new = Episodes(30.0), Episodes(30.0)
    dead = condition(0, state=RankState.LOST, progress=100.0)
    assert observe(old, 101.0 + MAX_LOSS_AGE_SECONDS, dead, condition(1, progress=700.0)) == []
    assert observe(new, 99.0 + MAX_LOSS_AGE_SECONDS, dead, condition(1, progress=690.0)) == [LOST]


def test_forgotten_run() -> None:
    """It leaves no state, because thousands of runs come and go. An open incident keeps its minute."""
    episodes = Episodes(30.0)
    for number in range(3000):
        observe(episodes, 1000.0 + number, condition(0), run=f"job{number}")
    assert len(episodes.open) <= MIN_OPEN_SECONDS + 1
    assert len(episodes.totals) <= 2 * (MIN_OPEN_SECONDS + 2)


def test_boxes_of_an_earlier_boot() -> None:
    """They are no incident. The monotonic clock restarted, so their last progress lies in the future."""
    lost = condition(0, state=RankState.LOST, progress=90_000.0)
    assert observe(Episodes(30.0), 60.0, lost) == []


def root_causes(episodes: Episodes) -> list[int]:
    """Ranks that the open incident names before any evidence is kept."""
    return [each.rank for each in root_causes_of(episodes.open["job"])]


def test_loss_of_an_earlier_attempt() -> None:
    """It is ignored, because the rank may run on another node now. No later stall, loss or end names it."""
    episodes = Episodes(30.0)
    first = [condition(number, started=10.0) for number in (0, 1, 3)]
    moved = condition(3, state=RankState.LOST, started=10.0)
    assert observe(episodes, 101.0, *first) == []
    assert observe(episodes, 102.0, *first[:2], moved) == [LOST]
    assert root_causes(episodes) == [3]
    again = [condition(number, started=120.0, progress=990.0, pid=2) for number in (0, 1)]
    assert observe(episodes, 1000.0, *again, moved) == []
    assert observe(episodes, 1100.0, *again, moved) == [STALL]
    assert [each.rank for each in episodes.open["job"].condition.ranks] == [0, 1]
    going = [condition(number, started=120.0, progress=1200.0, pid=2) for number in (0, 1)]
    assert observe(episodes, 1201.0, *going, moved) == []
    died = condition(1, state=RankState.LOST, started=120.0, progress=1200.0, pid=2)
    assert observe(episodes, 1202.0, going[0], died, moved) == [LOST]
    assert root_causes(episodes) == [1]
    over = condition(0, state=RankState.FINISHED, started=120.0, progress=1300.0, pid=2)
    assert observe(episodes, 1301.0, over, died, moved) == []
    assert observe(episodes, 1302.0, over, died, moved) == []


def test_start_after_a_restart() -> None:
    """The earlier attempt is ignored. A rank whose peers went on without a restart is still reported."""
    lost = condition(3, state=RankState.LOST, started=10.0)
    assert observe(Episodes(30.0), 150.0, condition(0, started=120.0, progress=149.0), lost) == []
    assert observe(Episodes(30.0), 150.0, condition(0, started=10.0, progress=149.0), lost) == [LOST]


def test_staggered_start_is_one_attempt() -> None:
    """A rank that dies in its first seconds counts for those that started a little later."""
    lost = condition(3, state=RankState.LOST, started=100.0)
    assert observe(Episodes(30.0), 131.0, condition(0, started=130.0, progress=130.0), lost) == [LOST]


def test_only_the_new_loss_is_named() -> None:
    """A trainer that tolerates losses restarts nobody."""
    episodes = Episodes(30.0)
    old = condition(3, state=RankState.LOST, started=10.0)
    living = [condition(number, started=10.0, progress=101.5) for number in (0, 1)]
    assert observe(episodes, 101.0, *living, old) == [LOST]
    assert observe(episodes, 200.0, condition(0, started=10.0, progress=199.0), living[1], old) == []
    died = condition(1, state=RankState.LOST, started=10.0, progress=299.0)
    assert observe(episodes, 300.0, condition(0, started=10.0, progress=299.0), died, old) == [LOST]
    assert root_causes(episodes) == [1]


def test_turns_of_owners() -> None:
    """Each user's oldest incident comes next, and the user with most of them loses the oldest."""
    registry = IncidentRegistry()
    honest = incident([condition(owner=BOB)], run="job", number=1)
    fakes = [incident([condition(owner=ALICE)], run=f"fake{n}", number=2 + n) for n in range(100)]
    registry.update({}, [honest])
    registry.update({}, fakes)
    assert registry.dropped == 101 - MAX_PENDING
    served = [registry.next_pending() for _ in range(MAX_PENDING + 1)]
    assert served[:2] == [honest, fakes[-MAX_PENDING + 1]]
    assert served[-2:] == [fakes[-1], None]
    registry.update({}, [*fakes[:2], honest])
    assert registry.next_pending() == honest


@pytest.mark.process
def test_fake_lost_runs(node_directory: Path) -> None:
    """A hundred fake lost runs of one user do not keep the agent from the evidence of another user's run."""
    conditions, registry = RunConditions(), IncidentRegistry()
    ranks = RanksCollector(directory=node_directory, conditions=conditions)
    incidents = IncidentsCollector(
        conditions=conditions, registry=registry, stall_seconds=30.0, schedule=Schedule(1.0, 5.0)
    )
    run_as(ALICE, node_directory, "for n in range(100): box(f'fake{n}', 0, capacity=256)")
    ranks.collect()
    incidents.collect()
    assert registry.next_pending() is not None
    with rank(node_directory, "steps(1)\nready()", before=become(BOB)):
        ranks.collect()
    ranks.collect()
    incidents.collect()
    pending = registry.next_pending()
    assert pending is not None and (pending.run, pending.owner) == ("job", BOB)
