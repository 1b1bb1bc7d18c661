"""Incidents that wait for their evidence: the users whose runs have them take turns."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankwatch_agent.incidents.collector import IncidentsCollector
from rankwatch_agent.incidents.episodes import MAX_PENDING, IncidentRegistry
from rankwatch_agent.runtime.collector import Schedule
from rankwatch_agent.training.collector import RanksCollector
from rankwatch_agent.training.conditions import RunConditions
from support.incidents.incidents import condition, incident
from support.processes.users import ALICE, BOB, become, node_directory, run_as
from support.training.ranks import rank

__all__ = ["node_directory"]


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
