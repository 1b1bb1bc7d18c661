"""The hang engine: snapshots of all ranks in, one verdict out.

It also finds members of a group that call different collectives at the same sequence number.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from rankwatch_diagnosis.hang.job import UNKNOWN, Group, HangSnapshot, Job, Signature, build_job
from rankwatch_diagnosis.hang.root_cause import RootCauses, find_root_causes
from rankwatch_diagnosis.hang.verdict import HangVerdict, State, evidence_of, group_states
from rankwatch_diagnosis.hang.waits import (
    RunTiming,
    Stillness,
    Wait,
    find_waits,
    is_front,
    newest_of_each,
    timing_of,
    with_sound_times,
)

STALL_SECONDS = 30.0
"""Age from which a pending operation is no normal moment of a run, where the snapshots hold their time."""


def diagnose(
    snapshots: Sequence[HangSnapshot],
    *,
    broken: Mapping[int, str] | None = None,
    stall_seconds: float = STALL_SECONDS,
) -> HangVerdict:
    """Judge the snapshots of one job.

    snapshots: one per rank, or several per rank in the order in which they were taken.
    broken: ranks whose dump could not be read, and why; they count as missing.
    """
    snapshots = with_sound_times(snapshots)
    timing = timing_of(snapshots, stall_seconds)
    newest = _without_settled_messages(newest_of_each(snapshots))
    job = build_job(newest.values(), broken or ())
    waits = find_waits(job)
    stillness = Stillness(job, stall_seconds)
    causes = find_root_causes(job, waits, stillness)
    mismatches = find_mismatches(job)
    state, ranks = _judge(job, waits, causes, mismatches, timing, stillness)
    shown = sorted(waits, key=lambda wait: _importance(wait, ranks, job))
    group, operation = _place(state, shown, _relevant(waits, causes, mismatches))
    return HangVerdict(
        state=state,
        ranks=ranks,
        group=group,
        operation=operation,
        missing_ranks=job.missing,
        groups=group_states(shown),
        evidence=evidence_of(job, shown, causes, mismatches, timing, ranks, broken or {}),
    )


def _judge(
    job: Job,
    waits: Sequence[Wait],
    causes: RootCauses,
    mismatches: Sequence[Mismatch],
    timing: RunTiming,
    stillness: Stillness,
) -> tuple[State, tuple[int, ...]]:
    """Return the state, and the ranks to blame."""
    relevant = _relevant(waits, causes, mismatches)
    if relevant:
        settled = [each for each in relevant if stillness.is_settled(each)]
        return State.DESYNC, _out_of_step(job, waits, causes, settled, stillness)
    if not waits:
        return (State.OK if _shows_enough(job) else State.INCONCLUSIVE), ()
    if timing.moving:
        return (State.SLOW if causes.ranks or causes.unproven or causes.cycles else State.OK), ()
    ranks = _surest(job, causes.ranks)
    if not ranks:
        if timing.timed and causes.arrived_by_all:
            return State.HANG, ()
        return (State.INCONCLUSIVE if stillness.were_still(job.snapshots) else State.SLOW), ()
    ranks = _without_idle_victims(job, ranks)
    silent = [rank for rank in ranks if rank not in job.snapshots]
    if len(silent) > len(job.snapshots) or _hides_receives(job, ranks, stillness):
        return State.INCONCLUSIVE, ()
    return (State.DESYNC if causes.out_of_order else State.HANG), ranks


def _shows_enough(job: Job) -> bool:
    """Say whether a run in which nothing waits is healthy: most ranks left a dump, and not all are empty.

    Without entries a status that is open belongs to an unknown group, and something waits in it.
    """
    found = job.snapshots.values()
    empty = [each for each in found if each.newest_record == UNKNOWN]
    waits = any(enqueued > completed for each in empty for enqueued, completed in each.status.values())
    seen = len(empty) < len(found) or any(each.status for each in empty)
    return seen and not waits and len(job.missing) < len(job.snapshots)


def _out_of_step(
    job: Job,
    waits: Sequence[Wait],
    causes: RootCauses,
    mismatches: Sequence[Mismatch],
    stillness: Stillness,
) -> tuple[int, ...]:
    """Return the odd ones of all groups, and the ranks that have not come where others wait.

    Ranks without a dump are left out: they are as likely to be victims. An odd one may complete its own call
    with what its peers have sent, as a broadcast among all-reduces of NCCL; so these do not hang by
    themselves.
    """
    found = {rank for each in mismatches for rank in each.odd}
    calls = {(each.group, each.sequence): each.odd for each in mismatches}
    victims = {
        rank
        for wait in waits
        if set(wait.completed) <= set(calls.get((wait.group, wait.sequence), ()))
        for rank in wait.waiting
        if rank in causes.stuck
    }
    seen = [rank for rank in causes.ranks if rank in job.snapshots and rank not in victims]
    return tuple(sorted(found if _hides_receives(job, seen, stillness) else found.union(seen)))


def _place(
    state: State, shown: Sequence[Wait], mismatches: Sequence[Mismatch]
) -> tuple[str | None, str | None]:
    """Return the group and the operation in which the run is stuck."""
    if state is State.DESYNC and mismatches:
        first = mismatches[0]
        return first.group.label, " / ".join(sorted({text.partition(" ")[0] for text in first.calls}))
    if state is State.OK or not shown:
        return None, None
    return shown[0].group.label, shown[0].operation


def _relevant(waits: Sequence[Wait], causes: RootCauses, mismatches: Sequence[Mismatch]) -> list[Mismatch]:
    """Return the mismatches that explain the stall: in a group that waits, else all where nobody is to blame.

    Those that show which ranks are wrong come first. Each has its own evidence: numbers of one group do not
    shift because of a call in another.
    """
    stalled = {wait.group for wait in waits}
    there = [each for each in mismatches if each.group in stalled]
    found = there or ([] if causes.ranks else list(mismatches))
    return sorted(found, key=lambda each: not each.odd)


def _hides_receives(job: Job, ranks: Sequence[int], stillness: Stillness) -> bool:
    """Say whether an idle rank may be a victim that waits in a send or receive its recorder does not hold.

    Gloo records collectives only, and nccl2 takes a batch for complete, so a victim in a pipeline looks as
    idle as the root cause. One idle rank alone is that cause, unless dumps are missing or ranks move: it may
    wait for one of these. Where nothing shows whether the job has batches, all others must wait in one call.
    """
    idle = [rank for rank in ranks if rank in job.snapshots and not job.snapshots[rank].pending]
    alone = len(idle) == 1 and not job.missing and stillness.were_still(job.snapshots)
    if any(each.hides_batches for each in job.snapshots.values()):
        alone = alone and len(_oldest_calls(job)) == 1
    return bool(idle) and not alone and any(each.hides_messages for each in job.snapshots.values())


def _oldest_calls(job: Job) -> set[tuple[str, int]]:
    """Return group and number of the oldest that each rank waits in."""
    waiting = [each for each in job.snapshots.values() if each.pending]
    return {(each.groups[each.pending[0].group].name, each.pending[0].sequence) for each in waiting}


def _without_idle_victims(job: Job, ranks: Sequence[int]) -> tuple[int, ...]:
    """Prefer ranks that are stuck to idle ones that may wait for them in what their recorder hides."""
    stuck = tuple(rank for rank in ranks if rank in job.snapshots and job.snapshots[rank].pending)
    hidden = any(each.hides_messages for each in job.snapshots.values())
    return stuck if hidden and stuck else tuple(ranks)


def _surest(job: Job, ranks: Sequence[int]) -> tuple[int, ...]:
    """Prefer ranks with an idle dump to ranks without a dump, because the dump of a victim may be lost too.

    Where the recorder is known to hide sends it is the other way round: idle ranks may be victims.
    """
    hidden = any(view.hidden_operations for each in job.snapshots.values() for view in each.groups)
    seen = [rank for rank in ranks if rank in job.snapshots]
    silent = [rank for rank in ranks if rank not in job.snapshots]
    return tuple((silent or seen) if hidden else (seen or silent))


def _without_settled_messages(newest: Mapping[int, HangSnapshot]) -> Mapping[int, HangSnapshot]:
    """Return the snapshots without sends and receives that only look pending.

    A part of a coalesced call never gets a state of its own. In a whole dump the entry of the call shows its
    end; with TORCH_INCLUDE_ONLY_ACTIVE that entry is left out once it is complete, and its parts stay for
    ever. A pending call, or several parts of one, show that the job makes them. Where there is neither, a
    send may as well be one of its own, and nothing is left out.
    """
    if not any(each.batches for each in newest.values()):
        return newest
    return {rank: _settled(each) if each.unsettled else each for rank, each in newest.items()}


def _settled(snapshot: HangSnapshot) -> HangSnapshot:
    past = set(snapshot.unsettled)
    pending = [operation for operation in snapshot.pending if operation.record not in past]
    return msgspec.structs.replace(snapshot, pending=pending, unsettled=[])


def _importance(wait: Wait, ranks: Sequence[int], job: Job) -> tuple[bool, bool, int, bool, int, int]:
    """Return a sort key: first waits for a rank to blame, and of most devices; collectives before sends."""
    blamed = bool(set(wait.waits_for) & set(ranks)) or bool(set(wait.waiting) & set(ranks) and wait.completed)
    fronts = sum(is_front(wait, rank, job) for rank in wait.waiting)
    others_too = not set(wait.waits_for) <= set(ranks)
    return not blamed, others_too, -fronts, wait.point_to_point, -len(wait.waiting), wait.sequence


_SIZES_ONLY = 2
"""Spaces in a signature's text to match that holds name, input and output and no types."""


class Mismatch(NamedTuple):
    """The first number at which the members of a group disagree."""

    group: Group
    sequence: int
    calls: dict[str, tuple[int, ...]]
    """Text of a call -> the ranks that made it."""
    odd: tuple[int, ...]
    """Ranks that differ from the majority; empty at a tie."""

    @property
    def settled(self) -> bool:
        """Whether the members that have not called yet are too few to change the majority."""
        called = sum(map(len, self.calls.values()))
        members = len(self.group.members)
        return called == members or 2 * (called - len(self.odd)) > members


class _History(NamedTuple):
    """Consecutive collectives of one rank in one group; equal numbers fit together."""

    first: int
    calls: tuple[int, ...]

    def at(self, sequence: int) -> int:
        index = sequence - self.first
        return self.calls[index] if 0 <= index < len(self.calls) else UNKNOWN


def find_mismatches(job: Job) -> list[Mismatch]:
    """Find at most one mismatch per group: those after the first are its consequence."""
    numbers: dict[str, int] = {}
    with_types = not any(
        each.match.count(" ") == _SIZES_ONLY
        for snapshot in job.snapshots.values()
        for each in snapshot.signatures
    )
    tables = {
        rank: [numbers.setdefault(_key(each, with_types), len(numbers)) for each in snapshot.signatures]
        + [UNKNOWN]
        for rank, snapshot in job.snapshots.items()
    }
    histories = {group: _histories(group, tables) for group in job.groups}
    found = []
    for group, of_rank in histories.items():
        sequence = _first_difference(of_rank)
        if sequence is not None:
            found.append(_mismatch(group, sequence, of_rank, job, histories))
    return sorted(found, key=lambda each: -len(each.group.members))


def _key(signature: Signature, with_types: bool) -> str:
    """Return the text that is compared; without types where one rank has none."""
    return signature.match if with_types else " ".join(signature.match.split(" ")[: _SIZES_ONLY + 1])


def _histories(group: Group, tables: dict[int, list[int]]) -> dict[int, _History]:
    # UNKNOWN is -1, and the last place of a table holds it.
    return {
        rank: _History(view.first_sequence, tuple(map(tables[rank].__getitem__, view.history)))
        for rank, view in group.views.items()
        if view.history
    }


def _first_difference(of_rank: dict[int, _History]) -> int | None:
    """Return the lowest number at which a member differs from the history that most members share."""
    kinds = Counter(of_rank.values())
    if len(kinds) < 2:
        return None
    common = max(kinds, key=lambda each: (kinds[each], len(each.calls)))
    differences = (_difference(common, each) for each in kinds)
    return min((each for each in differences if each is not None), default=None)


def _difference(left: _History, right: _History) -> int | None:
    start = max(left.first, right.first)
    end = min(left.first + len(left.calls), right.first + len(right.calls))
    if start >= end:
        return None
    ours = left.calls[start - left.first : end - left.first]
    theirs = right.calls[start - right.first : end - right.first]
    if ours == theirs:
        return None
    differs = (a != b and UNKNOWN not in (a, b) for a, b in zip(ours, theirs, strict=True))
    return next((start + index for index, each in enumerate(differs) if each), None)


def _mismatch(
    group: Group,
    sequence: int,
    of_rank: dict[int, _History],
    job: Job,
    histories: dict[Group, dict[int, _History]],
) -> Mismatch:
    ranks_of: dict[int, list[int]] = defaultdict(list)
    for rank, history in of_rank.items():
        ranks_of[history.at(sequence)].append(rank)
    ranks_of.pop(UNKNOWN, None)
    calls = {}
    for ranks in ranks_of.values():
        view = group.views[ranks[0]]
        signature = job.snapshots[ranks[0]].signatures[view.history[sequence - view.first_sequence]]
        # Calls that do not fit and read the same are told apart by what is compared.
        text = signature.text if signature.text not in calls else f"{signature.text} ({signature.match})"
        calls[text] = tuple(sorted(ranks))
    right = _right_call(ranks_of, group, sequence, histories)
    odd = sorted(rank for call, ranks in ranks_of.items() if call != right for rank in ranks)
    return Mismatch(group, sequence, calls, tuple(odd) if right is not None else ())


def _right_call(
    ranks_of: dict[int, list[int]],
    group: Group,
    sequence: int,
    histories: dict[Group, dict[int, _History]],
) -> int | None:
    """Return what most members call; at a tie what the groups of the same description call, if they agree.

    None where most of those groups call what the minority of this one does: two of three may be wrong.
    """
    called = Counter(call for call in _calls_of_siblings(group, sequence, histories) if call in ranks_of)
    most = max(ranks_of, key=lambda call: len(ranks_of[call]))
    if 2 * len(ranks_of[most]) > sum(map(len, ranks_of.values())):
        return most if 2 * called[most] >= called.total() else None
    return next(iter(called)) if len(called) == 1 else None


def _calls_of_siblings(
    group: Group, sequence: int, histories: dict[Group, dict[int, _History]]
) -> Iterable[int]:
    for other, of_rank in histories.items():
        if other is not group and group.description and other.description == group.description:
            yield from (history.at(sequence) for history in of_rank.values())
