"""Coalesced calls: the entries of their parts, and the entry that closes them and holds their state.

ProcessGroupNCCL.cpp records the parts of `batch_isend_irecv` without events (`pointToPoint`), since 2.7 also
those of an uneven `all_gather` or `reduce_scatter` (`collective`): they stay `scheduled` and never retire.
`endCoalescing` records the entry that closes the call, with the numbers of its last part, without tensors and
with `is_p2p` false, before it launches anything. Where `is_p2p` is true there, it means the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rankwatch_agent.training.flight_recorder.parse import Entry

NO_PART = -1
UNCLOSED = -2
"""The entry that closes the call is not in the dump: it was left out because it is complete, or the rank has
not come to it and has launched nothing."""
SUFFIX = "coalesced"
_BATCH = ":" + SUFFIX
_NAMES_OF_PARTS = ("_broadcast_oop", "_reduce_oop")
"""Operations that exist only inside a coalesced call."""
MAY_BE_COALESCED = (SUFFIX, *_NAMES_OF_PARTS)
"""Ends of the names of what may belong to a coalesced call, beside sends and receives."""
_Group = tuple[int, tuple[str, str] | None]


def join_calls(entries: Sequence[Entry]) -> None:
    """Give each part the state of its call, and each closing entry the kind of its parts, in place.

    Parts have the numbers of the entry that closes them, and precede it in their group. Where the ring begins
    between the two, the entry is taken for a batch of messages: that is no evidence against any rank.
    """
    calls: dict[_Group, list[Entry]] = {}
    for position, entry in enumerate(entries):
        group = (entry.pg_id, entry.process_group)
        parts = calls.get(group)
        if closes(entry):
            if parts and _same_call(parts[0], entry) and _without_events(parts):
                _close(calls.pop(group), entry)
            elif position == 0 and entry.record_id > 0 and entry.p2p_seq_id > 0:
                entry.is_p2p = entry.is_p2p or entry.profiling_name.endswith(_BATCH)
            entry.is_p2p = bool(entry.is_p2p)
        elif parts and entry.is_p2p == parts[0].is_p2p and _same_call(parts[0], entry):
            parts.append(entry)
        else:
            _leave_open(parts)
            calls[group] = [entry]
    for parts in calls.values():
        _leave_open(parts)


def closes(entry: Entry) -> bool:
    """True for an entry that closes a coalesced call, and has no tensors of its own.

    Other calls on several tensors, such as `allreduce_coalesced`, have one entry with all of them.
    """
    return not entry.input_sizes and not entry.output_sizes and entry.profiling_name.endswith(SUFFIX)


def _same_call(one: Entry, other: Entry) -> bool:
    """Whether both have the numbers of one call. Formats before 2.0 have one kind of number."""
    known = one.seq_id >= 0 or (one.p2p_seq_id if one.is_p2p else one.collective_seq_id) >= 0
    return known and one.collective_seq_id == other.collective_seq_id and one.p2p_seq_id == other.p2p_seq_id


def _without_events(parts: Sequence[Entry]) -> bool:
    return not any(each.retired or each.state != "scheduled" for each in parts)


def _close(parts: Sequence[Entry], end: Entry) -> None:
    for part in parts:
        part.closed_by = end.record_id
        part.state, part.retired = end.state, end.retired
        part.time_discovered_completed_ns = end.time_discovered_completed_ns
    if parts[0].is_p2p:
        end.is_p2p = True
        end.input_sizes = tuple(size for part in parts for size in part.input_sizes or ())
        end.input_dtypes = tuple(name for part in parts for name in part.input_dtypes or ())


def _leave_open(parts: Sequence[Entry] | None) -> None:
    """Several entries with one number are parts, and so is an operation that is never called alone."""
    if not parts or not _without_events(parts):
        return
    if len(parts) > 1 or parts[0].profiling_name.endswith(_NAMES_OF_PARTS):
        for part in parts:
            part.closed_by = UNCLOSED
