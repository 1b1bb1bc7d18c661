"""The reply of a flight recorder: only the fields that are used, checked as they are decoded."""

from __future__ import annotations

import msgspec


class Entry(msgspec.Struct):
    """One collective."""

    record_id: int
    pg_id: int = 0
    process_group: tuple[str, str] = ("", "")
    """Name and description of the group."""


class GroupStatus(msgspec.Struct):
    """How far a group has come; -1 before the first collective. PyTorch writes the numbers as text."""

    last_enqueued_collective: int = -1
    last_completed_collective: int = -1


class Reply(msgspec.Struct):
    """One pull. `pg_status` is keyed by a local id of the group, which only entries link to a name."""

    entries: list[Entry] = []
    pg_status: dict[str, GroupStatus] = {}


def decode(body: bytes) -> Reply:
    """Raises msgspec.MsgspecError for anything that is no such reply."""
    return msgspec.json.decode(body, type=Reply, strict=False)


def decode_names(body: bytes) -> list[str]:
    """The names of a worker server's handlers; raises msgspec.MsgspecError."""
    return msgspec.json.decode(body, type=list[str])
