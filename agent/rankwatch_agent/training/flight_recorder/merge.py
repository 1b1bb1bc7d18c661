"""Merges one pull of a flight recorder after another: each entry once, gaps counted."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rankwatch.blackbox.records import GroupNow
from rankwatch_agent.training.collectives.series import Position
from rankwatch_agent.training.collectives.totals import (
    OVERFLOW,
    BoundedNames,
    CollectiveTotals,
    GroupCollectives,
    GroupKey,
)
from rankwatch_agent.training.flight_recorder.groups import GroupNames
from rankwatch_agent.training.flight_recorder.operations import (
    backend_of,
    input_bytes,
    operation_of,
    signature,
)
from rankwatch_agent.training.flight_recorder.reply import Entry, GroupStatus, Reply

_RECORDED_BY_BLACK_BOX = "gloo"
"""Backend whose completions the black box records, each of them."""


class FlightRecorderAccount:
    """What the pulls of one recorder of one rank add up to, across restarts of its process."""

    def __init__(self, max_groups: int) -> None:
        self.entries = 0
        """Entries merged."""
        self.missed = 0
        """Entries overwritten before they were read."""
        self.places: dict[GroupKey, Position] = {}
        """How far the rank has come in each group, by the last pull."""
        self.totals: dict[tuple[str, str, str], CollectiveTotals] = {}
        """(group, members, operation) -> completed collectives that were seen: a sample where entries were
        missed. Sends and receives count too; what the black box records does not."""
        self._names = BoundedNames(max_groups)
        self._max_groups = max_groups
        self._begin_process()

    def _begin_process(self) -> None:
        self._groups = GroupNames(self._max_groups)
        self._ledgers: dict[GroupKey, GroupCollectives] = {}
        self._last_id = -1
        self._last_created = 0
        self._pending: set[int] = set()
        """Record ids of entries that were read and not complete."""
        self._with_messages: set[int] = set()
        """Local ids of groups whose status counts sends and receives, too: no number of a collective."""
        self._timed = False

    @property
    def ledgers(self) -> Sequence[GroupCollectives]:
        """Collectives with a duration, for comparison with other ranks."""
        return tuple(self._ledgers.values())

    def merge(self, reply: Reply, known: Iterable[GroupNow] = ()) -> None:
        """Take one reply; `known` are the groups that the rank's black box tells."""
        entries = {entry.record_id: entry for entry in reply.entries}
        ordered = [entries[number] for number in sorted(entries)]
        if self._is_another_process(ordered, entries):
            self._begin_process()
        self._groups.learn(ordered, reply.pg_config, known)
        self._count(ordered)
        self.places = self._places(ordered, reply.pg_status)
        if ordered:
            self._last_id = ordered[-1].record_id
            self._last_created = ordered[-1].time_created_ns
            self._pending = {each.record_id for each in ordered if not each.complete}

    def _is_another_process(self, ordered: list[Entry], entries: dict[int, Entry]) -> bool:
        """Record ids count from 0 in each process: they fall back, or name something else."""
        if not ordered or self._last_id < 0:
            return False
        last = entries.get(self._last_id)
        return ordered[-1].record_id < self._last_id or (
            last is not None and last.time_created_ns != self._last_created
        )

    def _count(self, ordered: list[Entry]) -> None:
        new = [entry for entry in ordered if entry.record_id > self._last_id]
        if new and self._last_id >= 0:
            self.missed += new[0].record_id - self._last_id - 1
        self.entries += len(new)
        self._timed = self._timed or any(entry.duration_ms is not None for entry in new)
        for entry in ordered:
            if entry.complete and (entry.record_id > self._last_id or entry.record_id in self._pending):
                self._completed(entry)

    def _completed(self, entry: Entry) -> None:
        """Count an entry that is seen complete for the first time."""
        group = self._groups.of(entry.pg_id)
        if group is None or backend_of(entry) == _RECORDED_BY_BLACK_BOX:
            return
        duration = entry.duration_ms
        if self._timed and duration is None:
            return  # its time is lost, and a count without time would shorten the mean
        key, ranks = group
        operation = self._names.bound("operation", operation_of(entry))
        if self._names.bound("group", " ".join(key)) == OVERFLOW:
            return
        at = (*key, operation)
        totals = self.totals.get(at)
        if totals is None:
            totals = self.totals[at] = CollectiveTotals(operation)
            totals.timed = False
        size = input_bytes(entry) or 0
        seconds = (duration or 0.0) / 1e3
        if not 0.0 <= seconds < 1e10:
            return
        totals.count += 1
        totals.bytes += size
        totals.seconds += seconds
        if duration is None:
            return
        totals.timed = True
        if not entry.is_p2p:
            ledger = self._ledgers.get(key)
            if ledger is None:
                ledger = self._ledgers[key] = GroupCollectives(key, ranks)
            ledger.finished[entry.collective_seq_id] = (seconds, size, totals)

    def _places(self, ordered: list[Entry], statuses: dict[str, GroupStatus]) -> dict[GroupKey, Position]:
        """Groups of this pull alone: those that were destroyed are gone."""
        by_group: dict[int, list[Entry]] = {}
        for entry in ordered:
            by_group.setdefault(entry.pg_id, []).append(entry)
        places: dict[GroupKey, Position] = {}
        for text, status in list(statuses.items())[: self._max_groups]:
            local_id = int(text) if text.isdecimal() and len(text) < 10 else -1
            group = self._groups.of(local_id)
            if group is None:
                continue
            own = by_group.get(local_id, [])
            last = max((each.collective_seq_id for each in own), default=0)
            if any(each.is_p2p for each in own) or 0 < last != status.last_enqueued_collective:
                self._with_messages.add(local_id)
            place = _place(own, status, counts_messages=local_id in self._with_messages)
            if place is not None:  # of two with the same labels, the one made last
                places[group[0]] = place
        self._with_messages &= {int(text) for text in statuses if text.isdecimal() and len(text) < 10}
        return places


def _place(entries: list[Entry], status: GroupStatus, *, counts_messages: bool) -> Position | None:
    """How far a group has come; None where nothing tells it.

    The status of a group counts sends and receives among the collectives, which differ between its
    ranks; gloo does so without an entry for them. The numbers of entries are those of collectives. That a
    rank waits in a send or a receive is known without a number: it is a victim, not one that left.
    """
    open_entries = [each for each in entries if not each.complete]
    collectives = [each for each in open_entries if not each.is_p2p]
    first = min(collectives, key=lambda each: each.collective_seq_id, default=None)
    enqueued = max((each.collective_seq_id for each in entries), default=0)
    completed = first.collective_seq_id - 1 if first is not None else enqueued
    created = [each.time_created_ns for each in open_entries if each.time_created_ns > 0]
    if not enqueued:
        if counts_messages:
            return Position(enqueued=None, completed=None, oldest=min(created) / 1e9) if created else None
        enqueued, completed = status.last_enqueued_collective, status.last_completed_collective
    return Position(
        enqueued=max(0, enqueued),
        completed=max(0, completed),
        oldest=min(created) / 1e9 if created else None,
        signature=signature(first) if first is not None else None,
    )
