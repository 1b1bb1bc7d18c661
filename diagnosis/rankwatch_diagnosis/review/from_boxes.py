"""The review of a run from its black boxes, on a node or in an evidence bundle: what happened, and what was
judged, each with its evidence."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

from rankwatch.checkpoint_paths import SUFFIX, read_checkpoints
from rankwatch.conventions.states import Cause, RankState
from rankwatch.conventions.vocabulary import LOSS
from rankwatch_agent.runtime.errors import UserError
from rankwatch_agent.training.goodput.run_ledgers import ACCOUNT
from rankwatch_diagnosis.goodput.from_boxes import read_folder
from rankwatch_diagnosis.goodput.model import RunGoodput
from rankwatch_diagnosis.loss.anomaly import Anomaly, Severity
from rankwatch_diagnosis.loss.detection import LossVerdict
from rankwatch_diagnosis.review.incidents import KeptIncident, events_of_bundle, incidents_of, read_incident
from rankwatch_diagnosis.review.model import (
    CheckpointSeen,
    Event,
    EventKind,
    Judgement,
    LossCurve,
    LossMark,
    RankPhases,
    RunReview,
    attempt_events,
    shown_events,
    thinned,
)
from rankwatch_diagnosis.run.box_records import (
    CheckpointOperation,
    checkpoint_operations,
    scalars_of,
    steps_of,
    unseen_parts,
)
from rankwatch_diagnosis.run.boxes import Box, Boxes
from rankwatch_diagnosis.run.engine import diagnose_run
from rankwatch_diagnosis.run.folder import RunFolder, find_run
from rankwatch_diagnosis.run.losses import loss_parts
from rankwatch_diagnosis.run.processes import lacks_cpus
from rankwatch_diagnosis.run.replicas import replica_parts
from rankwatch_diagnosis.run.report import (
    checkpoint_words,
    event_lines,
    loss_words,
    note_parts,
    other_causes,
    progress_words,
    slowdown_words,
    waiting_evidence,
    waiting_words,
)
from rankwatch_diagnosis.run.step_rows import mean_phases, rows_by_rank
from rankwatch_diagnosis.run.verdict import RunState, RunVerdict, worst_anomaly
from rankwatch_diagnosis.straggler.thresholds import DEFAULT
from rankwatch_diagnosis.words import listed

_SEVERITY = {
    RunState.STALLED: Severity.CRITICAL,
    RunState.LOST: Severity.CRITICAL,
    RunState.FAILED: Severity.CRITICAL,
    RunState.RUNNING: Severity.INFO,
    RunState.STARTING: Severity.INFO,
    RunState.FINISHED: Severity.INFO,
}
_LATEST_INCIDENT_SECONDS = 3600.0
"""After the last sign of life. An agent that is stopped opens it only once it runs again."""


_Around = tuple[tuple[Event, ...], tuple[str, ...]]
"""Events known beside the boxes, and why others are not seen."""


def review_folder(
    directory: Path,
    *,
    agent_state: Path | None = None,
    evidence: Path | None = None,
    stall: float | None = None,
) -> RunReview:
    """Return the review of the run in a directory or in an evidence bundle.

    agent_state: directory in which the agent of this node keeps account of time, and what it has verified.
    evidence: where the agent keeps evidence bundles.
    stall: as in `diagnose_run`.
    Raises UserError where there is no box that can be used.
    """
    verdict = diagnose_run(directory, stall=stall, agent_state=agent_state)
    boxes = verdict.boxes
    folder = find_run(directory)
    goodput, unjudged = _goodput(directory, None if agent_state is None else agent_state / ACCOUNT)
    signs = (each.wall(each.last_sign) for each in boxes.by_rank.values())
    attempts = () if goodput is None else goodput.attempts
    headers = [each.header.started_wall for each in (*boxes.by_rank.values(), *boxes.kept)]
    started, ended = min([*headers, *(each.started for each in attempts)]), max((*signs, boxes.moment or 0.0))
    if folder.bundle is not None:
        beside, unseen = _of_bundle(folder.bundle, ended)
    else:
        beside, unseen = _of_node(boxes.run, evidence, started, ended)
    shown, left_out = shown_events(
        [
            *attempt_events(() if goodput is None else goodput.attempts, "black boxes"),
            *box_events(boxes, verdict),
            *beside,
        ]
    )
    running = bool(boxes.living) and verdict.state in (RunState.RUNNING, RunState.STARTING, RunState.STALLED)
    loss = verdict.loss
    return RunReview(
        run=verdict.run,
        source=str(directory),
        result=verdict.state.value,
        severity=_SEVERITY.get(verdict.state, Severity.WARNING),
        why=verdict.why,
        running=running,
        started=started,
        ended=ended,
        world_size=boxes.world_size,
        nodes=tuple(sorted({each.header.identity.host for each in boxes.by_rank.values()})),
        steps=progress_words(verdict),
        goodput=goodput,
        events=shown,
        events_left_out=left_out,
        judgements=tuple(judgements(verdict)),
        phases=tuple(
            RankPhases(rank, boxes.by_rank[rank].header.identity.host, seconds)
            for rank, seconds in mean_phases(rows_by_rank(boxes)).items()
        ),
        loss=None if loss is None else loss_curve(boxes.by_rank[loss[0]], loss[1]),
        checkpoints=checkpoints_seen(boxes, folder.boxes),
        checkpoint_summary=checkpoint_words(verdict.checkpoints),
        unseen=tuple(_unseen(verdict, boxes, goodput, (*unjudged, *unseen), folder)),
    )


def _goodput(directory: Path, account: Path | None) -> tuple[RunGoodput | None, tuple[str, ...]]:
    try:
        return read_folder(directory, account), ()
    except UserError as error:
        return None, (f"goodput: {error}",)


def _of_node(run: str, evidence: Path | None, started: float, ended: float) -> _Around:
    """Find the incidents of this run, not of an earlier one with the same name, and what was around them."""
    unseen = ["events of the hardware: black boxes hold none; evidence bundles and Prometheus do"]
    if evidence is None:
        return (), tuple(unseen)
    kept, why = incidents_of(run, evidence)
    incidents = [each for each in kept if started <= each.opened <= ended + _LATEST_INCIDENT_SECONDS]
    found = [each.event() for each in incidents]
    for each in incidents:
        more, _ = _hardware(each, each.opened)
        found += more
    if incidents:
        unseen = ["events of the hardware outside of incidents: evidence bundles hold those around one only"]
    return tuple(found), tuple(filter(None, (*unseen, why)))


def _of_bundle(bundle: Path, ended: float) -> _Around:
    incident = read_incident(bundle)
    if incident is None:
        return (), ("the incident: manifest.json of the bundle is missing or makes no sense",)
    found, why = _hardware(incident, ended)
    return (incident.event(), *found), tuple(filter(None, (why, *incident.missing)))


def _hardware(incident: KeptIncident, until: float) -> tuple[list[Event], str]:
    """Return what grew between the two pages of metrics in its bundle."""
    return events_of_bundle(incident.bundle, at=incident.opened, until=until, node=incident.node)


def _unseen(
    verdict: RunVerdict,
    boxes: Boxes,
    goodput: RunGoodput | None,
    others: Sequence[str],
    folder: RunFolder,
) -> Iterator[str]:
    if len(boxes.by_rank) < boxes.world_size:
        yield f"{boxes.world_size - len(boxes.by_rank)} of {boxes.world_size} ranks have no black box here"
    yield from unseen_parts(verdict.capabilities)
    yield from note_parts(verdict)
    yield from (() if goodput is None else goodput.unseen)
    yield "alerts: Prometheus knows them (--prometheus URL)"
    if goodput is None or not goodput.costs:
        where = "the bundle has" if folder.bundle else "black boxes have"
        yield f"cost: {where} no prices; Prometheus does, if the agents have a price table"
    yield from others


_MOST_ANOMALIES = 12


def judgements(verdict: RunVerdict) -> Iterator[Judgement]:
    """Yield judgements of stall, slowdown, loss, replicas, and the lack of CPUs where it is seen."""
    stalled = Severity.CRITICAL if verdict.state is RunState.STALLED else Severity.INFO
    evidence = tuple(each.strip() for each in waiting_evidence(verdict))
    yield Judgement("Waiting", stalled, waiting_words(verdict), evidence)
    yield _slowdown(verdict)
    found = () if verdict.loss is None else verdict.loss[1].anomalies
    yield Judgement(
        "Loss",
        worst_anomaly(verdict) or Severity.INFO,
        loss_words(verdict),
        (*loss_parts(verdict.losses), *(anomaly_words(each) for each in found[-_MOST_ANOMALIES:])),
    )
    head, *others = replica_parts(verdict.replicas)
    differ = Severity.CRITICAL if verdict.replicas.differing else Severity.INFO
    yield Judgement("Replicas", differ, head, tuple(others))
    if verdict.contention:
        yield Judgement("CPUs", Severity.WARNING, lacks_cpus(verdict.contention))


def _slowdown(verdict: RunVerdict) -> Judgement:
    found = verdict.straggler
    calm = found is None or found.cause in (Cause.NONE, Cause.INCONCLUSIVE)
    evidence = (*other_causes(found), *(() if found is None else event_lines(found)))
    return Judgement(
        "Slowdown",
        Severity.INFO if calm else Severity.WARNING,
        slowdown_words(found),
        tuple(each.strip() for each in evidence),
    )


_MOST_SHOWN = 30


def checkpoints_seen(boxes: Boxes, paths: Sequence[Path]) -> tuple[CheckpointSeen, ...]:
    """Return the checkpoints, the newest first. paths: of the boxes; notes beside them say where they are."""
    found: dict[tuple[str, int], list[tuple[Box, CheckpointOperation]]] = defaultdict(list)
    for box in (*boxes.earlier, *boxes.by_rank.values()):
        for operation in checkpoint_operations(box):
            found[operation.name, operation.step].append((box, operation))
    places = {
        (each.operation, each.step): each.path
        for path in paths
        for each in reversed(read_checkpoints(path.with_suffix(SUFFIX)))
    }
    together = [_together(of_ranks, places.get(key, "")) for key, of_ranks in found.items()]
    return tuple(sorted(together, key=lambda each: each.ended, reverse=True)[:_MOST_SHOWN])


def _together(of_ranks: Sequence[tuple[Box, CheckpointOperation]], path: str) -> CheckpointSeen:
    operations = [operation for _, operation in of_ranks]
    slowest = max(operations, key=lambda each: each.seconds)
    return CheckpointSeen(
        ended=max(box.wall(operation.end) for box, operation in of_ranks),
        operation=slowest.name,
        step=slowest.step,
        ranks=len({each.rank for each in operations}),
        failed=sum(each.failed for each in operations),
        seconds=slowest.seconds,
        blocking_seconds=max(each.blocking_seconds for each in operations),
        slowest_rank=slowest.rank,
        path=path,
    )


_SOURCE = "black boxes"
_MOST_FAILURES = 16
_MOST_OF_A_KIND = 40


StepMoments = dict[int, tuple[float, float]]
"""Number of a step -> when it began and ended, in Unix time, as the first rank that holds it has it."""


def step_moments(boxes: Boxes) -> StepMoments:
    """Return the moments of the steps that a box holds."""
    found: StepMoments = {}
    for box in boxes.by_rank.values():
        for each in steps_of(box):
            found.setdefault(each.number, (box.wall(each.start), box.wall(each.end)))
    return found


def box_events(boxes: Boxes, verdict: RunVerdict) -> Iterator[Event]:
    """Yield ends of ranks, a stall, the start of a slowdown, long steps, the loss, failed checkpoints."""
    moments = step_moments(boxes)
    yield from _failures(boxes, verdict)
    if verdict.hang.state.is_stall:
        since = max(each.wall(each.last_progress) for each in boxes.by_rank.values())
        words = waiting_words(verdict)
        yield Event(since, EventKind.STALL, Severity.CRITICAL, words, _SOURCE, until=boxes.moment)
    yield from _slow_steps(verdict, moments)
    yield from _loss_alarms(verdict, moments)
    for box in (*boxes.earlier, *boxes.by_rank.values()):
        yield from _checkpoints(box)


def _failures(boxes: Boxes, verdict: RunVerdict) -> Iterator[Event]:
    bad = (RankState.LOST, RankState.FAILED) if boxes.liveness_known else (RankState.FAILED,)
    ended = [each for each in boxes.by_rank.values() if each.state in bad]
    ended.sort(key=lambda each: (each.rank not in verdict.ranks, each.wall(each.last_sign)))
    for box in ended[:_MOST_FAILURES]:
        victim = " in a collective" if box.failed_in_collective else ""
        how = f": {box.ended_by}" if box.ended_by else ""
        text = f"rank {box.rank} {box.state.value}{victim}{how}"
        severity = Severity.CRITICAL if box.rank in verdict.ranks else Severity.WARNING
        yield Event(
            box.wall(box.last_sign),
            EventKind.FAILURE,
            severity,
            text,
            _SOURCE,
            rank=box.rank,
            node=box.header.identity.host,
        )


def _slow_steps(verdict: RunVerdict, moments: StepMoments) -> Iterator[Event]:
    found = verdict.straggler
    if found is None:
        return
    for cause in found.causes:
        began, ended = moments.get(cause.first_step), moments.get(cause.last_step)
        if began is None or (cause.slowdown or 1.0) < DEFAULT.least_slowdown:
            continue
        whom = f" on {listed(cause.ranks)}" if cause.ranks else ""
        text = f"{cause.cause_and_phase}{whom} from step {cause.first_step} to {cause.last_step}"
        until = ended[1] if ended is not None else None
        yield Event(began[0], EventKind.SLOW_STEP, Severity.WARNING, text, _SOURCE, until=until)
    for each in found.events[:_MOST_OF_A_KIND]:
        step, ranks = each["step"], each["ranks"]
        when = moments.get(step) if isinstance(step, int) else None
        if when is not None:
            late = f" on {listed(tuple(ranks))}" if isinstance(ranks, list) and ranks else ""
            text = f"step {step} lost {each['lost_seconds']:,.1f} s in {each['operation']}{late}"
            yield Event(when[0], EventKind.SLOW_STEP, Severity.INFO, text, _SOURCE, until=when[1])


def _loss_alarms(verdict: RunVerdict, moments: StepMoments) -> Iterator[Event]:
    if verdict.loss is None:
        return
    rank, found = verdict.loss
    for each in found.anomalies[-_MOST_OF_A_KIND:]:
        when = moments.get(each.step)
        if when is not None:
            yield Event(when[1], EventKind.LOSS, each.severity, anomaly_words(each), _SOURCE, rank=rank)


def _checkpoints(box: Box) -> Iterator[Event]:
    for each in checkpoint_operations(box):
        at = box.wall(each.end)
        if each.failed:
            text = f"{each.name} of the checkpoint of step {each.step} failed on rank {box.rank}"
            yield Event(at, EventKind.CHECKPOINT, Severity.WARNING, text, _SOURCE, rank=box.rank)
        elif each.name == "load" and box.rank == 0:
            text = f"resumed from the checkpoint of step {each.step}"
            yield Event(at, EventKind.CHECKPOINT, Severity.INFO, text, _SOURCE, rank=box.rank)


MOST_MARKS = 40


def loss_curve(box: Box, verdict: LossVerdict) -> LossCurve:
    """Return the loss that a rank has reported, with the anomalies that were found in it."""
    points = [(float(step), value) for _, step, value in scalars_of(box, LOSS)]
    marks = [LossMark(each.step, anomaly_words(each), each.severity) for each in verdict.anomalies]
    return LossCurve(rank=box.rank, axis="step", points=thinned(points), marks=tuple(marks[-MOST_MARKS:]))


def anomaly_words(anomaly: Anomaly) -> str:
    """Return what happened, at which step, and how far from what was expected."""
    what = anomaly.kind.value.replace("_", " ")
    at = f"{what} at step {anomaly.step}"
    if not math.isfinite(anomaly.value) or not math.isfinite(anomaly.expected):
        return f"{at}: {anomaly.value:g}"
    lasted = f", until step {anomaly.last_step}" if anomaly.last_step > anomaly.step else ""
    return f"{at}: {anomaly.value:.4g} instead of {anomaly.expected:.4g}{lasted}"
