"""Whom the evidence of an incident names."""

from __future__ import annotations

from rankwatch.conventions import RankState
from rankwatch.conventions.incidents import IncidentKind
from rankwatch_agent.incidents.board import MOST_CULPRITS, Culprit
from rankwatch_agent.incidents.episodes import Incident
from rankwatch_agent.incidents.verdict import Verdict


def culprits_of(incident: Incident, verdict: Verdict | None = None) -> tuple[Culprit, ...]:
    """Ranks to blame: those that were lost, where some were; else those the diagnosis names."""
    phases = {each.rank: each.open_phase[0] for each in incident.condition.ranks if each.open_phase}
    if incident.kind is IncidentKind.LOST_RANK:
        state, ranks = RankState.LOST.value, tuple(each.rank for each in incident.condition.lost)
    elif verdict is not None:
        state, ranks = verdict.state, verdict.ranks
    else:
        return ()
    return tuple(Culprit(rank, state, phases.get(rank, "")) for rank in ranks[:MOST_CULPRITS])
