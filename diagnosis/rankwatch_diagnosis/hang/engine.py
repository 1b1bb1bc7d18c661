"""The hang engine: snapshots of all ranks in, one verdict out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rankwatch_diagnosis.hang.blame import Blame, find_blame
from rankwatch_diagnosis.hang.desync import Mismatch, find_mismatches
from rankwatch_diagnosis.hang.evidence import describe, group_states
from rankwatch_diagnosis.hang.job import Job, build_job
from rankwatch_diagnosis.hang.past import without_past
from rankwatch_diagnosis.hang.progress import (
    Progress,
    newest_of_each,
    progress_of,
    with_sound_times,
)
from rankwatch_diagnosis.hang.snapshot import UNKNOWN, HangSnapshot
from rankwatch_diagnosis.hang.standing import Standing
from rankwatch_diagnosis.hang.verdict import HangVerdict, State
from rankwatch_diagnosis.hang.waits import Wait, find_waits, is_front

STALL_SECONDS = 30.0
"""Age from which a pending operation is no normal moment of a run, where the snapshots tell their time."""


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
    progress = progress_of(snapshots, stall_seconds)
    newest = without_past(newest_of_each(snapshots))
    job = build_job(newest.values(), broken or ())
    waits = find_waits(job)
    standing = Standing(job, stall_seconds)
    blame = find_blame(job, waits, standing)
    mismatches = find_mismatches(job)
    state, ranks = _judge(job, waits, blame, mismatches, progress, standing)
    shown = sorted(waits, key=lambda wait: _importance(wait, ranks, job))
    group, operation = _place(state, shown, _relevant(waits, blame, mismatches))
    return HangVerdict(
        state=state,
        ranks=ranks,
        group=group,
        operation=operation,
        missing_ranks=job.missing,
        groups=group_states(shown),
        evidence=describe(job, shown, blame, mismatches, progress, ranks, broken or {}),
    )


def _judge(
    job: Job,
    waits: Sequence[Wait],
    blame: Blame,
    mismatches: Sequence[Mismatch],
    progress: Progress,
    standing: Standing,
) -> tuple[State, tuple[int, ...]]:
    """State and culprits."""
    relevant = _relevant(waits, blame, mismatches)
    if relevant:
        settled = [each for each in relevant if standing.settled(each)]
        return State.DESYNC, _out_of_step(job, blame, settled, standing)
    if not waits:
        return (State.OK if _shows_enough(job) else State.INCONCLUSIVE), ()
    if progress.moving:
        return (State.SLOW if blame.culprits or blame.unproven or blame.circles else State.OK), ()
    culprits = _surest(job, blame.culprits)
    if not culprits:
        if progress.timed and blame.together:
            return State.HANG, ()
        return (State.INCONCLUSIVE if standing.together(job.snapshots) else State.SLOW), ()
    silent = [rank for rank in culprits if rank not in job.snapshots]
    if len(silent) > len(job.snapshots) or _hides_receives(job, culprits, standing):
        return State.INCONCLUSIVE, ()
    return (State.DESYNC if blame.out_of_order else State.HANG), culprits


def _shows_enough(job: Job) -> bool:
    """Whether it proves anything that nothing waits: most of the ranks left a dump, and not all are empty.

    Without entries a status that is open belongs to a group that cannot be told, and something waits in it.
    """
    found = job.snapshots.values()
    empty = [each for each in found if each.newest_record == UNKNOWN]
    waits = any(enqueued > completed for each in empty for enqueued, completed in each.status.values())
    seen = len(empty) < len(found) or any(each.status for each in empty)
    return seen and not waits and len(job.missing) < len(job.snapshots)


def _out_of_step(
    job: Job, blame: Blame, mismatches: Sequence[Mismatch], standing: Standing
) -> tuple[int, ...]:
    """The odd ones of all groups, and who has not come where others wait.

    Not ranks without a dump: they are as likely to be victims.
    """
    found = {rank for each in mismatches for rank in each.odd}
    seen = [rank for rank in blame.culprits if rank in job.snapshots]
    return tuple(sorted(found if _hides_receives(job, seen, standing) else found.union(seen)))


def _place(
    state: State, shown: Sequence[Wait], mismatches: Sequence[Mismatch]
) -> tuple[str | None, str | None]:
    """Group and operation in which the run stands."""
    if state is State.DESYNC and mismatches:
        first = mismatches[0]
        return first.group.label, " / ".join(sorted({text.partition(" ")[0] for text in first.calls}))
    if state is State.OK or not shown:
        return None, None
    return shown[0].group.label, shown[0].operation


def _relevant(waits: Sequence[Wait], blame: Blame, mismatches: Sequence[Mismatch]) -> list[Mismatch]:
    """Mismatches that explain the stall: in a group that waits, or with nothing else to blame.

    Those that tell who is wrong come first. Each has its own evidence: numbers of one group do not shift
    because of a call in another.
    """
    stalled = {wait.group for wait in waits}
    there = [each for each in mismatches if each.group in stalled]
    found = there or ([] if blame.culprits else list(mismatches))
    return sorted(found, key=lambda each: not each.odd)


def _hides_receives(job: Job, culprits: Sequence[int], standing: Standing) -> bool:
    """Several idle ranks, in a job whose recorder hides sends and receives: some may wait in one.

    Gloo records collectives only, so that a victim in a pipeline looks as idle as the culprit. So does a
    single one where dumps are missing or ranks move: it may wait for such a rank, or for one that just came.
    """
    idle = [rank for rank in culprits if rank in job.snapshots and not job.snapshots[rank].pending]
    alone = len(idle) == 1 and not job.missing and standing.together(job.snapshots)
    return bool(idle) and not alone and any(each.hides_messages for each in job.snapshots.values())


def _surest(job: Job, culprits: Sequence[int]) -> tuple[int, ...]:
    """Those seen to do nothing rather than those of which nothing is seen: a victim's dump may be lost, too.

    Where ranks are known to have made sends that the recorder hides it is the other way about: idle ranks may
    be victims.
    """
    hidden = any(view.hidden_operations for each in job.snapshots.values() for view in each.groups)
    seen = [rank for rank in culprits if rank in job.snapshots]
    silent = [rank for rank in culprits if rank not in job.snapshots]
    return tuple((silent or seen) if hidden else (seen or silent))


def _importance(wait: Wait, ranks: Sequence[int], job: Job) -> tuple[bool, bool, int, bool, int, int]:
    """First what waits for a culprit and is what most devices stand at; collectives before sends."""
    blamed = bool(set(wait.waits_for) & set(ranks)) or bool(set(wait.waiting) & set(ranks) and wait.completed)
    fronts = sum(is_front(wait, rank, job) for rank in wait.waiting)
    others_too = not set(wait.waits_for) <= set(ranks)
    return not blamed, others_too, -fronts, wait.point_to_point, -len(wait.waiting), wait.sequence
