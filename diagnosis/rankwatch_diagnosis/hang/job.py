"""Flight recorders of all ranks, reduced to what the engine needs, and the process groups of their job.

`pg_status` is keyed by a local number of the group, `pg_config` by its name, and only entries link the two;
with gloo `pg_config` is empty. So the status of a rank without entries is found through its peers.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

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
    """Consecutive collectives as indices into HangSnapshot.signatures; UNKNOWN where some share one."""
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
        """Return when this collective was enqueued, or a later one where it is too old; 0: unknown."""
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


_NUMBERS = re.compile(r"\d{1,7}")
_PAIR = re.compile(r"(\d{1,7})->(\d{1,7})$")
_WORLD = "default_pg"


@dataclass(eq=False)
class Group:
    """A process group and the view that each member with a dump has of it."""

    name: str
    description: str
    members: tuple[int, ...]
    """Ranks of the job in the order of their index in the group."""
    members_known: bool = True
    """A recorder lists the members; else they are the ranks that have entries in the group."""
    views: dict[int, GroupView] = field(default_factory=dict)
    pending: dict[int, dict[int, Operation]] = field(default_factory=lambda: defaultdict(dict))
    """Rank -> number -> collective that is not complete."""
    status: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Rank without entries -> last enqueued and last completed."""

    @property
    def label(self) -> str:
        """Description and name, for a reader."""
        return f"{self.description} ({self.name})" if self.description else self.name

    @property
    def point_to_point(self) -> bool:
        """Whether it has sends or receives."""
        return any(view.point_to_point for view in self.views.values())

    def last_enqueued(self, rank: int) -> int | None:
        """Return the number of the last collective that the rank enqueued; None if it is not shown."""
        view = self.views.get(rank)
        if view is not None and view.history:
            return view.last_sequence
        return self.status[rank][0] if rank in self.status else None


@dataclass(frozen=True)
class Job:
    """All ranks, those without a dump included."""

    snapshots: Mapping[int, HangSnapshot]
    groups: tuple[Group, ...]
    group_of: Mapping[tuple[int, int], Group]
    """(rank, index in its snapshot) -> group."""
    world: tuple[int, ...]

    def peer_of(self, rank: int, operation: Operation) -> int | None:
        """Return the rank at the other end of a send or receive; None where it is not known.

        Where only entries name the members, some may be lacking. The rank's own index in the call shows that.
        """
        members = self.group_of[(rank, operation.group)].members
        if not 0 <= operation.peer < len(members):
            return None
        if operation.own != UNKNOWN and members[operation.own : operation.own + 1] != (rank,):
            return None
        return members[operation.peer]

    @property
    def missing(self) -> tuple[int, ...]:
        """Ranks without a dump."""
        return tuple(rank for rank in self.world if rank not in self.snapshots)


def build_job(snapshots: Iterable[HangSnapshot], absent: Iterable[int] = ()) -> Job:
    """Put the snapshots of one moment together, one per rank; `absent`: ranks known to have no dump."""
    by_rank = {each.rank: each for each in snapshots}
    groups, of = _with_members(by_rank)
    known = [rank for group in groups.values() for rank in group.members]
    world = tuple(range(max([*by_rank, *known, *absent], default=-1) + 1))
    _add_without_members(by_rank, world, groups, of)
    job = Job(by_rank, tuple(groups.values()), of, world)
    for (rank, index), group in of.items():
        group.views[rank] = by_rank[rank].groups[index]
    for rank, snapshot in by_rank.items():
        for operation in snapshot.pending:
            if operation.peer == UNKNOWN:
                of[(rank, operation.group)].pending[rank][operation.sequence] = operation
    _add_status_of_silent(job)
    return job


Groups = dict[tuple[str, tuple[int, ...] | str], Group]
Places = dict[tuple[int, int], Group]


def _with_members(by_rank: Mapping[int, HangSnapshot]) -> tuple[Groups, Places]:
    """Return the groups whose members a recorder lists. Names alone are no key: split groups may share
    one."""
    groups: Groups = {}
    of: Places = {}
    parsed: dict[str, tuple[int, ...]] = {}
    for rank, snapshot in by_rank.items():
        for index, view in enumerate(snapshot.groups):
            if view.ranks not in parsed:
                found = tuple(dict.fromkeys(map(int, _NUMBERS.findall(view.ranks))))
                parsed[view.ranks] = found if max(found, default=0) < MAX_RANKS else ()
            members = parsed[view.ranks]
            if rank not in members:
                continue
            key = (view.name, members)
            group = groups.get(key)
            if group is None:
                group = groups[key] = Group(view.name, view.description, members)
            of[(rank, index)] = group
    return groups, of


def _add_without_members(
    by_rank: Mapping[int, HangSnapshot], world: tuple[int, ...], groups: Groups, of: Places
) -> None:
    """Add the groups that only entries name: their members are the ranks with entries in them."""
    by_name: dict[str, list[Group]] = defaultdict(list)
    for group in groups.values():
        by_name[group.name].append(group)
    inferred: dict[tuple[str, str], list[tuple[int, int]]] = defaultdict(list)
    for rank, snapshot in by_rank.items():
        for index, view in enumerate(snapshot.groups):
            if (rank, index) in of:
                continue
            listed = [group for group in by_name[view.name] if rank in group.members]
            if len(listed) == 1:
                of[(rank, index)] = listed[0]
            else:
                inferred[(view.name, view.description)].append((rank, index))
    for (name, description), places in inferred.items():
        pair = _PAIR.search(name) or _PAIR.search(description)
        members = tuple(sorted({rank for rank, _ in places}))
        if pair is not None and max(int(pair[1]), int(pair[2])) >= MAX_RANKS:
            pair = None
        if description == _WORLD:
            members = world
        elif pair is not None:
            members = tuple(dict.fromkeys((*sorted((int(pair[1]), int(pair[2]))), *members)))
        group = groups[(name, description)] = Group(name, description, members, members_known=False)
        of.update(dict.fromkeys(places, group))


def _add_status_of_silent(job: Job) -> None:
    """Give members without entries the status under the local number that their peers use for the group."""
    used: dict[int, set[int]] = defaultdict(set)
    numbers: dict[Group, set[int]] = {}
    alike: dict[str, set[int]] = defaultdict(set)
    for group in job.groups:
        for rank, view in group.views.items():
            used[rank].add(view.local_id)
        numbers[group] = {view.local_id for view in group.views.values() if view.local_id != UNKNOWN}
        alike[group.description] |= numbers[group]
    for group in job.groups:
        local = numbers[group] or (alike[group.description] if group.description else set())
        if len(local) != 1 or group.point_to_point:
            continue  # a status of a group with sends counts those, too
        _take_status(job, group, next(iter(local)), used)


def _take_status(job: Job, group: Group, local: int, used: Mapping[int, set[int]]) -> None:
    for rank in group.members:
        snapshot = job.snapshots.get(rank)
        if snapshot is not None and local not in used[rank] and local in snapshot.status:
            group.status[rank] = snapshot.status[local]
