"""The last words of the boxes, in the form in which the hang engine takes flight recorders.

A box tells for each group how many collectives were enqueued, which ended, and since when the oldest is open.
It tells neither sizes of what is open nor the peer of a send or receive.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from rankwatch.blackbox import layout
from rankwatch.blackbox.layout import RecordKind
from rankwatch.blackbox.records import GroupNow
from rankwatch.conventions import ENDED_STATES, RankState
from rankwatch_diagnosis.hang.snapshot import UNKNOWN, GroupView, HangSnapshot, Operation, Signature
from rankwatch_diagnosis.run.boxes import Box, Boxes

MOST_MEMBERS = 1 << 16
_PART = re.compile(r"(\d{1,7})(?:-(\d{1,7})(?:/(\d{1,7}))?)?")


def parse_members(text: str, size: int) -> tuple[int, ...] | None:
    """The ranks in ascending order; None where the text is cut, or does not fit the size of the group."""
    found: list[int] = []
    for part in text.split(","):
        match = _PART.fullmatch(part)
        if match is None:
            return None
        first, last, stride = int(match[1]), int(match[2] or match[1]), int(match[3] or 1)
        if stride < 1 or last < first or (last - first) // stride + len(found) >= MOST_MEMBERS:
            return None
        found.extend(range(first, last + 1, stride))
    return tuple(sorted(found)) if len(set(found)) == len(found) == size else None


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


VERSION = "black box"
_MOST_PEERS = 256
_MOST_PENDING = 64
"""Of a group whose completions nobody sees; the first is what counts."""


class _Open(NamedTuple):
    """An operation that is not complete. `peer` is an index in the group; UNKNOWN for a collective."""

    since: float
    group: int
    number: int
    name: str
    peer: int = UNKNOWN


def box_snapshots(boxes: Boxes, *, timed: bool) -> list[HangSnapshot]:
    """One for each rank; `timed`: as of when its box was read, else as of a stall.

    A process that has ended waits for nobody, and what it had enqueued last it will not complete.
    """
    words = group_words(boxes.by_rank)
    lowest = _lowest_enqueued(words)
    return [
        _snapshot(box, words[rank], lowest, gone=_gone(box, boxes), timed=timed)
        for rank, box in boxes.by_rank.items()
    ]


def _gone(box: Box, boxes: Boxes) -> bool:
    """Whether it ended by itself, not because another rank had stopped."""
    if box.state is RankState.LOST:
        return boxes.liveness_known
    return box.state in ENDED_STATES and box.state is not RankState.TERMINATED


def _lowest_enqueued(words: Mapping[int, list[GroupWords]]) -> dict[tuple[str, str], int]:
    """By group: how many collectives the rank with the fewest has enqueued, of those with a box."""
    lowest: dict[tuple[str, str], int] = {}
    for groups in words.values():
        for each in groups:
            key = (each.now.name, each.now.members)
            lowest[key] = min(each.now.enqueued, lowest.get(key, each.now.enqueued))
    return lowest


def _snapshot(
    box: Box,
    groups: list[GroupWords],
    lowest: Mapping[tuple[str, str], int],
    *,
    gone: bool,
    timed: bool,
) -> HangSnapshot:
    signatures: dict[str, int] = {}
    views, pending = [], []
    for index, words in enumerate(groups):
        still_open = _open_operations(index, words, lowest[(words.now.name, words.now.members)], box)
        enqueued = words.now.enqueued
        if gone:
            ends = [each.number for each in still_open if each.peer == UNKNOWN]
            ends += [] if words.failed_from is None else [words.failed_from]
            enqueued = min([enqueued, *ends])
            still_open = []
        views.append(_view(index, words, enqueued, still_open, signatures, box))
        pending += still_open
    return HangSnapshot(
        rank=box.rank,
        version=VERSION,
        groups=views,
        signatures=[Signature(name, name, name) for name in signatures],
        pending=_operations(pending, box),
        status={},
        newest_ns=int(box.wall(box.last_sign) * 1e9),
        newest_record=len(box.records),
        taken_ns=int(box.seen_wall * 1e9) if timed else 0,
        moved_ns=int(box.wall(max((each.newest for each in groups), default=0.0)) * 1e9),
    )


def _view(
    index: int,
    words: GroupWords,
    enqueued: int,
    still_open: list[_Open],
    signatures: dict[str, int],
    box: Box,
) -> GroupView:
    last = {each.number: each.name for each in still_open if each.peer == UNKNOWN}
    known = {number: name for number, (name, _) in words.completed.items()}
    first = max(0, enqueued - MOST_HISTORY, min([*known, *last], default=enqueued - 1))
    since = {number: at for number, (_, at) in words.completed.items()}
    if words.now.oldest and last:
        since[min(last)] = words.now.oldest  # when those after it were enqueued no word tells
    history, created = [], []
    for number in range(first, enqueued):
        created.append(int(box.wall(since[number]) * 1e9) if number in since else 0)
        name = known.get(number) or last.get(number, "")
        history.append(signatures.setdefault(name, len(signatures)) if name else UNKNOWN)
    return GroupView(
        name=words.now.members or words.now.name,
        description=words.now.name,
        ranks=str(list(words.members)),
        local_id=index,
        first_sequence=first + 1,
        history=history,
        point_to_point=any(each.peer != UNKNOWN for each in still_open),
        created=created,
        ended_ns=0 if words.last_untold or not words.last_end else int(box.wall(words.last_end) * 1e9),
    )


def _open_operations(index: int, words: GroupWords, lowest: int, box: Box) -> list[_Open]:
    now = words.now
    if not words.completions_seen:
        # NCCL: what all ranks of the group have enqueued is taken as completed, the rest as waited in.
        numbers = range(lowest, now.enqueued)[:_MOST_PENDING]
        return [_Open(box.last_sign, index, each, _name(words, each)) for each in numbers]
    if not now.oldest:
        return []
    numbers_open = words.pending()
    if numbers_open and now.operation not in MESSAGES:
        return [_Open(now.oldest, index, each, _name(words, each)) for each in numbers_open]
    if not words.messages:
        return []  # it has ended while the box was read
    return [_Open(now.oldest, index, 0, *each) for each in _to_peers(words, box)]


def _name(words: GroupWords, number: int) -> str:
    """Only the operation enqueued last is told by name."""
    last = number == words.now.enqueued - 1 and words.now.operation not in MESSAGES
    return words.now.operation if last else ""


def _to_peers(words: GroupWords, box: Box) -> list[tuple[str, int]]:
    """A send or receive whose peer the box does not tell: in a pipeline's own group it is a neighbour.

    Taking all that it may be is safe: who waits is no culprit, and who waits for nobody is found along any.
    """
    name = words.now.operation if words.now.operation in MESSAGES else "recv"
    at = words.members.index(box.rank)
    stages = box.header.identity.coordinates.get("pp", (0, 0))[1]
    near = len(words.members) == stages or len(words.members) > _MOST_PEERS
    peers = (at - 1, at + 1) if near else range(len(words.members))
    return [(name, peer) for peer in peers if 0 <= peer < len(words.members) and peer != at]


def _operations(pending: list[_Open], box: Box) -> list[Operation]:
    """In the order of their enqueues; both guesses at the peer of a message are one operation."""
    found = []
    records: dict[tuple[float, int, int, bool], int] = {}
    for each in sorted(pending, key=lambda each: (each.since, each.group, each.number)):
        key = (each.since, each.group, each.number, each.peer == UNKNOWN)
        record = records.setdefault(key, len(box.records) + len(records))
        found.append(
            Operation(
                record=record,
                group=each.group,
                sequence=each.number + 1,
                name=each.name or "collective",
                peer=each.peer,
                sends=each.name == "send",
                started=False,
                created_ns=int(box.wall(each.since) * 1e9),
            )
        )
    return found
