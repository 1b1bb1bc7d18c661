"""From the dump of one flight recorder to the snapshot that the hang engine judges.

The inner loop of the whole command: two million entries for a thousand ranks.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from rankwatch_agent.training.flight_recorder.operations import (
    EQUAL_SIZES,
    NO_PART,
    SUFFIX,
    UNCLOSED,
    compared_elements,
    standard_name,
)
from rankwatch_agent.training.flight_recorder.parse import Dump, Entry, GroupConfig, Shapes
from rankwatch_diagnosis.hang.job import ANYONE, UNKNOWN, GroupView, HangSnapshot, Operation, Signature

_MESSAGE = re.compile(r"(send|recv) (\d{1,9})(?:->|<-)(\d{1,9}|\?)")
"""A receive from any source has no peer."""
_HIDES_BATCHES = "nccl2:"
_HIDES_MESSAGES = ("gloo:", _HIDES_BATCHES)
"""Beginnings of the names of operations: see `HangSnapshot`."""
_LARGEST_GAP = 10_000
"""Numbers that may be missing between two collectives of one group before the history starts anew."""
_MAX_CONFIGURED = 4096
_MAX_GROUPS = 8192
_MAX_TEXT = 200
_MAX_RANKS_TEXT = 2 << 20
_MAX_DIMENSIONS = 64
_MAX_STATUS_DIGITS = 18
_LATEST_SECONDS = 1e11
"""Later than any Unix time."""


def snapshot_of(dump: Dump, rank: int) -> HangSnapshot:
    """Return the snapshot of this rank; an entry that cannot be understood is left out and counted."""
    builder = _Builder(dump)
    for entry in dump.entries:
        try:
            builder.take(entry)
        except ValueError:
            builder.skipped += 1
    return builder.finish(dump, rank)


class _Call(NamedTuple):
    """A collective as one rank called it: what its signature depends on."""

    operation: str
    """Backend and name."""
    inputs: Shapes | None
    outputs: Shapes | None
    input_types: tuple[str, ...] | None
    output_types: tuple[str, ...] | None


class _Builder:
    """Takes entries one by one, oldest first, and keeps what was called and what is pending."""

    def __init__(self, dump: Dump) -> None:
        self.skipped = dump.skipped
        self._groups = _configured(dump)
        self._signatures: list[Signature] = []
        self._newest_ns = 0
        self._newest_record = UNKNOWN
        self._moved_ns = 0
        self._by_name = {group.name: index for index, group in enumerate(self._groups)}
        self._index_of: dict[tuple[int, tuple[str, str] | None], int] = {}
        self._signature_of: dict[tuple[object, ...], int] = {}
        self._pending: dict[tuple[int, bool, int], list[Operation]] = {}
        """By group, whether it is a send or receive, and number: parts of a coalesced call share one."""
        self._closed: set[tuple[int, int]] = set()
        """Group and number of the batches of sends and receives that have an entry of their own."""
        self._first_record = dump.entries[0].record_id if dump.entries else 0
        self._any_complete = False
        self._batches = False
        self._hides_messages = self._hides_batches = False

    def take(self, entry: Entry) -> None:
        """Take one entry; raises ValueError where it cannot be understood."""
        if not entry.profiling_name or not (entry.state or entry.retired):
            raise ValueError("it has no name or no state")
        key = (entry.pg_id, entry.process_group)
        index = self._index_of.get(key)
        if index is None:
            index = self._add_group(entry)
        if entry.time_created_ns > self._newest_ns:
            self._newest_ns = entry.time_created_ns
        if entry.record_id > self._newest_record:
            self._newest_record = entry.record_id
        ended = entry.time_discovered_completed_ns or 0
        if ended > self._moved_ns:
            self._moved_ns = ended
        if entry.is_p2p:
            self._take_message(entry, index)
        elif entry.closed_by == NO_PART:
            self._take_collective(entry, index, ended)

    def finish(self, dump: Dump, rank: int) -> HangSnapshot:
        """Return the snapshot of everything that was taken."""
        taken = (
            int(dump.time_seconds * 1e9)
            if dump.time_seconds is not None and 0 < dump.time_seconds < _LATEST_SECONDS
            else 0
        )
        for group in self._groups:
            if not taken or len(group.created) != len(group.history):
                group.created = []
            if not any(group.seconds):
                group.seconds = []
        hides_batches = self._hides_batches and not self._any_complete
        for group in self._groups if hides_batches else ():
            group.point_to_point = True
        pending = [each for parts in self._pending.values() for each in parts]
        # Sends and receives whose call may have completed: see `HangSnapshot`.
        unsettled = [
            each.record
            for (index, to_peer, number), parts in self._pending.items()
            if to_peer and (index, number) not in self._closed and not self._any_complete
            for each in parts
        ]
        return HangSnapshot(
            rank=rank,
            version=dump.version[:40],
            groups=self._groups,
            signatures=self._signatures,
            pending=sorted(pending, key=lambda each: each.record),
            status=_status(dump),
            newest_ns=self._newest_ns,
            newest_record=self._newest_record,
            taken_ns=taken,
            skipped_entries=self.skipped,
            batches=self._batches,
            unsettled=unsettled,
            hides_messages=self._hides_messages,
            hides_batches=hides_batches,
            moved_ns=max(self._newest_ns, self._moved_ns),
        )

    def _take_collective(self, entry: Entry, index: int, ended: int) -> None:
        sequence, operation = entry.collective_seq_id, entry.profiling_name
        if sequence < 0:
            raise ValueError("it has no number")
        call = (operation, entry.input_sizes, entry.output_sizes, entry.input_dtypes, entry.output_dtypes)
        signature = self._signature_of.get(call)
        if signature is None:
            signature = self._add_signature(_Call(*call))
        group = self._groups[index]
        if ended > group.ended_ns:
            group.ended_ns = ended
        if group.history and sequence == group.first_sequence + len(group.history):
            group.history.append(signature)
            group.created.append(entry.time_created_ns)
            group.seconds.append((entry.duration_ms or 0.0) / 1e3)
        else:
            _append_out_of_order(group, signature, entry)
        # Gloo leaves the state at "scheduled" and only sets `retired`.
        if entry.state == "completed" or entry.complete:
            self._any_complete = True
        else:
            self._add_pending(entry, index, sequence)
        if entry.op_id > sequence and operation.startswith("gloo:"):
            group.hidden_operations = True

    def _take_message(self, entry: Entry, index: int) -> None:
        self._groups[index].point_to_point = True
        sequence = entry.p2p_seq_id
        if sequence < 0:
            raise ValueError("it has no number")
        batch = entry.profiling_name.endswith(SUFFIX)
        if batch:
            self._closed.add((index, sequence))
        if entry.complete:
            self._any_complete = True
        elif entry.closed_by == UNCLOSED:
            self._batches = True
        elif batch:
            self._batches = True
            self._add_lost_parts(entry, index, sequence)
        else:
            self._add_pending(entry, index, sequence)

    def _add_lost_parts(self, entry: Entry, index: int, sequence: int) -> None:
        """Let a batch of which the ring has lost the first parts wait for anyone."""
        known = self._pending.setdefault((index, True, sequence), [])
        if not known or 0 < known[0].record == self._first_record:
            known.append(
                Operation(
                    record=entry.record_id,
                    group=index,
                    sequence=sequence,
                    name=SUFFIX,
                    peer=ANYONE,
                    sends=False,
                    started=entry.state == "started",
                    created_ns=entry.time_created_ns,
                    own=ANYONE,
                )
            )

    def _add_pending(self, entry: Entry, index: int, sequence: int) -> None:
        to_peer = bool(entry.is_p2p)
        name = entry.profiling_name.partition(":")[2][:_MAX_TEXT] or entry.profiling_name[:_MAX_TEXT]
        message = _MESSAGE.fullmatch(name) if to_peer else None
        if to_peer and message is None:
            raise ValueError("its name is not that of a send or receive")
        peer = message[3] if message else ""
        operation = Operation(
            record=entry.record_id,
            group=index,
            sequence=sequence,
            name=message[1] if message else name,
            # "send 0->3" and "recv 0<-3": the rank itself stands first in both.
            peer=int(peer) if peer.isdecimal() else (ANYONE if message else UNKNOWN),
            sends=message is not None and message[1] == "send",
            started=entry.state == "started",
            created_ns=entry.time_created_ns,
            own=int(message[2]) if message else UNKNOWN,
        )
        self._pending.setdefault((index, to_peer, sequence), []).append(operation)

    def _add_group(self, entry: Entry) -> int:
        if len(self._groups) > _MAX_GROUPS:
            raise ValueError("too many groups")
        name, description = entry.group
        index = self._by_name.get(name)
        if index is None:
            index = self._by_name[name[:_MAX_TEXT]] = len(self._groups)
            self._groups.append(GroupView(name[:_MAX_TEXT], _description(description), ""))
        self._groups[index].local_id = entry.pg_id
        self._index_of[(entry.pg_id, entry.process_group)] = index
        return index

    def _add_signature(self, call: _Call) -> int:
        signature = _signature(call)
        self._hides_messages = self._hides_messages or call.operation.startswith(_HIDES_MESSAGES)
        self._hides_batches = self._hides_batches or call.operation.startswith(_HIDES_BATCHES)
        self._signatures.append(signature)
        self._signature_of[tuple(call)] = len(self._signatures) - 1
        return len(self._signatures) - 1


def _append_out_of_order(group: GroupView, signature: int, entry: Entry) -> None:
    sequence, last = entry.collective_seq_id, group.last_sequence
    if sequence == last:  # parts of a coalesced call
        group.history[-1] = UNKNOWN
        return
    if not group.history or sequence > last + _LARGEST_GAP:
        group.first_sequence, group.history, group.created, group.seconds = sequence, [], [], []
    elif sequence < last:
        return
    missing = sequence - group.first_sequence - len(group.history)
    group.history += [UNKNOWN] * missing + [signature]
    group.created += [0] * missing + [entry.time_created_ns]
    group.seconds += [0.0] * missing + [(entry.duration_ms or 0.0) / 1e3]


def _signature(call: _Call) -> Signature:
    """Return what a group's members must agree on; raises ValueError for missing or impossible sizes."""
    if call.inputs is None or call.outputs is None:
        raise ValueError("it has no sizes")
    name = (call.operation.partition(":")[2] or call.operation)[:_MAX_TEXT]
    inputs, outputs = _sizes(call.inputs), _sizes(call.outputs)
    written = (*(call.input_types or ())[:64], *(call.output_types or ())[:64])
    types = sorted({each[:40] for each in written if each.strip()})
    text = " ".join([name, *filter(None, [inputs, f"-> {outputs}" if outputs else "", *types])])
    match = name
    operation = standard_name(name)
    if operation in EQUAL_SIZES and call.inputs:
        # Shapes may differ where the number of elements does not.
        counts = compared_elements(operation, call.inputs, call.outputs)
        match = " ".join([name, *map(str, counts), *types])
    return Signature(name, match, text)


def _sizes(shapes: Shapes) -> str:
    if any(len(shape) > _MAX_DIMENSIONS for shape in shapes):
        raise ValueError("a tensor has too many dimensions")
    shown = ",".join("x".join(map(str, shape)) or "scalar" for shape in shapes[:4])
    return shown + (f",... {len(shapes)} tensors" if len(shapes) > 4 else "")


def _configured(dump: Dump) -> list[GroupView]:
    """Return the groups in pg_config. Gloo writes one without a name, which identifies nothing."""
    return [
        GroupView(name[:_MAX_TEXT], _description(config.desc), _members(config))
        for name, config in list(dump.pg_config.items())[:_MAX_CONFIGURED]
        if name
    ]


def _members(config: GroupConfig) -> str:
    """Return the members as text: PyTorch writes a text, other tools may write a list."""
    text = config.ranks if isinstance(config.ranks, str) else str(config.ranks)
    return text if len(text) <= _MAX_RANKS_TEXT else ""


def _description(text: str) -> str:
    return text[:_MAX_TEXT] if text != "undefined" else ""


def _status(dump: Dump) -> dict[int, tuple[int, int]]:
    """Return the numbers last enqueued and last completed in each group, by its local id."""
    return {
        int(local): (status.last_enqueued_collective, status.last_completed_collective)
        for local, status in list(dump.pg_status.items())[:_MAX_CONFIGURED]
        if local.isdecimal() and len(local) <= _MAX_STATUS_DIGITS
    }
