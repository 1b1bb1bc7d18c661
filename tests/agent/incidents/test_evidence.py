"""Which incidents get a bundle, and what log and metrics say of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankwatch.conventions.states import EvidenceFault, IncidentKind, RankState
from rankwatch_agent.incidents.diagnosis import root_causes_of
from rankwatch_agent.incidents.episodes import MAX_PENDING, Incident, IncidentRegistry, RootCause
from rankwatch_agent.incidents.evidence import MAX_WAIT_SECONDS, BundleStore, EvidenceKeeper
from support.agent.process import ManualClock
from support.incidents.incidents import condition, incident, writer

pytestmark = pytest.mark.process


class Kept:
    """A registry, and a keeper with a store below a folder."""

    def __init__(self, folder: Path, *, pause_seconds: float = 300.0, **how: object) -> None:
        self.registry = IncidentRegistry()
        self.store = BundleStore(folder / "evidence", max_bundles=5)
        self.clock = ManualClock(700.0)
        self.keeper = EvidenceKeeper(
            self.registry, self.store, writer(**how), pause_seconds=pause_seconds, monotonic=self.clock
        )

    def open(self, *incidents: Incident) -> None:
        """Incidents of different runs that open now."""
        self.registry.update({each.run: each for each in incidents}, incidents)

    def faults(self) -> dict[EvidenceFault, int]:
        """What was counted."""
        return {fault: count for fault, count in self.keeper.faults.items() if count}


def test_bundle_and_log_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    kept = Kept(tmp_path)
    opened = incident([])
    kept.open(opened)
    kept.keeper.keep()
    (name,) = kept.store.bundles()
    finding = kept.registry.result(opened)
    assert finding is not None
    assert (finding.bundle, finding.root_causes) == (
        tmp_path / "evidence" / name,
        (RootCause(1, "hang", ""),),
    )
    (record,) = caplog.records
    assert (
        record.getMessage() == f"evidence of run job: stall is kept in {finding.bundle}; it points to rank 1"
    )
    assert getattr(record, "event", "") == "evidence_bundle"
    assert set(kept.keeper.last) == {"job"}
    kept.keeper.keep()
    assert kept.store.bundles() == [name]


def test_pause_between_bundles_of_a_run(tmp_path: Path) -> None:
    """A run that stalls repeatedly must not push out the bundles of others."""
    kept = Kept(tmp_path)
    for number, (run, moment) in enumerate([("a", 200.0), ("a", 300.0), ("b", 300.0), ("a", 501.0)]):
        kept.open(incident([], run=run, moment=moment, number=number))
        kept.keeper.keep()
    assert [name.split("-")[1] for name in kept.store.bundles()] == ["a", "b", "a"]
    assert kept.faults() == {EvidenceFault.TOO_SOON: 1}


def test_storm_of_incidents(tmp_path: Path) -> None:
    """Only the last few get a bundle. Thousands of runs stall at once when a file server does."""
    kept = Kept(tmp_path)
    opened = [incident([], run=f"job{number}", number=number) for number in range(3000)]
    kept.open(*opened)
    for _ in range(MAX_PENDING + 5):
        kept.keeper.keep()
    assert kept.faults() == {EvidenceFault.BUSY: 3000 - MAX_PENDING}
    assert len(kept.store.bundles()) == 5
    assert len(kept.keeper.last) == MAX_PENDING


def test_failed_bundle_leaves_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    kept = Kept(tmp_path, max_bytes=10, pause_seconds=0.0)
    lost = incident([condition(3, state=RankState.LOST)], kind=IncidentKind.LOST_RANK)
    for _ in range(3):
        kept.open(lost)
        kept.keeper.keep()
    assert list((tmp_path / "evidence").iterdir()) == []
    assert kept.registry.result(lost) is None
    assert kept.faults() == {EvidenceFault.SIZE: 3}
    assert [each.getMessage() for each in caplog.records] == [
        "no evidence of run job: lost_rank is kept: manifest.json would make the bundle too large"
    ]
    assert [each.rank for each in root_causes_of(lost)] == [3]


def test_result_ends_with_the_incident(tmp_path: Path) -> None:
    """Also where the bundle is finished after the end."""
    kept = Kept(tmp_path)
    opened = incident([])
    kept.open(opened)
    kept.registry.update({}, [])
    kept.keeper.keep()
    assert len(kept.store.bundles()) == 1
    assert kept.registry.result(opened) is None


def test_late_incident_gets_no_bundle(tmp_path: Path) -> None:
    """The directory was missing for hours. The present state of the processes is no evidence."""
    kept = Kept(tmp_path)
    kept.open(incident([], moment=200.0))
    kept.clock.now = 200.0 + MAX_WAIT_SECONDS + 1.0
    kept.keeper.keep()
    assert kept.store.bundles() == []
    assert kept.faults() == {EvidenceFault.BUSY: 1}
