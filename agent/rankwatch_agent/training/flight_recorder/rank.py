"""One rank by its flight recorders: asked now and then, and what that gave."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence, Set

from rankwatch.blackbox.records import GroupNow
from rankwatch.conventions import metric
from rankwatch_agent.runtime.collector import Series
from rankwatch_agent.training.collectives.series import (
    FLIGHT_RECORDER,
    Position,
    position_series,
    totals_series,
)
from rankwatch_agent.training.collectives.totals import GroupCollectives, GroupKey
from rankwatch_agent.training.flight_recorder.client import FlightRecorderClient, FlightRecorderError
from rankwatch_agent.training.flight_recorder.merge import FlightRecorderAccount
from rankwatch_agent.training.flight_recorder.reply import Reply

_log = logging.getLogger("rankwatch_agent")

Fetched = Mapping[str, bytearray] | FlightRecorderError
"""Replies by handler, not yet understood, or why there are none."""


class RecordedRank:
    """The recorders of one rank: torch with CUDA has one of NCCL and one of the other backends."""

    def __init__(self, client: FlightRecorderClient, *, max_groups: int) -> None:
        self.asked = float("-inf")
        """When it was last asked, monotonic."""
        self._client = client
        self._max_groups = max_groups
        self._accounts: dict[str, FlightRecorderAccount] = {}
        self._answered = False
        self._succeeded = 0
        self._failed = 0
        self._told = False

    @property
    def ledgers(self) -> Sequence[GroupCollectives]:
        """Collectives with a duration, by group."""
        return [ledger for account in self._accounts.values() for ledger in account.ledgers]

    def fetch(self) -> Fetched:
        """Ask once, on any thread; give what comes to `take`."""
        try:
            return self._client.pull_raw()
        except FlightRecorderError as error:
            return error

    def take(self, now: float, fetched: Fetched, known: Sequence[GroupNow]) -> None:
        """Merge one pull; `known` are the groups by the rank's black box. A failure is counted."""
        self.asked = now
        try:
            if isinstance(fetched, FlightRecorderError):
                raise fetched
            for name, body in fetched.items():
                self._merge(name, self._client.read(body), known)
        except FlightRecorderError as error:
            self._answered = False
            self._failed += 1
            if not self._told:
                self._told = True
                _log.warning("%s (told once for this rank)", error)
            return
        self._answered = True
        self._succeeded += 1

    def _merge(self, name: str, reply: Reply, known: Sequence[GroupNow]) -> None:
        account = self._accounts.get(name)
        if account is None:
            account = self._accounts[name] = FlightRecorderAccount(self._max_groups)
        account.merge(reply, known)

    def series(
        self, key: tuple[str, str], counted: Set[tuple[str, str, str]], *, gone: bool
    ) -> Iterator[Series]:
        """Everything about this rank; `key` is (run, rank).

        counted: (group, members, operation) of what the black box counts: left out here.
        gone: its process ended; where it stood at the last pull is not where it ended.
        """
        if self._answered and not gone:
            yield from position_series(key, FLIGHT_RECORDER, self._places())
        accounts = self._accounts.values()
        sampled = {at: totals for account in accounts for at, totals in account.totals.items()}
        yield from totals_series(key, {at: each for at, each in sampled.items() if at not in counted})
        pulls = metric("rankwatch_flight_recorder_pulls_total")
        yield Series(pulls, (*key, "success"), self._succeeded)
        yield Series(pulls, (*key, "failure"), self._failed)
        entries = metric("rankwatch_flight_recorder_entries_total")
        yield Series(entries, key, sum(each.entries for each in accounts))
        missed = metric("rankwatch_flight_recorder_entries_missed_total")
        yield Series(missed, key, sum(each.missed for each in accounts))

    def _places(self) -> dict[GroupKey, Position]:
        """Of a group that has two backends, the one that is used counts, NCCL first."""
        places: dict[GroupKey, Position] = {}
        for account in self._accounts.values():
            for group, place in account.places.items():
                if place.enqueued or group not in places:
                    places[group] = place
        return places
