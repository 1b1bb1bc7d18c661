"""The verdict about a run, from a directory of black boxes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

from rankwatch.conventions import Cause, RankState
from rankwatch_agent.training.failures import KILLED
from rankwatch_diagnosis.hang.verdict import HangVerdict, State
from rankwatch_diagnosis.loss.anomaly import Severity
from rankwatch_diagnosis.loss.detection import LossVerdict
from rankwatch_diagnosis.run.boxes import Box, Boxes, read_boxes
from rankwatch_diagnosis.run.ending import EndedAttempt, ended_attempts
from rankwatch_diagnosis.run.folder import CopiedRanks, RunFolder, find_run, read_copied_ranks
from rankwatch_diagnosis.run.pace import checkpoints, judge_loss, judge_straggler, progress
from rankwatch_diagnosis.run.phases import phase_table
from rankwatch_diagnosis.run.processes import (
    Processes,
    contention,
    cpu_pressure,
    lacks_cpus,
    look_again,
    look_at,
    with_processes,
)
from rankwatch_diagnosis.run.step_rows import rows_by_rank
from rankwatch_diagnosis.run.visibility import Capabilities, capabilities, tracked
from rankwatch_diagnosis.run.waiting import (
    Recorders,
    failed_first,
    gather_recorders,
    judge_waiting,
    living_paths,
    missing_here,
    place_of,
    stall_seconds,
    where_of,
    with_places,
)
from rankwatch_diagnosis.straggler.thresholds import DEFAULT
from rankwatch_diagnosis.straggler.verdict import Verdict
from rankwatch_diagnosis.straggler.words import share_lost

_STANDS = (State.HANG, State.DESYNC)
_OTHERS_SHOWN = 2
"""Causes in the sentence, besides the first."""
_MOST_SHOWN = 1_024
GONE = "gone"
"""State of a rank that ended without a reason, where it may be lost or its box may be a copy."""


class RunState(StrEnum):
    """The state of a run, by the boxes that were read."""

    STARTING = "starting"
    RUNNING = "running"
    STALLED = "stalled"
    """Its ranks wait for operations that do not complete, or make no progress."""
    LOST = "lost"
    """A process of it is gone without giving a reason, while others live or were ended by that."""
    FAILED = "failed"
    """An exception ended ranks."""
    INTERRUPTED = "interrupted"
    """Ctrl-C, or SIGINT, ended it."""
    PREEMPTED = "preempted"
    TERMINATED = "terminated"
    """SIGTERM ended it."""
    FINISHED = "finished"
    ENDED = "ended"
    """No process is left, and the boxes do not show why."""


@dataclass(frozen=True, kw_only=True)
class RunVerdict:
    """The state of a run, the ranks to blame for it, and all the evidence."""

    run: str
    state: RunState
    ranks: tuple[int, ...]
    """Ranks to blame for the state: lost, failed or waited for; of a running one those that slow it down."""
    why: str
    """One sentence."""
    hang: HangVerdict
    straggler: Verdict | None
    """None where NumPy is not installed."""
    loss: tuple[int, LossVerdict] | None
    """Rank whose loss was judged, and the findings; None where none is reported."""
    phases: Mapping[str, object]
    """Where a step goes; empty where no rank holds a whole step."""
    contention: Mapping[str, object]
    """What shows that the ranks lack CPUs; empty where they have enough."""
    capabilities: Capabilities
    """What zero-code recording sees of the training loop."""
    trackers: tuple[str, ...]
    """Where experiment trackers show the run."""
    ended_attempts: tuple[EndedAttempt, ...]
    """How each attempt that is over ended, as far as boxes of it are left."""
    progress: Mapping[str, object]
    checkpoints: Mapping[str, object]
    ranks_seen: tuple[Mapping[str, object], ...]
    sources: Mapping[str, object]


def diagnose_run(directory: Path, *, stall: float | None = None, complete: bool = False) -> RunVerdict:
    """Everything about the run in this directory. Raises UserError where there is nothing to diagnose.

    stall: age in seconds from which a wait is a stall; None: as the ranks have learnt.
    complete: the directory holds the boxes of all nodes, so that a missing one is evidence.
    """
    looked = _look(directory, stall, complete=complete)
    boxes, recorders, processes, hang = looked.boxes, looked.recorders, looked.processes, looked.hang
    rows = rows_by_rank(boxes)
    straggler = judge_straggler(boxes, rows)
    state = _state(boxes, hang)
    ranks = _blamed(state, boxes, hang, straggler)
    why = _why(state, ranks, boxes, hang, straggler)
    lacking = contention(boxes, processes)
    if state is RunState.RUNNING and lacking:
        why = "; ".join((why, lacks_cpus(lacking)) if ranks else (lacks_cpus(lacking), why))
    return RunVerdict(
        run=boxes.run,
        state=state,
        ranks=ranks,
        why=why,
        contention=lacking,
        hang=hang,
        straggler=straggler,
        loss=judge_loss(boxes),
        phases=phase_table(boxes, rows),
        capabilities=capabilities(boxes),
        trackers=tracked(boxes),
        ended_attempts=ended_attempts(boxes, looked.folder),
        progress=progress(boxes),
        checkpoints=checkpoints(boxes, boxes.moment),
        ranks_seen=tuple(
            _seen(each, boxes, processes) for each in list(boxes.by_rank.values())[:_MOST_SHOWN]
        ),
        sources=_sources(boxes, recorders, looked.stall),
    )


def diagnose_waiting(directory: Path) -> HangVerdict:
    """Only whom the run in this directory waits for. Raises UserError where there is nothing to diagnose."""
    return _look(directory, None, complete=False).hang


class _Looked(NamedTuple):
    folder: Path
    boxes: Boxes
    recorders: Recorders
    processes: Processes
    stall: float
    """Age in seconds from which a wait was judged a stall."""
    hang: HangVerdict


def _look(directory: Path, stall: float | None, *, complete: bool) -> _Looked:
    """Everything of the run that is seen, and whom it waits for."""
    folder = find_run(directory)
    copied = None if folder.bundle is None else read_copied_ranks(folder.bundle)
    boxes = read_boxes(folder.boxes, copied=copied)
    recorders, processes = _ask(folder, boxes, copied)
    limit = stall_seconds(boxes) if stall is None else stall
    hang = judge_waiting(boxes, recorders, stall=limit, complete=complete, given=stall is not None)
    hang = with_places(boxes, with_processes(boxes, hang, processes))
    return _Looked(folder.boxes[0].parent, boxes, recorders, processes, limit, hang)


def _ask(folder: RunFolder, boxes: Boxes, copied: CopiedRanks | None) -> tuple[Recorders, Processes]:
    """What recorders and processes of the ranks show: now, or when the bundle was made."""
    if copied is not None:
        recorders = gather_recorders(folder, boxes)
        answered = len(recorders.snapshots)
        return recorders, Processes(facts=copied.processes, silent=copied.silent, answered=answered)
    before = look_at(living_paths(folder, boxes))
    stopped = Processes(facts=before).stopped
    recorders = gather_recorders(folder, boxes, stopped=stopped)
    facts, pressure = look_again(before), cpu_pressure() if before else None
    return recorders, Processes(
        facts=facts, silent=recorders.silent, answered=recorders.live, pressure=pressure
    )


def _state(boxes: Boxes, hang: HangVerdict) -> RunState:
    states = {each.state for each in boxes.by_rank.values()}
    untimed = not boxes.living and not boxes.copied_alive
    stands = hang.state in _STANDS or (hang.state is State.INCONCLUSIVE and untimed)
    living = bool(boxes.living) or not boxes.liveness_known
    if boxes.lost:
        return RunState.LOST
    if not boxes.living and failed_first(boxes):
        return RunState.FAILED
    if stands and living and states != {RankState.FINISHED}:
        return RunState.STALLED
    if not boxes.living and RankState.INTERRUPTED in states:
        return RunState.INTERRUPTED  # peers of an interrupted rank fail in their collectives
    if RankState.FAILED in states:
        return RunState.FAILED
    if boxes.living:
        running = RankState.RUNNING in states or RankState.FINISHED in states
        return RunState.RUNNING if running else RunState.STARTING
    for state, of_run in (
        (RankState.PREEMPTED, RunState.PREEMPTED),
        (RankState.TERMINATED, RunState.TERMINATED),
    ):
        if state in states:
            return of_run
    return RunState.FINISHED if states == {RankState.FINISHED} else RunState.ENDED


def _blamed(state: RunState, boxes: Boxes, hang: HangVerdict, straggler: Verdict | None) -> tuple[int, ...]:
    if state is RunState.LOST:
        return boxes.lost
    if state is RunState.STALLED:
        return hang.ranks
    if state is RunState.FAILED:
        return failed_first(boxes)
    if state is RunState.RUNNING and straggler is not None:
        head = straggler.ranks if straggler.slowdown >= DEFAULT.least_slowdown else ()
        return tuple(sorted({*head, *(rank for each in straggler.others for rank in each.ranks)}))
    return ()


def _why(
    state: RunState,
    ranks: tuple[int, ...],
    boxes: Boxes,
    hang: HangVerdict,
    straggler: Verdict | None,
) -> str:
    if state is RunState.STALLED:
        return _stalled(boxes, hang)
    if state is RunState.LOST:
        first = boxes.by_rank[ranks[0]]
        processes = "the process is" if len(ranks) == 1 else "the processes are"
        it = "it" if len(ranks) == 1 else f"rank {first.rank}"
        if first.ended_by:
            killed = first.failure is not None and first.failure.exception == KILLED
            how = "was killed" if killed else "crashed"
            return f"{listed(ranks)}: {it} {how} by {first.ended_by}; {it} was {where_of(first)}"
        return f"{listed(ranks)}: {processes} gone without giving a reason; {it} was {where_of(first)}"
    if state is RunState.FAILED and ranks:
        failure = boxes.by_rank[ranks[0]].ended_by or "an exception"
        if boxes.world_size == 1:
            return f"ended by {failure}"
        return f"{listed(ranks)}: ended by {failure}, outside of a collective; the others fail because of it"
    if state is RunState.INTERRUPTED:
        return "Ctrl-C, or SIGINT, ended it"
    if state is RunState.FAILED:
        return "exceptions ended ranks, all of them in collectives: it is not known which failed first"
    if state is RunState.RUNNING and straggler is not None:
        if straggler.cause is Cause.NONE:
            return f"nothing is seen to slow it down{_but_events(straggler)}"
        if straggler.cause is Cause.INCONCLUSIVE:
            return f"{unclear(straggler)}{_and_others(straggler)}"
        named = straggler.ranks and straggler.slowdown >= DEFAULT.least_slowdown
        where = f", {listed(straggler.ranks)}" if named else ""
        cause = f"{straggler.cause_and_phase}{where}{_and_others(straggler)}"
        return f"it is {share_lost(straggler)} slower than it could be; cause: {cause}"
    counts = Counter(_state_of(each, boxes) for each in boxes.by_rank.values())
    states = ", ".join(
        f"{count} {'rank is' if count == 1 else 'ranks are'} {name}" for name, count in counts.items()
    )
    if state in (RunState.TERMINATED, RunState.ENDED) and hang.state in _STANDS and hang.ranks:
        return f"{states}; at the end {_waited(hang)}"  # a stall, or the moment at which it was ended
    return states


def _and_others(straggler: Verdict) -> str:
    """The causes beside the first, with their costs."""
    others = straggler.others
    shown = []
    for each in others[:_OTHERS_SHOWN]:
        whom = f", {listed(each.ranks)}" if each.ranks else ""
        shown.append(f"{each.cause_and_phase}{whom} ({(each.slowdown or 1.0) - 1.0:.1%})")
    more = [f"{len(others) - _OTHERS_SHOWN} more"] if len(others) > _OTHERS_SHOWN else []
    return f"; also {'; '.join(shown + more)}" if shown else ""


def _but_events(straggler: Verdict) -> str:
    count = len(straggler.events)
    if not count:
        return ""
    return f", but {count} single step{'' if count == 1 else 's'} lost {straggler.event_seconds:,.1f} s"


def unclear(straggler: Verdict) -> str:
    """The sentence about a slowdown of uncertain cause, or about too little evidence."""
    suspected = straggler.evidence.get("suspected_ranks")
    if isinstance(suspected, list) and suspected:
        suspects = listed(tuple(each["rank"] for each in suspected))
        return f"{suspects} may slow it down, but that is not certain: {straggler.evidence['why']}"
    why = straggler.evidence.get("why", "too little is seen")
    return f"it is not known whether anything slows it down: {why}"


def _stalled(boxes: Boxes, hang: HangVerdict) -> str:
    where = f" in {hang.operation} of {hang.group}" if hang.group is not None else ""
    if not hang.ranks:
        elsewhere = hang.evidence.get("waits_for_ranks_without_box")
        if isinstance(elsewhere, list):
            return (
                f"the ranks here wait{where} for {listed(tuple(elsewhere))}, of which there is no black box"
            )
        phases = hang.evidence.get("phases")
        if isinstance(phases, Mapping):
            places = "; ".join(f"{listed(tuple(ranks))} in {phase}" for phase, ranks in phases.items())
            return f"no rank makes progress: {places}"
        if boxes.world_size == 1:
            return f"the run stands{where}, and nothing shows what it waits for"
        return f"the ranks stand{where}, and nothing shows whom they wait for"
    first = boxes.by_rank.get(hang.ranks[0])
    place = f"; it is {place_of(first, boxes)}" if first is not None and len(hang.ranks) == 1 else ""
    halted = hang.evidence.get("halted_ranks")
    if isinstance(halted, list) and len(hang.ranks) == 1 and hang.ranks[0] in halted:
        place += "; its process does not run"
    if boxes.world_size == 1:
        return f"the only rank makes no progress{place}"
    return f"{_waited(hang, verb=('is', 'are'))}{place}"


def _waited(hang: HangVerdict, *, verb: tuple[str, str] = ("was", "were")) -> str:
    """Whom the run waits for or waited for, and where."""
    one = len(hang.ranks) == 1
    where = f" in {hang.operation} of {hang.group}" if hang.group is not None else ""
    if hang.state is not State.DESYNC:
        return f"{listed(hang.ranks)} {verb[not one]} waited for{where}"
    return f"{listed(hang.ranks)} {'differs from its peers' if one else 'differ from their peers'}{where}"


def listed(ranks: tuple[int, ...], most: int = 16) -> str:
    """`rank 3`, `ranks 3, 5 and 2 more`."""
    shown = ", ".join(map(str, ranks[:most]))
    more = f" and {len(ranks) - most} more" if len(ranks) > most else ""
    return f"rank{'' if len(ranks) == 1 else 's'} {shown}{more}"


def _state_of(box: Box, boxes: Boxes) -> str:
    return box.state.value if boxes.liveness_known or box.state is not RankState.LOST else GONE


def _seen(box: Box, boxes: Boxes, processes: Processes) -> dict[str, object]:
    shown: dict[str, object] = {
        "rank": box.rank,
        "host": box.header.identity.host,
        "state": _state_of(box, boxes),
        "step": box.now.step,
        "steps_completed": box.now.steps_completed,
        "phase": box.open_phase[0] if box.open_phase else None,
        "failure": box.failure and box.failure.exception,
        "failure_kind": box.failure and box.failure.kind.value,
        "failure_message": (box.failure and box.failure.message) or None,
        "timeout_seconds": box.timeout,
    }
    if box.rank in processes.facts:
        shown["process"] = processes.facts[box.rank].as_json()
    if boxes.moment is not None and not box.ended:
        shown["idle_seconds"] = round(max(0.0, boxes.moment - box.wall(box.last_progress)), 3)
    return {name: value for name, value in shown.items() if value is not None}


def _sources(boxes: Boxes, recorders: Recorders, stall: float) -> dict[str, object]:
    return {
        "attempt": boxes.attempt,
        "boxes": len(boxes.by_rank),
        "world_size": boxes.world_size,
        "hosts": len({each.header.identity.host for each in boxes.by_rank.values()}),
        "boxes_skipped": dict(boxes.skipped),
        "first_skipped": boxes.first_reason,
        "boxes_missing_on_seen_hosts": list(missing_here(boxes))[:_MOST_SHOWN],
        "records_missed": sum(each.missed for each in boxes.by_rank.values()),
        "copies": boxes.copied,
        "liveness_known": boxes.liveness_known,
        "flight_recorders": len(recorders.snapshots),
        "flight_recorders_live": recorders.live,
        "stall_seconds": stall,
    }


def verdict_word(verdict: RunVerdict) -> str:
    """The verdict in a word: `stalled`, else the cause of a slowdown; empty where that was not judged."""
    if verdict.state is RunState.STALLED:
        return verdict.state.value
    return "" if verdict.straggler is None else verdict.straggler.cause.value


def worst_anomaly(verdict: RunVerdict) -> Severity | None:
    """Of the loss; None without an anomaly."""
    if verdict.loss is None:
        return None
    found = {each.severity for each in verdict.loss[1].anomalies}
    return next((each for each in reversed(Severity) if each in found), None)
