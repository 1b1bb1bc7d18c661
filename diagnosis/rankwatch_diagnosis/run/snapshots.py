"""What the black boxes show of collectives, in the form in which the hang engine takes flight recorders.

A box shows for each group how many collectives were enqueued, which of them ended, and since when the oldest
is open. It shows neither sizes of what is open nor the peer of a send or receive.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from rankwatch.blackbox import layout
from rankwatch.blackbox.layout import RecordKind
from rankwatch.blackbox.records import GroupNow
from rankwatch.conventions.states import ENDED_STATES, RankState
from rankwatch_diagnosis.hang.job import UNKNOWN, GroupView, HangSnapshot, Operation, Signature
from rankwatch_diagnosis.run.boxes import ENDED_BY_SIGNAL, Box, Boxes

VERSION = "black box"
MOST_MEMBERS = 1 << 16
MOST_HISTORY = 2_000
"""Newest collectives of a group that are looked at."""
MESSAGES = ("send", "recv")
_MOST_PEERS = 256
_MOST_PENDING = 64
"""Of a group whose completions nobody sees; the first is what counts."""
_PART = re.compile(r"(\d{1,7})(?:-(\d{1,7})(?:/(\d{1,7}))?)?")

GroupName = tuple[str, str]
"""Name and members in short form: the same on all ranks of a group."""


class _Open(NamedTuple):
    """An operation that is not complete. `peer` is an index in the group; UNKNOWN for a collective."""

    since: float
    group: int
    number: int
    name: str
    peer: int = UNKNOWN


@dataclass
class _Ended:
    """Operations of one group that the records show to have ended. Moments are monotonic; 0.0 for none."""

    completed: dict[int, tuple[str, float]] = field(default_factory=dict)
    """Number of a collective -> its operation and when it was enqueued."""
    failed_from: int | None = None
    """Number of the first collective that ended with an error; None where all went well."""
    ends_seen: bool = False
    last_end: float = 0.0
    newest: float = 0.0
    """Newest end of any operation, or enqueue where ends are not seen."""
    messages: bool = False
    oldest_ended: bool = False
    """Whether what the now block calls the oldest open operation ended before the records were read."""


@dataclass(frozen=True, kw_only=True)
class BoxGroup:
    """One group by the box of one rank; collectives are numbered from 0."""

    now: GroupNow
    members: tuple[int, ...]
    ended: _Ended
    completions_seen: bool
    """Some box shows that an operation of this group was completed, or is not: with gloo, not with NCCL."""

    @property
    def messages(self) -> bool:
        """Whether there are sends or receives in it."""
        return self.ended.messages or self.now.operation in MESSAGES

    @property
    def newest(self) -> float:
        """Newest enqueue or end of any of its operations, monotonic; 0.0 for none."""
        return max(self.ended.newest, self.now.oldest)

    @property
    def last_unknown(self) -> bool:
        """Whether the last collective is neither open nor seen to have ended: it may have begun just now."""
        last = self.now.enqueued - 1
        open_or_ended = self.now.oldest or last in self.ended.completed
        return self.completions_seen and last >= 0 and not open_or_ended

    def pending(self) -> list[int]:
        """Return collectives enqueued and not complete; empty also where a send or receive is waited for.

        Numbers follow the order of enqueues, so nothing before the oldest incomplete one is pending.
        """
        oldest, enqueued, completed = self.now.oldest, self.now.enqueued, self.ended.completed
        if not oldest:
            return []
        before = [number for number, (_, at) in completed.items() if at < oldest]
        first = max(before, default=max(-1, enqueued - MOST_HISTORY - 1)) + 1
        if not completed:
            first = enqueued - 1
        first = max(0, first, enqueued - MOST_HISTORY)  # a box may claim any number
        return [each for each in range(first, enqueued) if each not in completed]


def box_snapshots(boxes: Boxes, *, timed: bool) -> list[HangSnapshot]:
    """Return one snapshot for each rank; `timed`: as of when its box was read, else as of a stall.

    A process that has ended waits for nobody, and what it had enqueued last it will not complete.
    """
    states = box_groups(boxes.by_rank)
    # By group how many collectives the rank with the fewest has enqueued, of those with a box.
    lowest: dict[GroupName, int] = {}
    for groups in states.values():
        for each in groups:
            name = (each.now.name, each.now.members)
            lowest[name] = min(each.now.enqueued, lowest.get(name, each.now.enqueued))
    return [
        _snapshot(box, states[rank], lowest, gone=_gone(box, boxes), timed=timed)
        for rank, box in boxes.by_rank.items()
    ]


def box_groups(boxes: Mapping[int, Box]) -> dict[int, list[BoxGroup]]:
    """Return the groups of each rank."""
    tables = {rank: _ended(box) for rank, box in boxes.items()}
    named = [(rank, each) for rank, box in boxes.items() for each in box.now.groups]
    members = _members(named, next(iter(boxes.values())).header.identity.world_size)
    nothing = _Ended()
    seen = {
        (each.name, each.members)
        for rank, each in named
        if each.oldest or tables[rank].get(each.number, nothing).ends_seen
    }
    found: dict[int, list[BoxGroup]] = {rank: [] for rank in boxes}
    for rank, group in named:
        name = (group.name, group.members)
        if rank in members[name]:
            ended = tables[rank].get(group.number, nothing)
            found[rank].append(
                BoxGroup(now=group, members=members[name], ended=ended, completions_seen=name in seen)
            )
    return found


def _ended(box: Box) -> dict[int, _Ended]:
    """Find what ended, by number of the group's name. Sends and receives only show that ends are seen."""
    found: dict[int, _Ended] = {}
    oldest = {each.number: each.oldest for each in box.now.groups if each.oldest}
    for record in box.records:
        if record.kind != RecordKind.COLLECTIVE:
            continue
        _, number, group, flags, waited = layout.COLLECTIVE.unpack_from(record.payload)
        ended = found.setdefault(group, _Ended())
        ended.newest = max(ended.newest, record.end)
        if not flags & layout.UNTIMED:
            ended.ends_seen = True
            ended.oldest_ended |= oldest.get(group) in (record.start, waited)
        if flags & layout.POINT_TO_POINT:
            ended.messages = True
            continue
        if not flags & layout.UNTIMED:
            ended.last_end = max(ended.last_end, record.end)
        ended.completed[number] = (box.names.get(record.name, ""), record.start)
        if flags & layout.FAILED and (ended.failed_from is None or number < ended.failed_from):
            ended.failed_from = number
    return found


def _members(named: Iterable[tuple[int, GroupNow]], world_size: int) -> dict[GroupName, tuple[int, ...]]:
    """Find the members of each group, by its text where that is whole.

    Else they are everyone, for a group of that size, or the ranks that know it.
    """
    knowing: dict[GroupName, set[int]] = {}
    sizes: dict[GroupName, int] = {}
    for rank, group in named:
        knowing.setdefault((group.name, group.members), set()).add(rank)
        sizes[(group.name, group.members)] = group.size
    found = {}
    for name, ranks in knowing.items():
        members = parse_members(name[1], sizes[name])
        if members is None or members[-1] >= world_size:
            members = tuple(range(world_size)) if sizes[name] == world_size else tuple(sorted(ranks))
        found[name] = members
    return found


def parse_members(text: str, size: int) -> tuple[int, ...] | None:
    """Return the ranks that the short form of a group's members (`rankwatch.members`) stands for, in
    ascending order.

    None where the text is cut, or does not fit the size of the group.
    """
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


def _gone(box: Box, boxes: Boxes) -> bool:
    """Say whether it ended by itself, not because another rank had stopped."""
    if box.state is RankState.LOST:
        return boxes.liveness_known
    return box.state in ENDED_STATES - ENDED_BY_SIGNAL


def _snapshot(
    box: Box, groups: list[BoxGroup], lowest: Mapping[GroupName, int], *, gone: bool, timed: bool
) -> HangSnapshot:
    signatures: dict[str, int] = {}
    views, pending = [], []
    for index, group in enumerate(groups):
        still_open = _open_operations(index, group, lowest[(group.now.name, group.now.members)], box)
        enqueued = group.now.enqueued
        if gone:
            ends = [each.number for each in still_open if each.peer == UNKNOWN]
            ends += [] if group.ended.failed_from is None else [group.ended.failed_from]
            enqueued = min([enqueued, *ends])
            still_open = []
        views.append(_view(index, group, enqueued, still_open, signatures, box))
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
    group: BoxGroup,
    enqueued: int,
    still_open: list[_Open],
    signatures: dict[str, int],
    box: Box,
) -> GroupView:
    last = {each.number: each.name for each in still_open if each.peer == UNKNOWN}
    known = {number: name for number, (name, _) in group.ended.completed.items()}
    first = max(0, enqueued - MOST_HISTORY, min([*known, *last], default=enqueued - 1))
    since = {number: at for number, (_, at) in group.ended.completed.items()}
    if group.now.oldest and last:
        since[min(last)] = group.now.oldest  # nothing shows when those after it were enqueued
    history, created = [], []
    for number in range(first, enqueued):
        created.append(int(box.wall(since[number]) * 1e9) if number in since else 0)
        name = known.get(number) or last.get(number, "")
        history.append(signatures.setdefault(name, len(signatures)) if name else UNKNOWN)
    last_end = 0.0 if group.last_unknown else group.ended.last_end
    return GroupView(
        name=group.now.members or group.now.name,
        description=group.now.name,
        ranks=str(list(group.members)),
        local_id=index,
        first_sequence=first + 1,
        history=history,
        point_to_point=any(each.peer != UNKNOWN for each in still_open),
        created=created,
        ended_ns=int(box.wall(last_end) * 1e9) if last_end else 0,
    )


def _open_operations(index: int, group: BoxGroup, lowest: int, box: Box) -> list[_Open]:
    now = group.now
    if not group.completions_seen:
        # NCCL: what all ranks of the group have enqueued is taken as completed, the rest as waited in.
        numbers = range(lowest, now.enqueued)[:_MOST_PENDING]
        return [_Open(box.last_sign, index, each, _name(group, each)) for each in numbers]
    if not now.oldest:
        return []
    pending = group.pending()
    if pending and now.operation not in MESSAGES:
        return [_Open(now.oldest, index, each, _name(group, each)) for each in pending]
    if group.ended.oldest_ended or not group.messages:
        return []  # it has ended while the box was read
    return [_Open(now.oldest, index, 0, *each) for each in _to_peers(group, box)]


def _name(group: BoxGroup, number: int) -> str:
    """Name an operation: only the one enqueued last is known by name."""
    last = number == group.now.enqueued - 1 and group.now.operation not in MESSAGES
    return group.now.operation if last else ""


def _to_peers(group: BoxGroup, box: Box) -> list[tuple[str, int]]:
    """Return the operation with each peer that it may be for: in a pipeline's own group, a neighbour.

    It is safe to take all of them: a rank that waits is not blamed, and any path leads to one that waits for
    nobody.
    """
    name = group.now.operation if group.now.operation in MESSAGES else "recv"
    at = group.members.index(box.rank)
    stages = box.header.identity.coordinates.get("pp", (0, 0))[1]
    near = len(group.members) == stages or len(group.members) > _MOST_PEERS
    peers = (at - 1, at + 1) if near else range(len(group.members))
    return [(name, peer) for peer in peers if 0 <= peer < len(group.members) and peer != at]


def _operations(pending: list[_Open], box: Box) -> list[Operation]:
    """List operations in order of their enqueues; both guesses at the peer of a message are one operation."""
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
