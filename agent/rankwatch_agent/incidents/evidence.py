"""Collector `evidence`: keeps a bundle of evidence for each incident.

In a thread of its own, as every collector: ranks that hang, py-spy and the diagnosis take their time, and
neither a scrape nor the collector that sees the incidents waits for them.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from rankwatch.conventions import metric
from rankwatch.conventions.incidents import EvidenceFault
from rankwatch_agent.incidents.bundle import EvidenceError
from rankwatch_agent.incidents.dumps import AddedDumps
from rankwatch_agent.incidents.episodes import Incident
from rankwatch_agent.incidents.metrics_history import MetricsPages
from rankwatch_agent.incidents.registry import Finding, IncidentBoard
from rankwatch_agent.incidents.store import BundleStore
from rankwatch_agent.incidents.writer import BundleWriter, Written
from rankwatch_agent.runtime.collector import Collection, Schedule, Series
from rankwatch_agent.runtime.config import AgentConfig
from rankwatch_agent.runtime.errors import NotApplicable
from rankwatch_agent.runtime.logs import LogLimit

logger = logging.getLogger(__name__)

PAUSE_SECONDS = 300.0
"""Between two bundles of a run: one that stalls and recovers all the time must not push out the others'."""
TOO_LATE_SECONDS = 600.0
"""An incident that waited longer, for others or for a directory, gets no bundle: what its processes do by now
is no evidence of it."""
MOST_RUNS = 200
"""Runs whose last bundle is remembered, and exported."""


class _Last(NamedTuple):
    """When the incident of a run's newest bundle was opened."""

    opened: float
    """Monotonic."""
    wall: float
    """Unix time."""


class EvidenceKeeper:
    """Takes incidents from the board, one at a time, and puts back what their evidence came to.

    dumps: adds files that come later; None where no directory of dumps is known.
    pause_seconds: between two bundles of one run.
    """

    def __init__(
        self,
        board: IncidentBoard,
        store: BundleStore,
        writer: BundleWriter,
        *,
        dumps: AddedDumps | None = None,
        pause_seconds: float = PAUSE_SECONDS,
        monotonic: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._board = board
        self._store = store
        self._writer = writer
        self._dumps = dumps
        self._pause_seconds = pause_seconds
        self._monotonic = monotonic
        self._wall = wall
        self._faults: Counter[EvidenceFault] = Counter()
        self._last: dict[str, _Last] = {}
        self._log_limit = LogLimit(monotonic)

    @property
    def faults(self) -> Mapping[EvidenceFault, int]:
        """What could not be had, counted by reason; every reason is there."""
        return {
            each: self._faults[each] + (self._board.given_up if each is EvidenceFault.BUSY else 0)
            for each in EvidenceFault
        }

    @property
    def last(self) -> Mapping[str, float]:
        """Run -> when the incident of its newest bundle was opened, Unix time; of the last runs."""
        return {run: last.wall for run, last in self._last.items()}

    def keep(self) -> None:
        """Write the bundle of the next incident that waits, and add to those that are open.

        Raises CollectError or NotApplicable where the directory of bundles cannot be used. Incidents then
        wait.
        """
        self._store.open()
        incident = self._board.next_waiting()
        if incident is not None:
            self._keep(incident)
        if self._dumps is not None:
            self._faults.update(self._dumps.add(self._board.open.values(), self._wall_offset()))

    def _keep(self, incident: Incident) -> None:
        if self._monotonic() - incident.opened > TOO_LATE_SECONDS:
            self._faults[EvidenceFault.BUSY] += 1
            return
        last = self._last.get(incident.run)
        if last is not None and incident.opened - last.opened < self._pause_seconds:
            self._faults[EvidenceFault.TOO_SOON] += 1
            return
        try:
            bundle, written = self._write(incident)
        except EvidenceError as error:
            self._faults[error.fault] += 1
            if self._log_limit.allows(str(error)):
                logger.warning("no evidence of %s is kept: %s", incident.name, error)
            return
        self._faults.update(written.faults)
        self._last.pop(incident.run, None)
        self._last[incident.run] = _Last(incident.opened, incident.opened + self._wall_offset())
        while len(self._last) > MOST_RUNS:
            del self._last[next(iter(self._last))]
        self._board.found(incident, Finding(bundle, written.culprits))
        if self._dumps is not None:
            self._dumps.expect(incident, bundle, written.left_bytes)
        _tell(incident, bundle, written)

    def _write(self, incident: Incident) -> tuple[Path, Written]:
        """The bundle's directory and what came of it; nothing is left where that fails."""
        self._store.make_room()
        partial = self._store.begin(incident, incident.opened + self._wall_offset())
        try:
            written = self._writer.write(incident, partial)
            return self._store.complete(partial), written
        finally:
            self._store.abandon(partial)  # which is no longer there where all went well

    def _wall_offset(self) -> float:
        return self._wall() - self._monotonic()


def _tell(incident: Incident, bundle: Path, written: Written) -> None:
    ranks = ", ".join(str(each.rank) for each in written.culprits)
    logger.warning(
        "evidence of %s is kept in %s; %s",
        incident.name,
        bundle,
        f"it points to rank {ranks}" if ranks else "no rank can be named",
        extra={"event": "evidence_bundle"},
    )


_BUNDLES = metric("rankwatch_evidence_bundles")
_LAST = metric("rankwatch_evidence_bundle_timestamp_seconds")
_ERRORS = metric("rankwatch_evidence_errors_total")


class EvidenceCollector:
    """Writes a bundle where an incident waits for one.

    keeper, store: None where no directory for evidence is set.
    pages: is asked each time to keep the agent's metrics as they are, for the next incident.
    """

    name = "evidence"

    def __init__(
        self,
        *,
        keeper: EvidenceKeeper | None,
        store: BundleStore | None,
        pages: MetricsPages,
        schedule: Schedule,
    ) -> None:
        self.interval_seconds, self.deadline_seconds = schedule
        self._keeper = keeper
        self._store = store
        self._pages = pages

    def collect(self) -> Collection:
        """Keep evidence of one incident at most.

        Raises NotApplicable where evidence has no place, CollectError where its place cannot be used.
        """
        if self._keeper is None or self._store is None:
            raise NotApplicable("evidence_directory is empty")
        self._keeper.keep()
        self._pages.keep()
        return Collection(series=[*self._series(self._keeper, self._store)])

    def _series(self, keeper: EvidenceKeeper, store: BundleStore) -> Iterator[Series]:
        yield Series(_BUNDLES, (), len(store.bundles()))
        for run, timestamp in keeper.last.items():
            yield Series(_LAST, (run,), timestamp)
        for fault, count in keeper.faults.items():
            yield Series(_ERRORS, (fault.value,), count)


def build_evidence(config: AgentConfig, *, board: IncidentBoard, pages: MetricsPages) -> EvidenceCollector:
    """The collector as the settings say."""
    schedule = config.schedule(EvidenceCollector.name)
    if not config.evidence_directory:
        return EvidenceCollector(keeper=None, store=None, pages=pages, schedule=schedule)
    store = BundleStore(Path(config.evidence_directory), most_bundles=config.evidence_bundles)
    writer = BundleWriter(pages=pages, node=config.node, most_bytes=config.evidence_bytes)
    dumps = None if config.dump_directory is None else AddedDumps(config.dump_directory)
    keeper = EvidenceKeeper(board, store, writer, dumps=dumps)
    return EvidenceCollector(keeper=keeper, store=store, pages=pages, schedule=schedule)
