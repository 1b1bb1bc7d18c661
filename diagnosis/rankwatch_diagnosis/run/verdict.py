"""The verdict on a run: its state, the sentence that says why, and what its ranks do not show."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from rankwatch.conventions.states import Cause, RankState
from rankwatch_agent.training.life.failures import KILLED
from rankwatch_diagnosis.hang.verdict import HangVerdict, State
from rankwatch_diagnosis.loss.anomaly import Severity
from rankwatch_diagnosis.loss.detection import LossVerdict
from rankwatch_diagnosis.run.box_records import Capabilities
from rankwatch_diagnosis.run.boxes import Box, Boxes
from rankwatch_diagnosis.run.ending import EndedAttempt
from rankwatch_diagnosis.run.losses import RankLosses
from rankwatch_diagnosis.run.replicas import Replicas
from rankwatch_diagnosis.run.waiting import place_of, where_of
from rankwatch_diagnosis.straggler.report import share_lost
from rankwatch_diagnosis.straggler.thresholds import DEFAULT
from rankwatch_diagnosis.straggler.verdict import Verdict
from rankwatch_diagnosis.words import counted, listed


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
    boxes: Boxes
    """By which it was judged."""
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
    losses: RankLosses
    """The losses of the ranks beside each other."""
    replicas: Replicas
    """Whether ranks that must hold the same parameters do."""
    phases: Mapping[str, object]
    """Time of a step by where it goes; empty where no rank holds a whole step."""
    contention: Mapping[str, object]
    """Signs that the ranks lack CPUs; empty where they have enough."""
    capabilities: Capabilities
    """Capabilities of zero-code recording: what it sees of the training loop."""
    trackers: tuple[str, ...]
    """Places where experiment trackers show the run."""
    ended_attempts: tuple[EndedAttempt, ...]
    """How each attempt that is over ended, as far as boxes of it are left."""
    progress: Mapping[str, object]
    checkpoints: Mapping[str, object]
    ranks_seen: tuple[Mapping[str, object], ...]
    sources: Mapping[str, object]


def verdict_word(verdict: RunVerdict) -> str:
    """Return the verdict in a word: `stalled`, else the cause of a slowdown; empty if that was not judged."""
    if verdict.state is RunState.STALLED:
        return verdict.state.value
    return "" if verdict.straggler is None else verdict.straggler.cause.value


def slow_ranks(found: Verdict) -> tuple[int, ...]:
    """Return the ranks that slow the run down, if that costs enough to name them."""
    return found.ranks if found.slowdown >= DEFAULT.least_slowdown else ()


def worst_anomaly(verdict: RunVerdict) -> Severity | None:
    """Return how severe the worst anomaly of the loss is; None without an anomaly."""
    if verdict.loss is None:
        return None
    found = {each.severity for each in verdict.loss[1].anomalies}
    return next((each for each in reversed(Severity) if each in found), None)


_OTHERS_SHOWN = 2
"""Causes in the sentence, besides the first."""
GONE = "gone"
"""State of a rank that ended without a reason, where it may be lost or its box may be a copy."""


def why_of(
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
        own = [each for each in boxes.by_rank.values() if each.failed_by_itself]
        if not own:
            return "exceptions ended ranks, all of them in collectives: it is not known which failed first"
        reasons = Counter(each.ended_by or "an exception" for each in own)
        such_as = ", such as" if len(reasons) > 1 else ""
        return f"each rank was ended by an exception of its own{such_as}: {reasons.most_common(1)[0][0]}"
    if state is RunState.RUNNING and straggler is not None:
        if straggler.cause is Cause.NONE:
            return f"nothing is seen to slow it down{_but_events(straggler)}"
        if straggler.cause is Cause.INCONCLUSIVE:
            return f"{unclear(straggler)}{_and_others(straggler)}"
        named = slow_ranks(straggler)
        where = f", {listed(named)}" if named else ""
        cause = f"{straggler.cause_and_phase}{where}{_and_others(straggler)}"
        return f"it is {share_lost(straggler)} slower than it could be; cause: {cause}"
    counts = Counter(state_of(each, boxes) for each in boxes.by_rank.values())
    states = ", ".join(
        f"{count} {'rank is' if count == 1 else 'ranks are'} {name}" for name, count in counts.items()
    )
    if state in (RunState.TERMINATED, RunState.ENDED) and hang.state.is_stall and hang.ranks:
        return f"{states}; at the end {_waited(hang)}"  # a stall, or the moment at which it was ended
    return states


def _and_others(straggler: Verdict) -> str:
    """Return the causes beside the first, with their costs."""
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
    return f", but {counted(count, 'single step')} lost {straggler.event_seconds:,.1f} s"


def unclear(straggler: Verdict) -> str:
    """Return the sentence about a slowdown of uncertain cause, or about too little evidence."""
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
    """Say whom the run waits for or waited for, and where."""
    one = len(hang.ranks) == 1
    where = f" in {hang.operation} of {hang.group}" if hang.group is not None else ""
    if hang.state is not State.DESYNC:
        return f"{listed(hang.ranks)} {verb[not one]} waited for{where}"
    return f"{listed(hang.ranks)} {'differs from its peers' if one else 'differ from their peers'}{where}"


def state_of(box: Box, boxes: Boxes) -> str:
    return box.state.value if boxes.liveness_known or box.state is not RankState.LOST else GONE
