"""Reads the entries of one flight recorder, oldest first, and keeps what is pending and what was called.

The inner loop of the whole command: two million entries for a thousand ranks.
"""

from __future__ import annotations

import re
from typing import Any

from rankwatch_diagnosis.hang.signature import Call, Shapes, signature_of
from rankwatch_diagnosis.hang.snapshot import UNKNOWN, GroupView, Operation, Signature

_POINT_TO_POINT = re.compile(r"(send|recv) (\d{1,9})(?:->|<-)(\d{1,9})")
_LARGEST_GAP = 10_000
"""Numbers that may be missing between two collectives of one group before the history starts anew."""
_MAX_GROUPS = 8192
_MAX_TEXT = 200


class EntryReader:
    """Takes entries one by one.

    groups: those that pg_config names; entries add others.
    """

    def __init__(self, groups: list[GroupView]) -> None:
        self.groups = groups
        self.signatures: list[Signature] = []
        self.newest_ns = 0
        self.newest_record = UNKNOWN
        self.moved_ns = 0
        self.skipped = 0
        self._by_name = {group.name: index for index, group in enumerate(groups)}
        self._of_local: dict[tuple[int, str, str], int] = {}
        self._signature_of: dict[tuple[Any, ...], int] = {}
        self._pending: dict[tuple[int, bool, int], list[Operation]] = {}
        self._after_peer: set[int] = set()
        """Groups whose newest entry is a send or receive."""
        self._ended: set[tuple[int, int]] = set()
        """Groups and numbers of coalesced sends and receives."""
        self._complete = False
        self.batches = False
        self.hides_messages = False

    def take(self, entry: Any) -> tuple[int, int] | None:
        """Take one; what cannot be understood is counted.

        Returns group and signature of a completed collective, which is all that is kept of it; else None.
        """
        try:
            return self._take(entry)
        except (AttributeError, LookupError, TypeError, ValueError):
            self.skipped += 1
            return None

    def pending(self) -> list[Operation]:
        """What was enqueued and has not completed, in order."""
        found = [each for parts in self._pending.values() for each in parts]
        found.sort(key=lambda each: each.record)
        return found

    def unsettled(self) -> list[int]:
        """Records of pending sends and receives whose call may have completed: see `Snapshot.unsettled`."""
        if self._complete:
            return []
        calls = self._pending.items()
        return [
            each.record
            for (index, to_peer, number), parts in calls
            if to_peer and (index, number) not in self._ended
            for each in parts
        ]

    def _take(self, entry: dict[str, Any]) -> tuple[int, int] | None:
        name, description = entry.get("process_group") or (str(int(entry["pg_id"])), "")
        key = (entry.get("pg_id", UNKNOWN), name, description)
        index = self._of_local.get(key)
        if index is None:
            index = self._add_group(*key)
        operation = entry["profiling_name"]
        to_peer = entry.get("is_p2p")
        if self._to_peer(index, operation) if to_peer is None else to_peer:
            self._take_point_to_point(entry, index, operation)
            return None
        sequence = entry["collective_seq_id"] if "collective_seq_id" in entry else entry["seq_id"]
        if type(sequence) is not int or sequence < 0:
            raise ValueError("the number is none")
        signature = self._signature(entry, operation)
        ended = self._see(entry)
        self._after_peer.discard(index)
        group = self.groups[index]
        if ended > group.ended_ns:
            group.ended_ns = ended
        if group.history and sequence == group.first_sequence + len(group.history):
            group.history.append(signature)
            group.created.append(entry["time_created_ns"])
        else:
            self._append_out_of_order(group, sequence, signature, entry["time_created_ns"])
        ordinary = False
        # Gloo leaves the state at "scheduled" and only sets `retired`.
        if not entry.get("retired") and entry["state"] != "completed":
            self._add_pending(entry, index, sequence, False)
        else:
            self._complete = True
            if operation.endswith(":coalesced"):
                self._pending.pop((index, False, sequence), None)
            else:
                ordinary = not operation.startswith("gloo:")
        if entry.get("op_id", 0) > sequence and operation.startswith("gloo:"):
            self.groups[index].hidden_operations = True
        return (index, signature) if ordinary else None

    def _to_peer(self, index: int, operation: str) -> bool:
        """Whether an entry of a version without `is_p2p` is a send, a receive or a coalesced call of these.

        The entry of a coalesced call names no peer, and stands right behind its parts in its group. Where the
        ring begins between the two, it tells nothing, as a send without a peer does.
        """
        if operation.endswith(":coalesced"):
            return index in self._after_peer or self.newest_record == UNKNOWN
        return _POINT_TO_POINT.search(operation) is not None

    def _take_point_to_point(self, entry: dict[str, Any], index: int, operation: str) -> None:
        self._see(entry)
        self._after_peer.add(index)
        self.groups[index].point_to_point = True
        sequence = entry["p2p_seq_id"]
        coalesced = operation.endswith(":coalesced")
        if coalesced:
            self._ended.add((index, sequence))
        if not entry.get("retired") and entry["state"] != "completed":
            self._add_pending(entry, index, sequence, True)
            self.batches = self.batches or coalesced
            return
        self._complete = True
        if coalesced:
            # The parts of a coalesced call share its number and never get a state of their own.
            self._pending.pop((index, True, sequence), None)

    def _see(self, entry: dict[str, Any]) -> int:
        """Take its place and times; returns when its end was noticed, 0 where that is not told."""
        created, record = entry["time_created_ns"], entry["record_id"]
        ended: int = entry.get("time_discovered_completed_ns") or 0
        if created > self.newest_ns:
            self.newest_ns = created
        if record > self.newest_record:
            self.newest_record = record
        if ended > self.moved_ns:
            self.moved_ns = ended
        return ended

    def _add_pending(self, entry: dict[str, Any], index: int, sequence: int, to_peer: bool) -> None:
        name = entry["profiling_name"].partition(":")[2][:_MAX_TEXT] or entry["profiling_name"][:_MAX_TEXT]
        found = _POINT_TO_POINT.fullmatch(name) if to_peer else None
        if to_peer and found is None and name != "coalesced":
            raise ValueError(f"unexpected name {name}")
        operation = Operation(
            record=int(entry["record_id"]),
            group=index,
            sequence=int(sequence),
            name=found[1] if found else name,
            # "send 0->3" and "recv 0<-3": the rank itself stands first in both.
            peer=int(found[3]) if found else UNKNOWN,
            sends=bool(found) and name.startswith("send"),
            started=entry["state"] == "started",
            created_ns=int(entry["time_created_ns"]),
            own=int(found[2]) if found else UNKNOWN,
        )
        if not (to_peer and found is None):
            self._pending.setdefault((index, to_peer, sequence), []).append(operation)

    def _add_group(self, local_id: int, name: str, description: str) -> int:
        if len(self.groups) > _MAX_GROUPS:
            raise ValueError("too many groups")
        index = self._by_name.get(name)
        if index is None:
            index = self._by_name[name[:_MAX_TEXT]] = len(self.groups)
            told = description[:_MAX_TEXT] if description != "undefined" else ""
            self.groups.append(GroupView(name[:_MAX_TEXT], told, ""))
        self.groups[index].local_id = int(local_id)
        self._of_local[(local_id, name, description)] = index
        return index

    def _signature(self, entry: dict[str, Any], operation: str) -> int:
        inputs: Shapes = tuple(map(tuple, entry["input_sizes"]))
        outputs: Shapes = tuple(map(tuple, entry["output_sizes"]))
        input_types = tuple(entry.get("input_dtypes") or ())
        output_types = tuple(entry.get("output_dtypes") or ())
        key = (operation, inputs, outputs, input_types, output_types)
        index = self._signature_of.get(key)
        if index is None:
            backend, _, name = operation.partition(":")
            name = name or operation
            self.hides_messages = self.hides_messages or backend == "gloo"
            call = Call(name[:_MAX_TEXT], inputs, outputs, input_types, output_types)
            self.signatures.append(signature_of(call))
            index = self._signature_of[key] = len(self.signatures) - 1
        return index

    @staticmethod
    def _append_out_of_order(group: GroupView, sequence: int, signature: int, created: int) -> None:
        last = group.last_sequence
        if not group.history or sequence > last + _LARGEST_GAP:
            group.first_sequence, group.history, group.created = int(sequence), [signature], [created]
        elif sequence == last:  # parts of a coalesced call
            group.history[-1] = UNKNOWN
        elif sequence > last:
            group.history.extend([UNKNOWN] * (sequence - last - 1))
            group.created.extend([0] * (sequence - last - 1))
            group.history.append(signature)
            group.created.append(created)
