"""Collector `evidence`: keeps a bundle of evidence for each incident.

In a thread of its own, as every collector: ranks that hang, py-spy and the diagnosis take their time, and
neither a scrape nor the collector that sees the incidents waits for them.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from rankwatch.conventions import metric
from rankwatch_agent.incidents.added_dumps import AddedDumps
from rankwatch_agent.incidents.board import IncidentBoard
from rankwatch_agent.incidents.bundle import BundleWriter
from rankwatch_agent.incidents.keeping import EvidenceKeeper
from rankwatch_agent.incidents.pages import MetricsPages
from rankwatch_agent.incidents.store import BundleStore
from rankwatch_agent.runtime.collector import Collection, Schedule, Series
from rankwatch_agent.runtime.config import AgentConfig
from rankwatch_agent.runtime.errors import NotApplicable

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
