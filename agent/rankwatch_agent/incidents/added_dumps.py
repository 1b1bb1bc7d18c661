"""Adds the dumps that PyTorch's watchdog writes to the bundle of the incident that they are of."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from rankwatch.conventions.incidents import EvidenceFault
from rankwatch_agent.incidents.dumps import DumpDirectory, belongs
from rankwatch_agent.incidents.episodes import Incident
from rankwatch_agent.incidents.error import EvidenceError
from rankwatch_agent.incidents.folder import BundleFolder

LOOK_SECONDS = 5.0
"""Between two looks at the directory of dumps."""
MOST_DUMPS = 128
"""Tried for one bundle."""


class _Open(NamedTuple):
    """A bundle that dumps may be added to."""

    folder: BundleFolder
    tried: set[str]


class AddedDumps:
    """Looks while incidents are open: each is for a minute at least, also where its run ends at once."""

    def __init__(
        self,
        directory: Path,
        *,
        look_seconds: float = LOOK_SECONDS,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._directory = DumpDirectory(directory)
        self._look_seconds = look_seconds
        self._monotonic = monotonic
        self._looked = float("-inf")
        self._bundles: dict[int, _Open] = {}

    def expect(self, incident: Incident, bundle: Path, left_bytes: int) -> None:
        """From now on add dumps to this bundle, at most `left_bytes`."""
        folder = BundleFolder(bundle, most_bytes=left_bytes)
        folder.use_reserve()
        self._bundles[incident.number] = _Open(folder, set())

    def add(self, incidents: Iterable[Incident], wall_offset: float) -> Counter[EvidenceFault]:
        """Add what has come for the incidents that are open; what could not be added, counted.

        wall_offset: Unix time less monotonic time, in seconds.
        """
        faults: Counter[EvidenceFault] = Counter()
        now = self._monotonic()
        open_now = {incident.number: incident for incident in incidents}
        self._bundles = {number: each for number, each in self._bundles.items() if number in open_now}
        if not self._bundles or now - self._looked < self._look_seconds:
            return faults
        self._looked = now
        try:
            ready = self._directory.look()
        except EvidenceError as error:
            return Counter([error.fault])
        for number, bundle in self._bundles.items():
            incident = open_now[number]
            for name, modified_ns in ready:
                if belongs(name, modified_ns / 1e9, incident, incident.since + wall_offset):
                    faults.update(self._add(name, bundle))
        return faults

    def _add(self, name: str, bundle: _Open) -> list[EvidenceFault]:
        if name in bundle.tried or len(bundle.tried) >= MOST_DUMPS:
            return []
        bundle.tried.add(name)
        try:
            self._directory.copy(name, bundle.folder)
        except EvidenceError as error:
            return [error.fault]
        return []
