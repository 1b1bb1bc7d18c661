"""One rank's flight recorder, reduced to what the engine needs: small, typed and independent of versions."""

from __future__ import annotations

import msgspec

UNKNOWN = -1
MAX_RANKS = 1 << 17
"""Ranks of a job; a greater number in a dump or in a file's name is no rank."""
ANYONE = MAX_RANKS
"""The peer of a receive from any source, and of a batch whose parts are not in the recorder."""


class Signature(msgspec.Struct, array_like=True, frozen=True):
    """What members of a group must agree on at one sequence number."""

    name: str
    """Operation without its backend: all_reduce, _all_gather_base, ..."""
    match: str
    """Calls with equal text fit together. Sizes and types are in it only where they have to be equal."""
    text: str
    """Name, sizes and types, for people."""


class Operation(msgspec.Struct, array_like=True, frozen=True):
    """An operation that was enqueued and is not complete."""

    record: int
    """Position in the rank's recorder: the order in which the rank enqueued."""
    group: int
    """Index into HangSnapshot.groups."""
    sequence: int
    """Number in its group; of point-to-point operations a number of the rank's own."""
    name: str
    peer: int
    """Point-to-point: the peer's index in the group, or ANYONE; else UNKNOWN."""
    sends: bool
    started: bool
    """The device has begun it; only recorded where timing is on."""
    created_ns: int
    own: int = UNKNOWN
    """Point-to-point: the rank's own index in the group, as it is in the name of the call."""


class GroupView(msgspec.Struct, array_like=True):
    """A process group as one rank sees it."""

    name: str
    description: str
    ranks: str
    """The recorder's own text of the members, such as "[0, 1]"; empty where it has none."""
    local_id: int = UNKNOWN
    first_sequence: int = 0
    """Number of the first collective in `history`."""
    history: list[int] = []
    """Consecutive collectives as indices into HangSnapshot.signatures; UNKNOWN where several share a
    number."""
    point_to_point: bool = False
    hidden_operations: bool = False
    """The rank counted operations that its recorder does not hold: gloo records no send and receive."""
    created: list[int] = []
    """When each collective of `history` was enqueued, wall clock, nanoseconds; 0 where that is not known, and
    empty in a snapshot without a time."""
    ended_ns: int = 0
    """Newest end of a collective that the rank has noticed; 0 where ends have no times, as with gloo."""
    seconds: list[float] = []
    """How long each collective of `history` took on the device; 0.0 where that is not known, and empty where
    it is of none: with gloo, or without NCCL's timing."""

    @property
    def last_sequence(self) -> int:
        """Number of the newest collective in the recorder; UNKNOWN where there is none."""
        return self.first_sequence + len(self.history) - 1 if self.history else UNKNOWN

    def created_at(self, sequence: int) -> int:
        """When this collective was enqueued, or a later one where it is too old to be seen; 0: unknown."""
        index = max(0, sequence - self.first_sequence)
        return self.created[index] if index < len(self.created) else 0


class HangSnapshot(msgspec.Struct, array_like=True):
    """A flight recorder at one moment."""

    rank: int
    version: str
    groups: list[GroupView]
    signatures: list[Signature]
    pending: list[Operation]
    """In the order in which they were enqueued."""
    status: dict[int, tuple[int, int]]
    """Local id of a group -> last enqueued and last completed, as PyTorch counts them."""
    newest_ns: int = 0
    """Wall clock of the newest entry, nanoseconds; 0 without entries."""
    newest_record: int = UNKNOWN
    taken_ns: int = 0
    """Wall clock of the snapshot, nanoseconds; 0 where the file does not hold it."""
    skipped_entries: int = 0
    """Entries that could not be understood."""
    batches: bool = False
    """A batch of sends and receives is pending, or the dump holds the parts of one without its end."""
    unsettled: list[int] = []
    """Records of sends and receives that may have completed, where the dump holds nothing complete: with
    TORCH_INCLUDE_ONLY_ACTIVE the parts of a completed coalesced call stay in it as if they were pending."""
    hides_messages: bool = False
    """Its recorder is gloo's: no sends and receives are in it, and nothing of a group that has only these. Or
    it is that of nccl2, in which those of a batch look complete while the rank waits for them."""
    hides_batches: bool = False
    """It is that of nccl2, without complete entries: any group may have had batches."""
    moved_ns: int = 0
    """Wall clock of the newest sign that the rank advances: it enqueued something, or noticed an end."""
