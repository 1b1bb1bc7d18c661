"""Collector `evidence`: writes a bundle of evidence for each incident.

Like every collector it has a thread of its own. Ranks that hang, py-spy and the diagnosis take their time;
neither a scrape nor the collector that detects incidents waits for them.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from rankwatch.conventions.metrics import metric
from rankwatch.conventions.states import EvidenceFault
from rankwatch_agent.incidents.bundle import EvidenceError
from rankwatch_agent.incidents.dumps import DumpWatcher
from rankwatch_agent.incidents.episodes import Incident
from rankwatch_agent.incidents.metrics_history import MetricsHistory
from rankwatch_agent.incidents.profiles import ProfileWatcher
from rankwatch_agent.incidents.registry import EvidenceResult, IncidentRegistry
from rankwatch_agent.incidents.store import BundleStore
from rankwatch_agent.incidents.writer import BundleResult, BundleWriter
from rankwatch_agent.runtime.collector import Collection, Schedule, Series
from rankwatch_agent.runtime.config import AgentConfig
from rankwatch_agent.runtime.errors import NotApplicable
from rankwatch_agent.runtime.logs import LogLimit
from rankwatch_agent.runtime.turns import excess

logger = logging.getLogger(__name__)

_BUNDLES = metric("rankwatch_evidence_bundles")
_LAST_BUNDLE = metric("rankwatch_evidence_bundle_timestamp_seconds")
_ERRORS = metric("rankwatch_evidence_errors_total")

PAUSE_SECONDS = 300.0
"""Time between two bundles of a run, so that one that stalls repeatedly does not push out the others'
bundles."""
MAX_WAIT_SECONDS = 600.0
"""An incident that waited longer gets no bundle: the present state of its processes is no evidence of it."""
MAX_RUNS = 200
"""Runs whose last bundle is remembered and exported."""


class EvidenceCollector:
    """Writes a bundle if an incident is pending.

    keeper, store: None where no directory for evidence is set.
    history: keeps the agent's metrics at each run, for the next incident.
    """

    name = "evidence"

    def __init__(
        self,
        *,
        keeper: EvidenceKeeper | None,
        store: BundleStore | None,
        history: MetricsHistory,
        schedule: Schedule,
    ) -> None:
        self.interval_seconds, self.deadline_seconds = schedule
        self._keeper = keeper
        self._store = store
        self._history = history

    def collect(self) -> Collection:
        """Writes at most one bundle.

        Raises NotApplicable where no directory is set, CollectError where it cannot be used.
        """
        if self._keeper is None or self._store is None:
            raise NotApplicable("evidence_directory is empty")
        self._keeper.keep()
        self._history.keep()
        return Collection(series=[*self._series(self._keeper, self._store)])

    def _series(self, keeper: EvidenceKeeper, store: BundleStore) -> Iterator[Series]:
        yield Series(_BUNDLES, (), len(store.bundles()))
        for run, timestamp in keeper.last.items():
            yield Series(_LAST_BUNDLE, (run,), timestamp)
        for fault, count in keeper.faults.items():
            yield Series(_ERRORS, (fault.value,), count)


def build_evidence(
    config: AgentConfig, *, registry: IncidentRegistry, history: MetricsHistory
) -> EvidenceCollector:
    """Returns the collector that the settings describe."""
    schedule = config.schedule(EvidenceCollector.name)
    if not config.evidence_directory:
        return EvidenceCollector(keeper=None, store=None, history=history, schedule=schedule)
    store = BundleStore(Path(config.evidence_directory), max_bundles=config.evidence_bundles)
    writer = BundleWriter(history=history, node=config.node, max_bytes=config.evidence_bytes)
    dumps = None if config.dump_directory is None else DumpWatcher(config.dump_directory)
    keeper = EvidenceKeeper(registry, store, writer, dumps=dumps)
    return EvidenceCollector(keeper=keeper, store=store, history=history, schedule=schedule)


class _LastBundle(NamedTuple):
    """When the incident of a run's newest bundle was opened."""

    opened: float
    """Monotonic."""
    wall: float
    """Unix time."""
    owner: int
    """User id of the run's owner."""


class EvidenceKeeper:
    """Decides which pending incidents get a bundle, and stores the results in the registry.

    dumps: adds dumps that PyTorch writes later; None where their directory is not set.
    pause_seconds: between two bundles of one run.
    """

    def __init__(
        self,
        registry: IncidentRegistry,
        store: BundleStore,
        writer: BundleWriter,
        *,
        dumps: DumpWatcher | None = None,
        pause_seconds: float = PAUSE_SECONDS,
        monotonic: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._registry = registry
        self._store = store
        self._writer = writer
        self._dumps = dumps
        self._profiles = ProfileWatcher(monotonic=monotonic)
        self._pause_seconds = pause_seconds
        self._monotonic = monotonic
        self._wall = wall
        self._faults: Counter[EvidenceFault] = Counter()
        self._last: dict[str, _LastBundle] = {}
        self._log_limit = LogLimit(monotonic)

    @property
    def faults(self) -> Mapping[EvidenceFault, int]:
        """Missing bundles and parts by reason. Every reason is present."""
        return {
            each: self._faults[each] + (self._registry.dropped if each is EvidenceFault.BUSY else 0)
            for each in EvidenceFault
        }

    @property
    def last(self) -> Mapping[str, float]:
        """Run -> Unix time at which the incident of its newest bundle was opened."""
        return {run: last.wall for run, last in self._last.items()}

    def keep(self) -> None:
        """Writes the bundle of the next pending incident, and adds dumps to the bundles of open ones.

        Raises CollectError or NotApplicable where the directory of bundles cannot be used. Incidents then
        wait.
        """
        self._store.open()
        incident = self._registry.next_pending()
        if incident is not None:
            self._keep(incident)
        if self._dumps is not None:
            self._faults.update(self._dumps.collect(self._registry.open.values(), self._wall_offset()))
        self._faults.update(self._profiles.collect())

    def _keep(self, incident: Incident) -> None:
        if self._monotonic() - incident.opened > MAX_WAIT_SECONDS:
            self._faults[EvidenceFault.BUSY] += 1
            return
        last = self._last.get(incident.run)
        if last is not None and incident.opened - last.opened < self._pause_seconds:
            self._faults[EvidenceFault.TOO_SOON] += 1
            return
        try:
            path, result = self._write(incident)
        except EvidenceError as error:
            self._faults[error.fault] += 1
            if self._log_limit.allows(str(error)):
                logger.warning("no evidence of %s is kept: %s", incident.name, error)
            return
        self._faults.update(result.faults)
        self._last.pop(incident.run, None)
        self._last[incident.run] = _LastBundle(
            incident.opened, incident.opened + self._wall_offset(), incident.owner
        )
        owners = {run: each.owner for run, each in self._last.items()}
        for run in excess(owners, owner=owners.__getitem__, most=MAX_RUNS):
            del self._last[run]
        self._registry.set_result(incident, EvidenceResult(path, result.root_causes))
        # Both are added later, so each gets its share of what is left.
        free = result.free_bytes if self._dumps is None else result.free_bytes // 2
        if self._dumps is not None:
            self._dumps.watch(incident, path, result.free_bytes - free)
        self._faults.update(self._profiles.ask(incident, result.root_causes, path, free))
        _log(incident, path, result)

    def _write(self, incident: Incident) -> tuple[Path, BundleResult]:
        """Returns the bundle's directory and result. A bundle that fails leaves nothing behind."""
        self._store.make_room()
        partial = self._store.begin(incident, incident.opened + self._wall_offset())
        try:
            result = self._writer.write(incident, partial)
            return self._store.complete(partial), result
        finally:
            self._store.abandon(partial)  # does nothing after `complete`, which renames it

    def _wall_offset(self) -> float:
        return self._wall() - self._monotonic()


def _log(incident: Incident, path: Path, result: BundleResult) -> None:
    ranks = ", ".join(str(each.rank) for each in result.root_causes)
    logger.warning(
        "evidence of %s is kept in %s; %s",
        incident.name,
        path,
        f"it points to rank {ranks}" if ranks else "no rank can be named",
        extra={"event": "evidence_bundle"},
    )
