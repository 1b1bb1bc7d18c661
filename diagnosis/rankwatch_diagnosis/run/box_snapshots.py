"""The last words of the boxes, in the form in which the hang engine takes flight recorders.

A box tells for each group how many collectives were enqueued, which ended, and since when the oldest is open.
It tells neither sizes of what is open nor the peer of a send or receive.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from rankwatch.conventions import ENDED_STATES, RankState
from rankwatch_diagnosis.hang.snapshot import UNKNOWN, GroupView, Operation, Signature, Snapshot
from rankwatch_diagnosis.run.box import Box
from rankwatch_diagnosis.run.boxes import Boxes
from rankwatch_diagnosis.run.group_words import MESSAGES, MOST_HISTORY, GroupWords, group_words

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


def box_snapshots(boxes: Boxes, *, timed: bool) -> list[Snapshot]:
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
) -> Snapshot:
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
    return Snapshot(
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
