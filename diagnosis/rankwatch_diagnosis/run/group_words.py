"""What the boxes tell about each process group: who is in it, and what each rank called and completed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from rankwatch.blackbox import layout
from rankwatch.blackbox.layout import RecordKind
from rankwatch.blackbox.records import GroupNow
from rankwatch_diagnosis.run.box import Box
from rankwatch_diagnosis.run.members import parse_members

MOST_HISTORY = 2_000
"""Newest collectives of a group that are looked at."""
MESSAGES = ("send", "recv")

GroupName = tuple[str, str]
"""Label and members in short form: the same on all ranks of a group."""


@dataclass(frozen=True, kw_only=True)
class GroupWords:
    """One group by the box of one rank; collectives are numbered from 0."""

    now: GroupNow
    members: tuple[int, ...]
    completed: Mapping[int, tuple[str, float]]
    """Number of a collective that ended -> its operation and when it was enqueued, monotonic."""
    last_end: float
    """Newest end of a collective that was seen, monotonic; 0.0 where none was."""
    newest: float
    """Newest enqueue or end of any of its operations, monotonic; 0.0 for none."""
    messages: bool
    """Sends or receives are in it."""
    failed_from: int | None
    """Number of the first collective that ended with an error; None where all went well."""
    completions_seen: bool
    """Some box shows that an operation of this group was completed, or is not: with gloo, not with NCCL."""

    @property
    def last_untold(self) -> bool:
        """Whether the last collective is neither open nor seen to have ended: it may have begun just now."""
        last = self.now.enqueued - 1
        return self.completions_seen and last >= 0 and not self.now.oldest and last not in self.completed

    def pending(self) -> list[int]:
        """Collectives that are enqueued and not complete; empty also where a send or receive is waited for.

        Numbers follow the order of enqueues, so nothing before the oldest incomplete one is pending.
        """
        if not self.now.oldest:
            return []
        before = [number for number, (_, at) in self.completed.items() if at < self.now.oldest]
        first = max(before, default=max(-1, self.now.enqueued - MOST_HISTORY - 1)) + 1
        if not before and not self.completed:
            first = self.now.enqueued - 1
        first = max(0, first, self.now.enqueued - MOST_HISTORY)  # a box may say any number
        return [each for each in range(first, self.now.enqueued) if each not in self.completed]


def group_words(boxes: Mapping[int, Box]) -> dict[int, list[GroupWords]]:
    """The groups of each rank."""
    tables = {rank: _records(box) for rank, box in boxes.items()}
    named = [(rank, each) for rank, box in boxes.items() for each in box.now.groups]
    members = _members(named, next(iter(boxes.values())).header.identity.world_size)
    seen = {
        (each.name, each.members)
        for rank, each in named
        if each.oldest or tables[rank].get(each.number, _NOTHING).ends_seen
    }
    found: dict[int, list[GroupWords]] = {rank: [] for rank in boxes}
    for rank, group in named:
        name = (group.name, group.members)
        if rank not in members[name]:
            continue
        records = tables[rank].get(group.number, _NOTHING)
        found[rank].append(
            GroupWords(
                now=group,
                members=members[name],
                completed=records.completed,
                last_end=records.last_end,
                newest=max(records.newest, group.oldest),
                messages=records.messages or group.operation in MESSAGES,
                failed_from=records.failed_from,
                completions_seen=name in seen,
            )
        )
    return found


@dataclass
class _Records:
    completed: dict[int, tuple[str, float]]
    failed_from: int | None = None
    ends_seen: bool = False
    last_end: float = 0.0
    newest: float = 0.0
    messages: bool = False


_NOTHING = _Records({})


def _records(box: Box) -> dict[int, _Records]:
    """By number of the group's name: what ended; sends and receives only say that ends are seen."""
    found: dict[int, _Records] = {}
    for record in box.records:
        if record.kind != RecordKind.COLLECTIVE:
            continue
        _, number, group, flags, _ = layout.COLLECTIVE.unpack_from(record.payload)
        of_group = found.setdefault(group, _Records({}))
        of_group.newest = max(of_group.newest, record.end)
        of_group.ends_seen |= not flags & layout.UNTIMED
        if flags & layout.POINT_TO_POINT:
            of_group.messages = True
            continue
        if not flags & layout.UNTIMED:
            of_group.last_end = max(of_group.last_end, record.end)
        of_group.completed[number] = (box.names.get(record.name, ""), record.start)
        if flags & layout.FAILED and (of_group.failed_from is None or number < of_group.failed_from):
            of_group.failed_from = number
    return found


def _members(named: Iterable[tuple[int, GroupNow]], world_size: int) -> dict[GroupName, tuple[int, ...]]:
    """By the text where it is whole; else everyone, for a group of that size, or whoever speaks of it."""
    speakers: dict[GroupName, set[int]] = {}
    sizes: dict[GroupName, int] = {}
    for rank, group in named:
        speakers.setdefault((group.name, group.members), set()).add(rank)
        sizes[(group.name, group.members)] = group.size
    found = {}
    for name, ranks in speakers.items():
        told = parse_members(name[1], sizes[name])
        if told is None or told[-1] >= world_size:
            told = tuple(range(world_size)) if sizes[name] == world_size else tuple(sorted(ranks))
        found[name] = told
    return found
