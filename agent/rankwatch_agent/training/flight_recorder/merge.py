"""Merges one dump of a flight recorder after another: each entry once, gaps counted."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from rankwatch.blackbox.records import GroupNow
from rankwatch.members import members_text
from rankwatch_agent.training.collectives.totals import (
    OVERFLOW,
    UNKNOWN_BYTES,
    BoundedNames,
    CollectiveTotals,
    GroupCollectives,
    GroupKey,
    Position,
    totals_of,
)
from rankwatch_agent.training.flight_recorder.operations import (
    NO_PART,
    backend_of,
    closes,
    input_bytes,
    operation_of,
    signature,
)
from rankwatch_agent.training.flight_recorder.parse import Dump, Entry, GroupConfig, GroupStatus

_RECORDED_BY_BLACK_BOX = "gloo"
"""Backend whose completions the black box records, each of them."""
_MOST_RANKS = 1 << 16
_LONGEST_NAME = 256
"""Characters of the name of a group that are remembered."""
_NUMBER = re.compile(r"\d{1,9}")
_UNNAMED = ("", "undefined")
"""Descriptions that name nothing."""


class GroupNames:
    """The groups of one process of a rank.

    A recorder keys the status of its groups by a local id, their members by name, and only entries
    link the two: what was linked once stays linked.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._linked: dict[int, tuple[str, str]] = {}
        """Local id -> name and description."""
        self._members: dict[str, tuple[str, int]] = {}
        """Name -> members and number of ranks, by the recorder."""
        self._known: dict[str, tuple[str, int]] = {}
        """Label -> members and number of ranks, by the black box."""

    def learn(
        self,
        entries: Iterable[Entry],
        configs: Mapping[str, GroupConfig],
        known: Iterable[GroupNow],
    ) -> None:
        """Take one dump, and the groups in the rank's black box: gloo's recorder knows no members."""
        for entry in entries:
            name, description = entry.group
            self._linked[entry.pg_id] = (name[:_LONGEST_NAME], description[:_LONGEST_NAME])
        for oldest in sorted(self._linked)[: -self._most]:
            del self._linked[oldest]
        for name, config in list(configs.items())[: self._most]:
            ranks = _ranks(config.ranks)
            shown = name[:_LONGEST_NAME]
            if ranks and shown not in self._members and len(self._members) < self._most:
                self._members[shown] = (members_text(ranks), len(ranks))
        self._known = {}
        ambiguous = set()
        for group in known:
            if self._known.setdefault(group.name, (group.members, group.size))[0] != group.members:
                ambiguous.add(group.name)
        for label in ambiguous:
            del self._known[label]

    def of(self, local_id: int) -> tuple[GroupKey, int] | None:
        """Return labels and number of ranks (0: not known) of a group; None where it is not known by name."""
        linked = self._linked.get(local_id)
        if linked is None:
            return None
        name, description = linked
        label = name if description in _UNNAMED else description
        members, size = self._members.get(name) or self._known.get(label) or ("", 0)
        return GroupKey(label, members), size


def _ranks(listed: str | Sequence[int]) -> list[int]:
    if isinstance(listed, str):
        return [int(each) for each in _NUMBER.findall(listed[: 8 * _MOST_RANKS])][:_MOST_RANKS]
    return [each for each in listed[:_MOST_RANKS] if each >= 0]


class MergedRecorder:
    """What the dumps of one recorder of one rank add up to, across restarts of its process."""

    def __init__(self, max_groups: int, *, only_active: bool = False) -> None:
        self.missed = 0
        """Entries overwritten before they were read, or not understood: ids that are absent. 0 where dumps
        are `only_active`: what is absent there has completed."""
        self._only_active = only_active
        self.positions: dict[GroupKey, Position] = {}
        """How far the rank has come in each group, by the last pull."""
        self.totals: dict[tuple[str, str, str], CollectiveTotals] = {}
        """(group, members, operation) -> completed collectives that were seen: a sample where entries were
        missed. Sends and receives count too, a batch of them once; what the black box records does not."""
        self._names = BoundedNames(max_groups)
        self._max_groups = max_groups
        self._begin_process()

    def _begin_process(self) -> None:
        self._groups = GroupNames(self._max_groups)
        self._compared: dict[GroupKey, GroupCollectives] = {}
        self._last_id = -1
        self._last_created = 0
        self._pending: set[int] = set()
        """Record ids of entries that were read and not complete."""
        self._with_messages: set[int] = set()
        """Local ids of groups whose status counts sends and receives, too: no number of a collective."""
        self._timed = False

    @property
    def groups(self) -> Sequence[GroupCollectives]:
        """Collectives with a duration, for comparison with other ranks."""
        return tuple(self._compared.values())

    def merge(self, dump: Dump, known: Iterable[GroupNow] = ()) -> None:
        """Take one dump; `known` are the groups in the rank's black box."""
        entries = {entry.record_id: entry for entry in dump.entries}
        ordered = [entries[number] for number in sorted(entries)]
        if self._is_another_process(ordered, entries):
            self._begin_process()
        self._groups.learn(ordered, dump.pg_config, known)
        self._count(ordered)
        self.positions = self._positions(ordered, dump.pg_status)
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
        if new and not self._only_active:
            first = self._last_id + 1 if self._last_id >= 0 else new[0].record_id
            self.missed += new[-1].record_id + 1 - first - len(new)
        self._timed = self._timed or any(entry.duration_ms is not None for entry in new)
        parts: dict[int, list[Entry]] = {}
        for entry in ordered:
            if entry.closed_by >= 0:
                parts.setdefault(entry.closed_by, []).append(entry)
            if entry.complete and (entry.record_id > self._last_id or entry.record_id in self._pending):
                self._completed(entry, parts.get(entry.record_id, ()))

    def _completed(self, entry: Entry, parts: Sequence[Entry]) -> None:
        """Count an entry that is seen complete for the first time, and the parts that it closes."""
        group = self._groups.of(entry.pg_id)
        if group is None or entry.closed_by != NO_PART or backend_of(entry) == _RECORDED_BY_BLACK_BOX:
            return
        duration = entry.duration_ms
        if (self._timed and duration is None) or (closes(entry) and not parts):
            return  # its time or its bytes are lost, and a count without them would make the mean too low
        key, ranks = group
        operation = self._names.bound("operation", operation_of(entry))
        if self._names.bound("group", " ".join(key)) == OVERFLOW:
            return
        totals = totals_of(self.totals, key, operation)
        size = input_bytes(entry, parts)
        seconds = (duration or 0.0) / 1e3
        if not 0.0 <= seconds < 1e10:
            return
        totals.count += 1
        totals.bytes += size or 0
        totals.sized = totals.sized and size is not None
        totals.seconds += seconds
        if duration is None:
            return
        totals.timed = True
        if not entry.is_p2p:
            compared = self._compared.get(key)
            if compared is None:
                compared = self._compared[key] = GroupCollectives(key, ranks)
            known = UNKNOWN_BYTES if size is None else size
            compared.completed[entry.collective_seq_id] = (seconds, known, totals)

    def _positions(self, ordered: list[Entry], statuses: dict[str, GroupStatus]) -> dict[GroupKey, Position]:
        """Return the positions in groups of this dump alone: those that were destroyed are gone."""
        by_group: dict[int, list[Entry]] = {}
        for entry in ordered:
            if entry.closed_by == NO_PART:
                by_group.setdefault(entry.pg_id, []).append(entry)
        positions: dict[GroupKey, Position] = {}
        by_id = {int(text): each for text, each in statuses.items() if text.isdecimal() and len(text) < 10}
        for local_id, status in list(by_id.items())[: self._max_groups]:
            group = self._groups.of(local_id)
            if group is None:
                continue
            own = by_group.get(local_id, [])
            last = max((each.collective_seq_id for each in own), default=0)
            if any(each.is_p2p for each in own) or 0 < last != status.last_enqueued_collective:
                self._with_messages.add(local_id)
            position = _position(own, status, counts_messages=local_id in self._with_messages)
            if position is not None:  # of two with the same labels, the one made last
                positions[group[0]] = position
        self._with_messages &= by_id.keys()
        return positions


def _position(entries: list[Entry], status: GroupStatus, *, counts_messages: bool) -> Position | None:
    """Return how far the rank has come in a group; None where it is not known.

    Entries hold the numbers of collectives. The status of a group counts sends and receives too, in which its
    ranks differ, and gloo's does so without an entry for them. A rank that waits in a send or a receive has a
    position without numbers: it is a victim, not a rank that left.
    """
    open_entries = [each for each in entries if not each.complete]
    collectives = [each for each in open_entries if not each.is_p2p]
    first = min(collectives, key=lambda each: each.collective_seq_id, default=None)
    enqueued = max((each.collective_seq_id for each in entries), default=0)
    completed = first.collective_seq_id - 1 if first is not None else enqueued
    created = [each.time_created_ns for each in open_entries if each.time_created_ns > 0]
    if enqueued <= 0:
        if counts_messages:
            return Position(enqueued=None, completed=None, oldest=min(created) / 1e9) if created else None
        enqueued, completed = status.last_enqueued_collective, status.last_completed_collective
    return Position(
        enqueued=max(0, enqueued),
        completed=max(0, completed),
        oldest=min(created) / 1e9 if created else None,
        signature=signature(first) if first is not None else None,
    )
