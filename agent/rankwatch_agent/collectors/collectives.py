"""Collector `collectives`: last enqueued and completed collective per group, from the flight recorders.

A pull copies the whole ring in the training process (a C++ thread, about 45 ms for 2,000 entries), so
it is made seldom. What must be complete and cheap comes through the black box (collector `ranks`).
"""

from __future__ import annotations

import logging
import stat
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from rankwatch.conventions import metric
from rankwatch.flight_recorder import SUFFIX
from rankwatch_agent.collection import Collection, NotApplicable, Series
from rankwatch_agent.flight_recorder.client import FlightRecorderClient, FlightRecorderError
from rankwatch_agent.flight_recorder.merge import FlightRecorderAccount

_log = logging.getLogger("rankwatch_agent")
_MAX_RANKS = 64
"""Sockets asked in one run: more ranks than any node has GPUs."""
_ASKED_AT_ONCE = 8


class CollectivesCollector:
    """Asks the worker server of each rank below a directory.

    directory: holds `<run>/<rank>.sock`.
    timeout_seconds: for one question to one rank; eight ranks are asked at a time.
    """

    name = "collectives"

    def __init__(
        self,
        *,
        directory: Path,
        interval_seconds: float = 60.0,
        deadline_seconds: float = 30.0,
        timeout_seconds: float = 2.0,
        max_names: int = 64,
    ) -> None:
        self.interval_seconds = interval_seconds
        self.deadline_seconds = deadline_seconds
        self._directory = directory
        self._timeout_seconds = timeout_seconds
        self._max_names = max_names
        self._ranks: dict[Path, _Rank] = {}

    def collect(self) -> Collection:
        """Ask every rank once. Raises NotApplicable where no rank serves a flight recorder."""
        paths = list(_sockets(self._directory))[:_MAX_RANKS]
        self._ranks = {path: self._ranks.get(path) or self._new(path) for path in paths}
        if not paths:
            raise NotApplicable("no rank serves a flight recorder")
        # Side by side: a stopped rank takes its whole timeout, and just then the others are wanted.
        with ThreadPoolExecutor(_ASKED_AT_ONCE) as pool:
            answers = pool.map(lambda path: list(self._ranks[path].collect(path)), paths)
            return Collection(series=[each for answer in answers for each in answer])

    def _new(self, path: Path) -> _Rank:
        client = FlightRecorderClient(path, timeout_seconds=self._timeout_seconds)
        return _Rank(client, FlightRecorderAccount(self._max_names))


class _Rank:
    def __init__(self, client: FlightRecorderClient, account: FlightRecorderAccount) -> None:
        self._client = client
        self._account = account
        self._succeeded = 0
        self._failed = 0
        self._told = False

    def collect(self, path: Path) -> Iterator[Series]:
        key = (path.parent.name, path.stem)
        account = self._account
        try:
            account.merge(self._client.pull())
            self._succeeded += 1
            for group, (enqueued, completed) in account.groups.items():
                yield Series(metric("rankwatch_collective_last_enqueued"), (*key, group), enqueued)
                yield Series(metric("rankwatch_collective_last_completed"), (*key, group), completed)
        except FlightRecorderError as error:
            self._failed += 1
            if not self._told:
                self._told = True
                _log.warning("%s (told once for this rank)", error)
        pulls = metric("rankwatch_flight_recorder_pulls_total")
        yield Series(pulls, (*key, "success"), self._succeeded)
        yield Series(pulls, (*key, "failure"), self._failed)
        yield Series(metric("rankwatch_flight_recorder_entries_total"), key, account.entries)
        yield Series(metric("rankwatch_flight_recorder_entries_missed_total"), key, account.missed)


def _sockets(directory: Path) -> Iterator[Path]:
    for path in sorted(directory.glob(f"*/*{SUFFIX}")):
        try:
            mode = path.stat(follow_symlinks=False).st_mode
        except OSError:
            continue  # gone meanwhile
        if stat.S_ISSOCK(mode) and path.stem.isdecimal():
            yield path
