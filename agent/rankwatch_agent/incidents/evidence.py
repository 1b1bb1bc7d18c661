"""Collector `evidence`: writes a bundle of evidence for each incident, and keeps few, each of them complete.

Like every collector it has a thread of its own. Ranks that hang, py-spy and the diagnosis take their time;
neither a scrape nor the collector that detects incidents waits for them."""

from __future__ import annotations

import logging
import os
import re
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec

from rankwatch.conventions.states import EvidenceFault
from rankwatch_agent.incidents.bundle import MANIFEST_NAME, EvidenceError, write_error
from rankwatch_agent.incidents.dumps import DumpWatcher, ProfileWatcher
from rankwatch_agent.incidents.episodes import EvidenceResult, Incident, IncidentRegistry
from rankwatch_agent.incidents.metrics_history import MetricsHistory
from rankwatch_agent.incidents.writer import BundleResult, BundleWriter
from rankwatch_agent.runtime.collector import Collection, Schedule, Series, sample
from rankwatch_agent.runtime.config import AgentConfig
from rankwatch_agent.runtime.errors import CollectError, NotApplicable
from rankwatch_agent.runtime.logs import LogLimit
from rankwatch_agent.runtime.turns import excess

logger = logging.getLogger(__name__)


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
        """Write at most one bundle.

        Raises NotApplicable where no directory is set, CollectError where it cannot be used.
        """
        if self._keeper is None or self._store is None:
            raise NotApplicable("evidence_directory is empty")
        self._keeper.keep()
        self._history.keep()
        return Collection(series=[*self._series(self._keeper, self._store)])

    def _series(self, keeper: EvidenceKeeper, store: BundleStore) -> Iterator[Series]:
        yield sample("rankwatch_evidence_bundles", (), len(store.bundles()))
        for run, timestamp in keeper.last.items():
            yield sample("rankwatch_evidence_bundle_timestamp_seconds", (run,), timestamp)
        for fault, count in keeper.faults.items():
            yield sample("rankwatch_evidence_errors_total", (fault.value,), count)


def build_evidence(
    config: AgentConfig, *, registry: IncidentRegistry, history: MetricsHistory
) -> EvidenceCollector:
    """Return the collector that the settings describe."""
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
        """Write the bundle of the next pending incident, and add dumps to the bundles of open ones.

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
        """Return the bundle's directory and result. A bundle that fails leaves nothing behind."""
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


_UNSAFE = re.compile(r"[^A-Za-z0-9._=@:+-]")
_NAME_BYTES = 100
_PARTIAL = ".partial-"
_BUNDLE = re.compile(r"\d{8}T\d{6}Z-.+")


class _Manifest(msgspec.Struct):
    """What the store needs of a manifest."""

    owner: int | None = None


class BundleStore:
    """Keeps the newest bundles below a directory.

    directory: created where it is missing, but not its parent.
    max_bundles: beyond this number, a new bundle replaces the oldest one of the user with most bundles.
    """

    def __init__(self, directory: Path, *, max_bundles: int) -> None:
        self._directory = directory
        self._most_bundles = max_bundles
        self._cleaned = False

    def open(self) -> None:
        """Create the directory. The first call removes partial bundles that a killed agent left.

        Raises NotApplicable where the parent does not exist, CollectError where the directory cannot be used.
        """
        try:
            self._directory.mkdir(mode=0o700, exist_ok=True)
        except FileNotFoundError:
            raise NotApplicable(
                f"{self._directory.parent} does not exist; evidence_directory has no place"
            ) from None
        except OSError as error:
            raise CollectError(f"could not create {self._directory}: {error.strerror}") from None
        if not os.access(self._directory, os.R_OK | os.W_OK | os.X_OK):
            raise CollectError(f"could not use {self._directory}: no permission to write there")
        if not self._cleaned:
            self._cleaned = True
            for name in self._names():
                if name.startswith(_PARTIAL):
                    shutil.rmtree(self._directory / name, ignore_errors=True)

    def bundles(self) -> list[str]:
        """Return the names of the bundles, oldest first. Raises CollectError."""
        return [name for name in self._names() if _BUNDLE.fullmatch(name)]

    def make_room(self) -> None:
        """Remove bundles so that one more fits: the oldest of the user with most. Raises CollectError."""
        owners = {name: self._owner(name) for name in self.bundles()}
        for name in excess(owners, owner=owners.__getitem__, most=self._most_bundles - 1):
            shutil.rmtree(self._directory / name, ignore_errors=True)

    def begin(self, incident: Incident, wall: float) -> Path:
        """Create an empty directory for the bundle of an incident opened at Unix time `wall`.

        Raises EvidenceError.
        """
        run = _UNSAFE.sub("_", incident.run)[:_NAME_BYTES]
        stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(wall))
        path = self._directory / f"{_PARTIAL}{stamp}-{run}-{incident.kind.value}"
        shutil.rmtree(path, ignore_errors=True)
        try:
            path.mkdir(mode=0o700)
        except OSError as error:
            raise write_error(f"a directory in {self._directory}", error) from None
        return path

    def complete(self, partial: Path) -> Path:
        """Give a finished bundle its final name. Raises EvidenceError."""
        path = partial.with_name(partial.name.removeprefix(_PARTIAL))
        number = 1
        while os.path.lexists(path):  # two incidents of one run in one second
            number += 1
            path = partial.with_name(f"{partial.name.removeprefix(_PARTIAL)}-{number}")
        try:
            partial.rename(path)
        except OSError as error:
            raise write_error(str(path), error) from None
        return path

    def abandon(self, partial: Path) -> None:
        """Remove a partial bundle."""
        shutil.rmtree(partial, ignore_errors=True)

    def _owner(self, name: str) -> int | None:
        """Return the user id in the manifest of a bundle; None where it has none."""
        try:
            text = (self._directory / name / MANIFEST_NAME).read_bytes()
            return msgspec.json.decode(text, type=_Manifest).owner
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return None

    def _names(self) -> list[str]:
        try:
            return sorted(path.name for path in self._directory.iterdir())
        except OSError as error:
            raise CollectError(f"could not list {self._directory}: {error.strerror}") from None
