"""The reply of a flight recorder: only the fields that are used, checked as they are decoded.

PyTorch writes some numbers as text, and null where it knows none.
"""

from __future__ import annotations

import msgspec


class Entry(msgspec.Struct):
    """One operation of a process group."""

    record_id: int
    pg_id: int = 0
    process_group: tuple[str, str] = ("", "")
    """Name and description of the group."""
    collective_seq_id: int = 0
    """Number of the collective in the group, from 1; for a send or a receive, collectives before it."""
    is_p2p: bool = False
    profiling_name: str = ""
    """Backend and operation: nccl:all_reduce, nccl:send 0->3."""
    input_sizes: list[list[int]] | None = None
    output_sizes: list[list[int]] | None = None
    input_dtypes: list[str] | None = None
    output_dtypes: list[str] | None = None
    state: str = ""
    retired: bool = False
    """No longer watched, because it completed or failed. Gloo's entries stay `scheduled` for ever."""
    time_created_ns: int = 0
    """Unix time of the enqueue."""
    duration_ms: float | None = None
    """Time on the GPU, waiting for peers included; only of NCCL, and only with timing switched on."""

    @property
    def complete(self) -> bool:
        """Whether nothing more is to come of it."""
        return self.retired or self.state == "completed"


class GroupStatus(msgspec.Struct):
    """How far a group has come, in operations of any kind; -1 before the first."""

    last_enqueued_collective: int = -1
    last_completed_collective: int = -1


class GroupConfig(msgspec.Struct):
    """A group by its name; gloo's recorder leaves all of it empty."""

    ranks: str | list[int] = ""
    """Global ranks: [0, 1, 2], mostly as text."""


class Reply(msgspec.Struct):
    """One pull."""

    entries: list[Entry] = []
    pg_status: dict[str, GroupStatus] = {}
    """By a local id of the group, which only entries link to a name."""
    pg_config: dict[str, GroupConfig] = {}
    """By the name of the group."""


MAX_OBJECTS = 1 << 18
"""Objects and lists of a reply; an entry has about eight."""


def decode(body: bytes | bytearray) -> Reply:
    """Raises msgspec.MsgspecError for what is no such reply, ValueError for one of too many parts."""
    if body.count(b"{") + body.count(b"[") > MAX_OBJECTS:
        raise ValueError(f"more than {MAX_OBJECTS} objects")
    return msgspec.json.decode(body, type=Reply, strict=False)


def decode_names(body: bytes | bytearray) -> list[str]:
    """The names of a worker server's handlers; raises msgspec.MsgspecError."""
    return msgspec.json.decode(body, type=list[str])
