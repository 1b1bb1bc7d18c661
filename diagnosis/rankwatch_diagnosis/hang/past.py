"""Sends and receives that only look open: dumps of active operations keep parts of calls that completed.

A part of a coalesced call never gets a state of its own. In a whole dump the entry of the call tells; with
TORCH_INCLUDE_ONLY_ACTIVE that entry is left out once it is complete, and its parts stay for ever.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from rankwatch_diagnosis.hang.snapshot import HangSnapshot


def without_past(newest: Mapping[int, HangSnapshot]) -> Mapping[int, HangSnapshot]:
    """The snapshots without such parts, where a pending coalesced call shows that the job makes them.

    Where none is seen, a send may as well be one of its own, and nothing is left out.
    """
    if not any(each.batches for each in newest.values()):
        return newest
    return {rank: _settled(each) if each.unsettled else each for rank, each in newest.items()}


def _settled(snapshot: HangSnapshot) -> HangSnapshot:
    past = set(snapshot.unsettled)
    pending = [operation for operation in snapshot.pending if operation.record not in past]
    return msgspec.structs.replace(snapshot, pending=pending, unsettled=[])
