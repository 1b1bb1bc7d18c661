"""The verdict of the hang engine, with the reasons behind it in numbers and short sentences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from rankwatch_diagnosis.hang.job import UNKNOWN, Job
from rankwatch_diagnosis.hang.root_cause import RootCauses
from rankwatch_diagnosis.hang.waits import RunTiming, Wait
from rankwatch_diagnosis.words import counted

if TYPE_CHECKING:
    from rankwatch_diagnosis.hang.engine import Mismatch

_MOST_SHOWN = 100
"""Groups, ranks and mismatches that are written out; their number is always given."""


class State(StrEnum):
    """The state of a run, as far as its flight recorders show it."""

    HANG = "hang"
    """Ranks wait for operations that do not complete."""
    DESYNC = "desync"
    """Ranks disagree on the operation, its size, its type or its order. Where nothing shows which side is
    wrong, as between two, no rank is named."""
    SLOW = "slow"
    """Ranks wait, and all of them advance."""
    OK = "ok"
    """Nothing waits for longer than it should."""
    INCONCLUSIVE = "inconclusive"
    """The dumps do not show for whom ranks wait, or show too little to call the run healthy."""

    @property
    def is_stall(self) -> bool:
        """Whether operations surely do not complete."""
        return self in (State.HANG, State.DESYNC)


@dataclass(frozen=True, kw_only=True)
class GroupState:
    """A process group with an operation that does not complete."""

    group: str
    """Description and name."""
    operation: str
    sequence: int
    """Number of the operation in its group."""
    members: int
    """Ranks in the group."""
    arrived: tuple[int, ...]
    """Ranks that wait in the operation."""
    waited_for: tuple[int, ...]
    """Members with a dump that have not called the operation."""
    completed_by: tuple[int, ...]
    """Members that have completed the operation."""
    no_dump: tuple[int, ...]
    """Members of which nothing is known."""


@dataclass(frozen=True, kw_only=True)
class HangVerdict:
    """State, root causes and the operation where the run is stuck."""

    state: State
    ranks: tuple[int, ...] = ()
    """Ranks to blame; empty where the root cause cannot be told apart from its victims."""
    group: str | None = None
    """Process group in which these ranks are waited for."""
    operation: str | None = None
    missing_ranks: tuple[int, ...] = ()
    """Ranks of the job without a readable dump, whether or not they are also in `ranks`."""
    groups: tuple[GroupState, ...] = ()
    """Groups that wait, those that wait for these ranks first."""
    evidence: Mapping[str, object] = field(default_factory=dict)
    """Reasons and numbers, ready for JSON."""

    @property
    def stands(self) -> bool:
        """Whether the run makes no progress, as far as the waits show."""
        return self.state.is_stall or (self.state is State.INCONCLUSIVE and bool(self.groups))

    def noted(self, notes: Sequence[str]) -> HangVerdict:
        """Return the same with more notes on the evidence."""
        known = self.evidence.get("notes")
        before = list(known) if isinstance(known, list) else []
        return replace(self, evidence={**self.evidence, "notes": [*before, *notes]}) if notes else self


def group_states(waits: Sequence[Wait]) -> tuple[GroupState, ...]:
    """Return the groups that wait, in the order of the waits."""
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


def evidence_of(
    job: Job,
    waits: Sequence[Wait],
    causes: RootCauses,
    mismatches: Sequence[Mismatch],
    timing: RunTiming,
    ranks: Sequence[int],
    broken: Mapping[int, str],
) -> dict[str, object]:
    """Gather everything that a person needs to check the verdict; what does not apply is left out."""
    found: dict[str, object] = {
        "world_size": len(job.world),
        "ranks_with_dump": len(job.snapshots),
        "ranks_waiting": len({rank for wait in waits for rank in wait.waiting}),
        "operations_waiting": len(waits),
        "oldest_pending_seconds": timing.oldest_seconds,
        "entries_skipped": sum(each.skipped_entries for each in job.snapshots.values()),
        "broken_dumps": {str(rank): reason for rank, reason in list(broken.items())[:_MOST_SHOWN]},
        "reasons": {
            str(rank): _mismatched(rank, mismatches) or _reason(rank, job, waits, causes)
            for rank in ranks[:_MOST_SHOWN]
        },
        "ranks_blocked": {str(rank): count for rank, count in causes.blocked.items() if rank in ranks},
        "suspects": sorted(set(causes.ranks) - set(ranks))[:_MOST_SHOWN],
        "waiting_for_each_other": causes.cycles[:_MOST_SHOWN],
        "arrived_by_all": [] if ranks else [_named(each) for each in causes.arrived_by_all[:_MOST_SHOWN]],
        "mismatches": [_as_json(each) for each in mismatches[:_MOST_SHOWN]],
        "notes": _notes(job, timing),
    }
    return {name: value for name, value in found.items() if value not in (None, [], {})}


def _mismatched(rank: int, mismatches: Sequence[Mismatch]) -> str:
    for each in mismatches:
        if rank in each.odd:
            mine = next(text for text, ranks in each.calls.items() if rank in ranks)
            others = next(text for text, ranks in each.calls.items() if rank not in ranks)
            where = f"number {each.sequence} of {each.group.label}"
            return f"called {mine} as {where}, where its peers called {others}"
    return ""


def _reason(rank: int, job: Job, waits: Sequence[Wait], causes: RootCauses) -> str:
    stuck = next((wait for wait in waits if rank in wait.waiting and wait.completed), None)
    if rank in causes.stuck and stuck is not None:
        return (
            f"is stuck in {_named(stuck)}, which {counted(len(stuck.completed), 'rank')} beside it "
            "completed: its device or its link hangs"
        )
    wait = next((wait for wait in waits if rank in wait.waits_for), None)
    if wait is None:
        return "its peers wait for it"
    verb = "waits" if len(wait.waiting) == 1 else "wait"
    if rank not in job.snapshots:
        return f"left no dump; {counted(len(wait.waiting), 'rank')} {verb} for it in {_named(wait)}"
    if rank in wait.behind:
        return f"has enqueued {_named(wait)}, and its device has not come to it"
    pending = len(job.snapshots[rank].pending)
    where = f"has {pending} operations pending" if pending else "has nothing pending: it is in other code"
    return f"has not called {_named(wait)}, where {counted(len(wait.waiting), 'rank')} {verb}, and {where}"


def _named(wait: Wait) -> str:
    number = "" if wait.point_to_point else f" number {wait.sequence}"
    return f"{wait.operation}{number} of {wait.group.label}"


def _as_json(mismatch: Mismatch) -> dict[str, object]:
    return {
        "group": mismatch.group.label,
        "sequence": mismatch.sequence,
        "calls": {text: list(ranks) for text, ranks in mismatch.calls.items()},
        "odd_ranks": list(mismatch.odd),
    }


def _notes(job: Job, timing: RunTiming) -> list[str]:
    notes = []
    if not timing.timed and any(each.pending for each in job.snapshots.values()):
        notes.append("the dumps do not hold their time; they are judged as taken at a stall")
    if any(each.hides_messages for each in job.snapshots.values()):
        notes.append(
            "gloo records no sends and receives, and nccl2 takes a batch of them for complete: a rank that "
            "waits in one looks idle"
        )
    if any(each.newest_record == UNKNOWN and each.status for each in job.snapshots.values()):
        notes.append("some dumps hold no entries: their status alone does not show which group it belongs to")
    if any(each.unsettled for each in job.snapshots.values()):
        notes.append("dumps of active operations only: sends and receives in them may have completed")
    versions = {each.version for each in job.snapshots.values()}
    if len(versions) > 1:
        notes.append(f"the dumps have different versions: {', '.join(sorted(versions))}")
    return notes
