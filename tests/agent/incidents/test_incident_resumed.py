"""Whom an incident names once its run goes on again."""

from __future__ import annotations

from pathlib import Path

from rankwatch_agent.incidents.collector import IncidentsCollector
from rankwatch_agent.incidents.registry import EvidenceResult, IncidentRegistry, RootCause
from rankwatch_agent.runtime.collector import Schedule
from rankwatch_agent.training.conditions import RunConditions
from support.incidents.incidents import condition


def test_a_stall_that_is_over_names_nobody_any_more() -> None:
    """It stays open for its minute; the verdict may be of evidence that was taken after it."""
    moment, conditions, registry = 200.0, RunConditions(), IncidentRegistry()
    collector = IncidentsCollector(
        conditions=conditions,
        registry=registry,
        stall_seconds=30.0,
        schedule=Schedule(1.0, 5.0),
        monotonic=lambda: moment,
    )

    def series(*progress: float) -> list[tuple[str, float]]:
        conditions.update(
            {"job": [condition(rank, progress=each) for rank, each in enumerate(progress)]}, moment
        )
        found = collector.collect().series
        wanted = ("rankwatch_incident_open", "rankwatch_incident_root_cause")
        return [(each.metric.name, each.value) for each in found if each.metric.name in wanted and each.value]

    assert series(100.0, 100.0) == [("rankwatch_incident_open", 1.0)]
    incident = registry.next_pending()
    assert incident is not None
    registry.set_result(incident, EvidenceResult(Path("/bundle"), (RootCause(1, "hang", ""),)))
    assert ("rankwatch_incident_root_cause", 1.0) in series(100.0, 100.0)
    moment = 201.0
    assert series(100.0, 200.5) == [("rankwatch_incident_open", 1.0)]
