"""The verdict about a run, from a directory of black boxes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from rankwatch.conventions.states import RankState
from rankwatch.conventions.vocabulary import Capability
from rankwatch_agent.training.checkpoints.verifications import VerificationRecords
from rankwatch_diagnosis.hang.verdict import HangVerdict, State
from rankwatch_diagnosis.run.box_records import capabilities, tracked
from rankwatch_diagnosis.run.boxes import Box, Boxes, read_run
from rankwatch_diagnosis.run.ending import ended_attempts
from rankwatch_diagnosis.run.folder import CopiedRanks, RunFolder
from rankwatch_diagnosis.run.gpus import (
    AT_THE_STALL,
    WHILE_IT_RAN,
    SeenGpus,
    gpus_now,
    gpus_of_bundle,
    with_gpus,
)
from rankwatch_diagnosis.run.losses import compare_losses, judge_loss
from rankwatch_diagnosis.run.pace import checkpoints, judge_straggler, progress
from rankwatch_diagnosis.run.processes import (
    Processes,
    contention,
    cpu_pressure,
    lacks_cpus,
    read_processes,
    reread_processes,
    with_processes,
)
from rankwatch_diagnosis.run.replicas import difference, judge_replicas
from rankwatch_diagnosis.run.step_rows import STEPS_BY_PLACE, numbers_repeat, phase_table, rows_by_rank
from rankwatch_diagnosis.run.verdict import RunState, RunVerdict, slow_ranks, state_of, why_of
from rankwatch_diagnosis.run.waiting import (
    Recorders,
    failed_first,
    gather_recorders,
    judge_waiting,
    living_paths,
    missing_here,
    stall_seconds,
    with_places,
)
from rankwatch_diagnosis.run.witnesses import can_be_heard, held_down, with_gpu_witness, with_second_witness
from rankwatch_diagnosis.straggler.verdict import Verdict

_MOST_SHOWN = 1_024


def diagnose_run(
    directory: Path,
    *,
    stall: float | None = None,
    complete: bool = False,
    agent_state: Path | None = None,
    ask_gpus: bool = False,
) -> RunVerdict:
    """Diagnose the run in this directory. Raise UserError where there is nothing to diagnose.

    stall: age in seconds from which a wait is a stall; None: as the ranks have learnt.
    complete: the directory holds the boxes of all nodes, so that a missing one is evidence.
    agent_state: directory in which the agent of this node keeps what it has verified; None: not asked.
    ask_gpus: ask the driver what the GPUs of a living run that stands, or has a slow rank, do. It takes two
        seconds.
    """
    looked = _look(directory, stall, complete=complete, ask_gpus=ask_gpus)
    boxes, recorders, processes, hang = looked.boxes, looked.recorders, looked.processes, looked.hang
    by_place = numbers_repeat(boxes)
    rows = rows_by_rank(boxes, by_place=by_place)
    straggler = with_second_witness(boxes, recorders.snapshots, judge_straggler(boxes, rows))
    if straggler is not None and by_place:
        straggler = replace(straggler, evidence={**straggler.evidence, STEPS_BY_PLACE: True})
    state = _state(boxes, hang)
    if straggler is not None and can_be_heard(straggler):
        seen = SeenGpus()
        if looked.bundle is not None:
            seen = gpus_of_bundle(looked.bundle, boxes, WHILE_IT_RAN)
        elif ask_gpus and state is RunState.RUNNING:
            seen = gpus_now(boxes)
        straggler, hang = with_gpu_witness(boxes, seen, straggler), hang.noted(seen.silent)
    ranks = _blamed(state, boxes, hang, straggler)
    why = why_of(state, ranks, boxes, hang, straggler)
    visible = capabilities(boxes)
    replicas = judge_replicas(boxes, visible.get(Capability.REPLICAS))
    lacking = contention(boxes, processes)
    if state is RunState.RUNNING and lacking:
        why = "; ".join((why, lacks_cpus(lacking)) if ranks else (lacks_cpus(lacking), why))
    if state is RunState.RUNNING:
        why = "; ".join((why, *held_down(straggler)))
    why = "; ".join((why, *(difference(each) for each in replicas.differing[:1])))
    return RunVerdict(
        run=boxes.run,
        boxes=boxes,
        state=state,
        ranks=ranks,
        why=why,
        contention=lacking,
        hang=hang,
        straggler=straggler,
        losses=compare_losses(boxes),
        loss=judge_loss(boxes, (looked.folder,)),
        phases=phase_table(boxes, rows),
        replicas=replicas,
        capabilities=visible,
        trackers=tracked(boxes),
        ended_attempts=ended_attempts(boxes, looked.folder),
        progress=progress(boxes),
        checkpoints=checkpoints(boxes, boxes.moment, VerificationRecords(agent_state).of_run(boxes.run)),
        ranks_seen=tuple(
            _seen(each, boxes, processes) for each in list(boxes.by_rank.values())[:_MOST_SHOWN]
        ),
        sources=_sources(boxes, recorders, looked.stall),
    )


def diagnose_waiting(directory: Path) -> HangVerdict:
    """Say only whom the run in this directory waits for. Raise UserError if there is nothing to diagnose."""
    return _look(directory, None, complete=False, ask_gpus=True).hang


class _Looked(NamedTuple):
    folder: Path
    bundle: Path | None
    boxes: Boxes
    recorders: Recorders
    processes: Processes
    stall: float
    """Age in seconds from which a wait was judged a stall."""
    hang: HangVerdict


def _look(directory: Path, stall: float | None, *, complete: bool, ask_gpus: bool) -> _Looked:
    """Read everything of the run that is seen, and judge whom it waits for."""
    folder, copied, boxes = read_run(directory)
    recorders, processes = _ask(folder, boxes, copied)
    limit = stall_seconds(boxes) if stall is None else stall
    hang = judge_waiting(boxes, recorders, stall=limit, complete=complete, given=stall is not None)
    hang = with_processes(boxes, hang, processes)
    if hang.stands:
        seen = SeenGpus()
        if folder.bundle is not None:
            seen = gpus_of_bundle(folder.bundle, boxes, AT_THE_STALL)
        elif ask_gpus:
            seen = gpus_now(boxes)
        hang = with_gpus(boxes, hang, seen.by_rank).noted(seen.silent)
    hang = with_places(boxes, hang)
    return _Looked(folder.boxes[0].parent, folder.bundle, boxes, recorders, processes, limit, hang)


def _ask(folder: RunFolder, boxes: Boxes, copied: CopiedRanks | None) -> tuple[Recorders, Processes]:
    """Return what recorders and processes of the ranks show: now, or when the bundle was made."""
    if copied is not None:
        recorders = gather_recorders(folder, boxes)
        answered = len(recorders.snapshots)
        return recorders, Processes(facts=copied.processes, silent=copied.silent, answered=answered)
    before = read_processes(living_paths(folder, boxes))
    stopped = Processes(facts=before).stopped
    recorders = gather_recorders(folder, boxes, stopped=stopped)
    facts, pressure = reread_processes(before), cpu_pressure() if before else None
    return recorders, Processes(
        facts=facts, silent=recorders.silent, answered=recorders.live, pressure=pressure
    )


def _state(boxes: Boxes, hang: HangVerdict) -> RunState:
    states = {each.state for each in boxes.by_rank.values()}
    untimed = not boxes.living and not boxes.copied_alive
    stands = hang.state.is_stall or (hang.state is State.INCONCLUSIVE and untimed)
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
        others = (rank for each in straggler.others for rank in each.ranks)
        return tuple(sorted({*slow_ranks(straggler), *others}))
    return ()


def _seen(box: Box, boxes: Boxes, processes: Processes) -> dict[str, object]:
    shown: dict[str, object] = {
        "rank": box.rank,
        "host": box.header.identity.host,
        "state": state_of(box, boxes),
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
