"""The process groups of a job, put together from the views of its ranks.

`pg_status` is keyed by a local number of the group, `pg_config` by its name, and only entries link the two;
with gloo `pg_config` is empty. So the status of a rank without entries is found through its peers.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from rankwatch_diagnosis.hang.snapshot import MAX_RANKS, UNKNOWN, GroupView, HangSnapshot, Operation

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
        """Number of the last collective that the rank enqueued; None where its dump does not show it."""
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
        """The rank at the other end of a send or receive; None where it is not known.

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
    """Groups whose members a recorder lists. Names alone are no key: split groups may share one."""
    groups: Groups = {}
    of: Places = {}
    parsed: dict[str, tuple[int, ...]] = {}
    for rank, snapshot in by_rank.items():
        for index, view in enumerate(snapshot.groups):
            if view.ranks not in parsed:
                parsed[view.ranks] = _members(view.ranks)
            members = parsed[view.ranks]
            if rank not in members:
                continue
            key = (view.name, members)
            group = groups.get(key)
            if group is None:
                group = groups[key] = Group(view.name, view.description, members)
            of[(rank, index)] = group
    return groups, of


def _members(text: str) -> tuple[int, ...]:
    """The ranks in a recorder's list; nobody where a number is too large to be a rank."""
    found = tuple(dict.fromkeys(map(int, _NUMBERS.findall(text))))
    return found if max(found, default=0) < MAX_RANKS else ()


def _add_without_members(
    by_rank: Mapping[int, HangSnapshot], world: tuple[int, ...], groups: Groups, of: Places
) -> None:
    """Groups that only entries name: their members are the ranks with entries in them."""
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
