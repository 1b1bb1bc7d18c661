"""The reasons behind a verdict, in numbers and short sentences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rankwatch_diagnosis.hang.blame import Blame
from rankwatch_diagnosis.hang.desync import Mismatch
from rankwatch_diagnosis.hang.job import Job
from rankwatch_diagnosis.hang.progress import Progress
from rankwatch_diagnosis.hang.snapshot import UNKNOWN
from rankwatch_diagnosis.hang.verdict import GroupState
from rankwatch_diagnosis.hang.waits import Wait

_MOST_SHOWN = 100
"""Groups, culprits and mismatches that are written out; their number is always told."""


def group_states(waits: Sequence[Wait]) -> tuple[GroupState, ...]:
    """The waits, as they were sorted, without what only the engine needs."""
    return tuple(
        GroupState(
            group=wait.group.label,
            operation=wait.operation,
            sequence=wait.sequence,
            members=2 if wait.point_to_point else len(wait.group.members),
            arrived=tuple(wait.arrived),
            waited_for=tuple(wait.absent or wait.behind),
            completed_by=tuple(wait.completed),
            no_dump=tuple(wait.no_dump),
        )
        for wait in waits[:_MOST_SHOWN]
    )


def describe(
    job: Job,
    waits: Sequence[Wait],
    blame: Blame,
    mismatches: Sequence[Mismatch],
    progress: Progress,
    ranks: Sequence[int],
    broken: Mapping[int, str],
) -> dict[str, object]:
    """Everything a reader needs to check the verdict; absent what does not apply."""
    found: dict[str, object] = {
        "world_size": len(job.world),
        "ranks_with_dump": len(job.snapshots),
        "ranks_waiting": len({rank for wait in waits for rank in wait.waiting}),
        "operations_waiting": len(waits),
        "oldest_pending_seconds": progress.oldest_seconds,
        "entries_skipped": sum(each.skipped_entries for each in job.snapshots.values()),
        "broken_dumps": {str(rank): reason for rank, reason in list(broken.items())[:_MOST_SHOWN]},
        "reasons": {
            str(rank): _mismatched(rank, mismatches) or _reason(rank, job, waits, blame)
            for rank in ranks[:_MOST_SHOWN]
        },
        "ranks_blocked": {str(rank): count for rank, count in blame.blocked.items() if rank in ranks},
        "suspects": _suspects(blame, ranks),
        "waiting_for_each_other": blame.circles[:_MOST_SHOWN],
        "stands_together": [] if ranks else [_named(each) for each in blame.together[:_MOST_SHOWN]],
        "mismatches": [_as_json(each) for each in mismatches[:_MOST_SHOWN]],
        "notes": _notes(job, progress),
    }
    return {name: value for name, value in found.items() if value not in (None, [], {})}


def _suspects(blame: Blame, ranks: Sequence[int]) -> list[int]:
    """Whom the waits point at and the verdict does not blame."""
    return sorted(set(blame.culprits) - set(ranks))[:_MOST_SHOWN]


def _mismatched(rank: int, mismatches: Sequence[Mismatch]) -> str:
    for each in mismatches:
        if rank in each.odd:
            mine = next(text for text, ranks in each.calls.items() if rank in ranks)
            others = next(text for text, ranks in each.calls.items() if rank not in ranks)
            where = f"number {each.sequence} of {each.group.label}"
            return f"called {mine} as {where}, where its peers called {others}"
    return ""


def _reason(rank: int, job: Job, waits: Sequence[Wait], blame: Blame) -> str:
    stuck = next((wait for wait in waits if rank in wait.waiting and wait.completed), None)
    if rank in blame.stuck and stuck is not None:
        return (
            f"stands in {_named(stuck)}, which {_count(stuck.completed)} beside it completed: "
            "its device or its link stands still"
        )
    wait = next((wait for wait in waits if rank in wait.waits_for), None)
    if wait is None:
        return "its peers wait for it"
    if rank not in job.snapshots:
        return f"left no dump; waiting for it: {_count(wait.waiting)}, in {_named(wait)}"
    if rank in wait.behind:
        return f"has enqueued {_named(wait)}, and its device has not come to it"
    pending = len(job.snapshots[rank].pending)
    where = f"has {pending} operations pending" if pending else "has nothing pending: it is in other code"
    verb = "waits" if len(wait.waiting) == 1 else "wait"
    return f"has not called {_named(wait)}, where {_count(wait.waiting)} {verb}, and {where}"


def _named(wait: Wait) -> str:
    number = "" if wait.point_to_point else f" number {wait.sequence}"
    return f"{wait.operation}{number} of {wait.group.label}"


def _count(ranks: Sequence[int]) -> str:
    return f"{len(ranks)} rank{'' if len(ranks) == 1 else 's'}"


def _as_json(mismatch: Mismatch) -> dict[str, object]:
    return {
        "group": mismatch.group.label,
        "sequence": mismatch.sequence,
        "calls": {text: list(ranks) for text, ranks in mismatch.calls.items()},
        "odd_ranks": list(mismatch.odd),
    }


def _notes(job: Job, progress: Progress) -> list[str]:
    notes = []
    if not progress.timed and any(each.pending for each in job.snapshots.values()):
        notes.append("the dumps do not tell when they were taken; they are judged as taken at a stall")
    if any(each.hides_messages for each in job.snapshots.values()):
        notes.append("gloo records no sends and receives: a rank that waits in one looks idle")
    if any(each.newest_record == UNKNOWN and each.status for each in job.snapshots.values()):
        notes.append("some dumps hold no entries: their status alone does not tell which group it is of")
    if any(each.unsettled for each in job.snapshots.values()):
        notes.append("dumps of active operations only: sends and receives in them may have completed")
    versions = {each.version for each in job.snapshots.values()}
    if len(versions) > 1:
        notes.append(f"the dumps have different versions: {', '.join(sorted(versions))}")
    return notes
