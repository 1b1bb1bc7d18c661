"""Messages between ranks: which send belongs to which receive, who waits for whom, and how long one travels.

In a rendezvous neither end leaves before both have come, so that the one that came last spends the transfer
alone. A send that is buffered leaves at once, and only the receive waits:

    rendezvous:  end of both = later arrival + transfer,     transfer = the shorter of both durations
    buffered:    end of the receive = end of the send,        transfer = duration of the send

Sends and receives that a rank begins together and leaves together are a batch (`batch_isend_irecv`): it ends
when the last of its messages has arrived. Where the table shows the peer of each message, channels are pairs
of ranks; else the stages, the microbatches and the names tell which belong together.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rankwatch_diagnosis.operations.groups import Bools, Floats, Groups, Ints, cumcount, factorize
from rankwatch_diagnosis.operations.table import NO_PEER, NO_ROW, Kind, OperationTable
from rankwatch_diagnosis.straggler.graph.chains import ROUNDING_SECONDS, clock_seconds

_UNKNOWN, _FORWARD, _BACKWARD = 0, 1, -1
_BUFFERED_SHARE = 0.02
"""Of messages whose receive begins when the send is long over: in a rendezvous that cannot be."""
_MOST_UNMATCHED = 0.25
"""Share of one end without the other. Up to here these are gaps in the table, and they hold a wait."""
_SHORTEST = 0.1
"""Quantile of durations that stands for the transfer alone, where only one end is recorded."""


def match_messages(table: OperationTable) -> tuple[Ints, Ints, Ints, Ints, Floats]:
    """Match all messages of a table; by row, -1 for none.

    The row at the other end; the row whose arrival it waits for (that one, in a rendezvous); the row of
    another rank whose end it waits for; the number of the batch that it ends with; and the seconds without
    the wait, 0 for rows that are no messages.
    """
    sends, receives = table.sends, table.receives
    nobody = np.full(len(table), NO_ROW, dtype=np.int64)
    partner, waits_for = nobody.copy(), nobody.copy()
    # Position of a rank among those of its replica and stage.
    home = Groups.by(table.replica, table.stage).number
    member = Groups.by(home, table.rank)
    shard = cumcount(member.first(home))[member.number]
    if sends.any() or receives.any():
        _match(table, shard, partner)
    if len(np.unique(table.stage)) > 1 and not (receives.any() and sends.any()):
        _wait_for_passes(table, shard, waits_for)
    batch = _batches(table, sends | receives)
    matched = partner != NO_ROW
    buffered = (sends | receives) & (batch.number < 0) & _are_buffered(table, partner, receives, batch.number)
    meets = np.where(matched & ~buffered, partner, NO_ROW)
    late = receives & buffered & matched
    waits_for[late] = partner[late]
    transfer = _transfers(table, sends | receives, partner, waits_for, batch)
    transfer[sends & buffered] = table.duration_seconds[sends & buffered]
    transfer[receives & buffered & matched] = 0.0  # a receive waits; the transfer is the sender's
    return partner, meets, waits_for, batch.number, transfer


def _match(table: OperationTable, shard: Ints, partner: Ints) -> None:
    """Match by channels: pairs of ranks where peers are known, else what a stage sends to the next one."""
    sends, messages = table.sends, table.sends | table.receives
    if table.peer is not None:
        known = messages & (table.peer != NO_PEER)
        rows = np.flatnonzero(known)
        own, peer = table.rank[rows], table.peer[rows]
        source, target = np.where(sends[rows], (own, peer), (peer, own))
        channel = Groups.by(table.step[rows], source, target).number
        _match_channels(table.order, rows, channel, sends[rows], partner)
        messages = messages & ~known
        if not messages.any():
            return
    forward = _goes_forward(table)
    rows = np.flatnonzero(messages)
    ahead = np.where(forward[rows], 1, -1)
    # A message is named by where it arrives.
    arrives = table.stage[rows] + np.where(sends[rows], ahead, 0)
    channel = Groups.by(*_place(table, shard, rows), arrives, forward[rows].astype(np.int64)).number
    _match_channels(table.order, rows, channel, sends[rows], partner)


def _match_channels(order: Ints, rows: Ints, channel: Ints, sent: Bools, partner: Ints) -> None:
    """Link the n-th receive of a channel to the n-th send of it."""
    message = Groups.by(channel, cumcount(channel * 2 + sent, _in_time(order, rows))).number
    _link(rows, message, sent, ~sent, partner)
    _link(rows, message, ~sent, sent, partner)


def _link(rows: Ints, message: Ints, given: Bools, asking: Bools, found: Ints) -> None:
    """Write the given row of each message into `found` at its asking row."""
    at = np.full(int(message.max()) + 1, NO_ROW, dtype=np.int64)
    at[message[given]] = rows[given]
    found[rows[asking]] = at[message[asking]]


def _batches(table: OperationTable, messages: Bools) -> Groups:
    """Return by row its batch, -1 for none: messages of a rank with one start and one duration."""
    rows = table.order[messages[table.order]]
    number = np.full(len(table), NO_ROW, dtype=np.int64)
    if rows.size < 2:
        return Groups(number, 0)
    ends = table.end_seconds[rows]
    together = (np.diff(table.rank[rows]) == 0) & (np.diff(table.step[rows]) == 0)
    together &= np.abs(np.diff(table.start_seconds[rows])) <= ROUNDING_SECONDS
    together &= (np.abs(np.diff(ends)) <= ROUNDING_SECONDS) & (table.duration_seconds[rows][1:] > 0.0)
    begins = np.r_[True, ~together]
    which = np.cumsum(begins) - 1
    several = np.bincount(which)[which] > 1
    if not several.any():
        return Groups(number, 0)
    batch, batches = factorize(which[several])
    number[rows[several]] = batch
    return Groups(number, len(batches))


def _are_buffered(table: OperationTable, partner: Ints, receives: Bools, batch: Ints) -> bool:
    """Return True if receives often begin when their send is over, so that sends do not wait for them."""
    rows = np.flatnonzero(receives & (partner != NO_ROW) & (batch < 0))
    rows = rows[batch[partner[rows]] < 0]
    if rows.size == 0:
        return False
    send = partner[rows]
    over = table.end_seconds[send] + clock_seconds(table)
    return bool(np.mean(table.start_seconds[rows] > over) > _BUFFERED_SHARE)


def _transfers(
    table: OperationTable, messages: Bools, partner: Ints, waits_for: Ints, batch: Groups
) -> Floats:
    """Return by row what the end that came last spends; in a batch, what its longest message takes."""
    seconds = np.where(messages, table.duration_seconds, 0.0)
    rows = np.flatnonzero(messages)
    matched = rows[partner[rows] != NO_ROW]
    seconds[matched] = np.minimum(seconds[matched], table.duration_seconds[partner[matched]])
    _since_enqueued(table, matched, partner, seconds)
    _without_longer_waits(table, matched, partner, batch, seconds)
    # What waits for a pass of another stage travels when that has ended.
    receives = rows[(partner == NO_ROW)[rows] & (waits_for != NO_ROW)[rows]]
    end = table.end_seconds
    left = end[receives] - np.maximum(table.start_seconds[receives], end[waits_for[receives]])
    seconds[receives] = np.minimum(seconds[receives], np.maximum(left, 0.0))
    _of_one_end(table, rows, partner, seconds)
    inside = np.flatnonzero(batch.number >= 0)
    if inside.size:
        of_batch = Groups(batch.number[inside], batch.count)
        seconds[inside] = of_batch.max(seconds[inside])[of_batch.number]
    return seconds


def _since_enqueued(table: OperationTable, matched: Ints, partner: Ints, seconds: Floats) -> None:
    """Take, of a message enqueued before its end waited, what the other end spends after both have come."""
    ahead = table.ahead_seconds
    if ahead is None:
        return
    came, end = table.start_seconds - ahead, table.end_seconds
    over = np.minimum(end[matched], end[partner[matched]])
    # The messages of a rank travel one after the other.
    moment = np.round(came[matched] / ROUNDING_SECONDS)
    order = np.lexsort((-ahead[matched], moment, table.rank[matched], table.step[matched]))
    following, before = matched[order[1:]], matched[order[:-1]]
    same = (table.rank[following] == table.rank[before]) & (table.step[following] == table.step[before])
    same &= table.start_seconds[following] != table.start_seconds[before]  # not of one batch
    came[following[same]] = np.maximum(came[following], over[order[:-1]])[same]
    rows = matched[(ahead[matched] > 0.0) & (ahead[partner[matched]] == 0.0)]
    other = partner[rows]
    left = end[other] - np.maximum(came[rows], came[other])
    seconds[rows] = seconds[other] = np.clip(left, 0.0, table.duration_seconds[other])


def _without_longer_waits(
    table: OperationTable, matched: Ints, partner: Ints, batch: Groups, seconds: Floats
) -> None:
    """Shorten transfers in a ring of batches, where all wait, to what follows the last arrival."""
    inside = matched[batch.number[matched] >= 0]
    if inside.size == 0:
        return
    pairs = Groups.by(batch.number[inside], table.rank[partner[inside]])
    peers = Groups(pairs.first(batch.number[inside]), batch.count).size()
    ring = inside[(peers[batch.number[inside]] > 1) | (peers[batch.number[partner[inside]]] > 1)]
    if ring.size == 0:
        return
    end = table.end_seconds
    came = np.maximum(table.start_seconds[ring], table.start_seconds[partner[ring]])
    kind = Groups.by(table.operation[ring], table.stage[ring])
    usual = kind.low_quantile(seconds[ring], _SHORTEST)[kind.number]
    left = np.minimum(end[ring], end[partner[ring]])
    seconds[ring] = np.minimum(seconds[ring], np.maximum(left - came, usual))


def _of_one_end(table: OperationTable, rows: Ints, partner: Ints, seconds: Floats) -> None:
    """Give a message with one end in the table what its like take; it may hold a wait for the other end."""
    alone = partner[rows] == NO_ROW
    if not alone.any():
        return
    kind = Groups.by(table.operation[rows], table.stage[rows])
    usual = kind.median(np.where(alone, np.nan, seconds[rows]))
    few = Groups(kind.number[alone], kind.count).size() <= _MOST_UNMATCHED * kind.size()
    shortest = kind.low_quantile(seconds[rows], _SHORTEST)
    usual = np.where(few & np.isfinite(usual), usual, shortest)[kind.number]
    seconds[rows[alone]] = np.minimum(seconds[rows[alone]], usual[alone])


def _wait_for_passes(table: OperationTable, shard: Ints, waits_for: Ints) -> None:
    """Link passes where sends have no rows: forward waits for the stage before, backward for that behind.

    The n-th receive waits for the n-th pass of the stage that sends to it; without receives, the pass itself
    waits for that of its microbatch.
    """
    received = table.receives.any()
    for is_pass, ahead in ((_is_forward, 1), (_is_backward, -1)):
        of_pass = table.named(is_pass)
        rows = np.flatnonzero(of_pass & (table.kind == Kind.COMPUTE))
        asking = np.flatnonzero(of_pass & table.receives) if received else rows
        if rows.size == 0 or asking.size == 0:
            continue
        both = np.r_[rows, asking]
        gives = np.arange(len(both)) < len(rows)
        arrives = table.stage[both] + np.where(gives, ahead, 0)
        if received:
            channel = Groups.by(table.step[both], table.replica[both], shard[both], arrives).number
            number = cumcount(channel * 2 + gives, _in_time(table.order, both))
            message = Groups.by(channel, number).number
        else:
            message = Groups.by(*_place(table, shard, both), arrives).number
        _link(both, message, gives, ~gives, waits_for)


def _place(table: OperationTable, shard: Ints, rows: Ints) -> tuple[NDArray[np.integer], ...]:
    """Return what both ends of a message have in common: step, replica, shard and microbatch."""
    return table.step[rows], table.replica[rows], shard[rows], table.microbatch[rows]


def _in_time(order: Ints, rows: Ints) -> Ints:
    """Return indices that put the rows into the given order of all rows."""
    position = np.empty(len(order), dtype=np.int64)
    position[order] = np.arange(len(order))
    return np.argsort(position[rows], kind="stable")


def _goes_forward(table: OperationTable) -> Bools:
    """Say by row if the message goes to the next stage. Without a known direction, forward comes first."""
    sends, receives = table.sends, table.receives
    direction = _directions(table)
    rows = np.flatnonzero(sends | receives)
    own = Groups.by(table.step[rows], table.rank[rows], table.stage[rows], table.microbatch[rows]).number
    second = np.zeros(len(table), dtype=np.bool_)
    second[rows] = cumcount(own * 2 + sends[rows], _in_time(table.order, rows)) > 0
    low, high = table.stage.min(), table.stage.max()
    # The last stage sends only gradients, and the first one receives only gradients.
    only_back = (sends & (table.stage == high)) | (receives & (table.stage == low))
    forward: Bools = np.where(direction != _UNKNOWN, direction > 0, ~(second | only_back)).astype(np.bool_)
    return forward


def _directions(table: OperationTable) -> NDArray[np.int8]:
    """Return the direction by row: 1 forward, -1 backward, 0 where it is unknown.

    The name of a message gives its direction, or else its neighbour does: a rank sends what it computed just
    before, and it computes next with what it receives.
    """
    by_name = np.array([_direction_of(name) for name in table.operations], dtype=np.int8)
    direction = by_name[table.operation]
    unnamed = (table.sends | table.receives) & (direction == _UNKNOWN)
    if not unnamed.any():
        return direction
    order = table.order
    known = ((table.kind == Kind.COMPUTE) & (direction != _UNKNOWN))[order]
    count = len(order)
    position = np.arange(count)
    before = np.maximum.accumulate(np.where(known, position, -1))
    behind = np.minimum.accumulate(np.where(known, position, count)[::-1])[::-1]
    neighbour = np.where(table.sends[order], before, behind)
    there = np.clip(neighbour, 0, count - 1)
    same = (neighbour == there) & (table.step[order][there] == table.step[order])
    same &= table.rank[order][there] == table.rank[order]
    of_neighbour = np.zeros(count, dtype=np.int8)
    of_neighbour[order] = np.where(same, direction[order][there], _UNKNOWN)
    return np.where(unnamed, of_neighbour, direction)


def _direction_of(name: str) -> int:
    forward, backward = _is_forward(name), _is_backward(name)
    return _UNKNOWN if forward == backward else _FORWARD if forward else _BACKWARD


def _is_forward(name: str) -> bool:
    return "forward" in name.lower() or "fwd" in name.lower()


def _is_backward(name: str) -> bool:
    return "backward" in name.lower() or "bwd" in name.lower()
