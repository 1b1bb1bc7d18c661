"""The trace of a run: the run, its attempts, and what is worth a span over months: checkpoints, evaluations,
incidents, and a heartbeat each ten minutes.

Exactly one node sends each span. What belongs to an attempt comes from the node that has its rank 0; the span
of the run from the node that had rank 0 in attempt 0. A failed checkpoint is sent by the node of its rank.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from rankwatch import identity
from rankwatch.conventions.states import RankState
from rankwatch.conventions.traces import ALIASES, Attribute, LinkTo, Result, Sampled, SpanName
from rankwatch_agent.training.life.failures import worst_state
from rankwatch_agent.training.notes import CheckpointDone, Ended, Process, SectionDone, StepDone
from rankwatch_spans.queue import SpanEvent, SpanLink, TraceSpan, Value
from rankwatch_spans.state import AttemptState, RunState
from rankwatch_spans.step_trace import (
    Heartbeat,
    Heartbeats,
    attempt_span,
    fit,
    of_attempt,
    of_rank,
    of_run,
)

RUN_END_SECONDS = 300.0
"""A run that did not finish is over after so long without a living rank: it may be started again."""
_LATER_SECONDS = 3.0
"""How much longer the end of an attempt waits than its last steps, so that it links to them."""
_MAX_STAGES = 32
_MAX_RANKS = 512
_MAX_OPEN = 64
"""Attempts that have not ended. Of more, the first counts as lost."""
_RESULTS = {
    RankState.FINISHED: Result.SUCCESS,
    RankState.EXITED: Result.SUCCESS,
    RankState.FAILED: Result.FAILURE,
    RankState.INTERRUPTED: Result.CANCELLATION,
    RankState.PREEMPTED: Result.CANCELLATION,
    RankState.TERMINATED: Result.ERROR,
    RankState.LOST: Result.ERROR,
}
_NS = 1_000_000_000


@dataclass
class _Attempt:
    """An attempt whose rank 0 is here."""

    process: Process
    state: AttemptState
    heartbeats: Heartbeats
    ended: Ended | None = None
    ended_seen: float = math.inf
    stages: list[CheckpointDone] = field(default_factory=list)


class RunTrace:
    """The trace of one run, as far as this node sends it.

    send: takes spans. state: what was sent before, which this keeps up to date.
    """

    def __init__(
        self,
        cluster: str,
        run: str,
        state: RunState,
        *,
        send: Callable[[TraceSpan], None],
        heartbeat_seconds: float,
        hold_seconds: float,
    ) -> None:
        self._cluster, self._run, self._state, self._send = cluster, run, state, send
        self._trace = identity.run_trace(cluster, run)
        self._root = identity.span(self._trace, SpanName.RUN.value)
        self._heartbeat_ns = max(1, int(heartbeat_seconds * _NS))
        self._hold = hold_seconds + _LATER_SECONDS
        self._attempts: dict[int, _Attempt] = {}
        self._ranks: dict[int, tuple[int, RankState | None]] = {}
        """Rank -> its attempt, and its state once it ended."""
        self._process: Process | None = None
        self._idle_since = math.inf
        self._last = 0

    @property
    def owner(self) -> int | None:
        """User id of its owner."""
        return self._state.owner

    @property
    def idle(self) -> bool:
        """Whether no rank of it lives here."""
        return self._idle_since < math.inf

    # -- what the notes say -----------------------------------------------------------------------

    def began(self, process: Process) -> None:
        """Take a process of the run that was found."""
        self._process = process
        self._idle_since = math.inf
        if len(self._ranks) < _MAX_RANKS or process.rank in self._ranks:
            self._ranks[process.rank] = (process.attempt, None)
        if process.rank != 0 or process.attempt in self._attempts:
            return
        started = process.wall(process.header.started_monotonic)
        known = self._state.attempt(process.attempt, started)
        heartbeats = Heartbeats(known.started, self._heartbeat_ns)
        self._attempts[process.attempt] = _Attempt(process, known, heartbeats)
        if len(self._attempts) > _MAX_OPEN:  # boxes that were broken or gone before they ended
            del self._attempts[next(iter(self._attempts))]
        if process.attempt == 0 and self._state.started is None:
            self._state.started, self._state.scheduler = started, process.header.traceparent
            name = SpanName.RUN_STARTED
            span = identity.span(self._trace, name.value, 0)
            attributes = of_run(process, {})
            self._send(TraceSpan(self._trace, span, self._root, name, started, started, attributes))
        self._send_abandoned(process)

    def step(self, step: StepDone) -> None:
        """Take a settled step of a rank."""
        attempt = self._mine(step.process)
        if attempt is not None:
            attempt.heartbeats.step(step.number, step.process.wall(step.end))
            self._alive(attempt, step.end)

    def sampled(self, step: StepDone, why: Sampled, link: SpanLink) -> None:
        """Link a step of a rank that became a trace."""
        attempt = self._attempts.get(step.process.attempt)
        if attempt is None:
            return
        end = step.process.wall(step.end)
        first = attempt.heartbeats.link(link, end)
        if first and why is not Sampled.CHANCE:
            values: dict[Attribute, Value] = {
                Attribute.RANK: step.process.rank,
                Attribute.STEP: step.number,
                Attribute.SAMPLED: why.value,
            }
            attempt.heartbeats.event(SpanEvent(SpanName.STEP, end, fit(values, ALIASES)))

    def section(self, section: SectionDone) -> None:
        """Send the span of an evaluation that ended."""
        attempt = self._mine(section.process)
        if attempt is None:
            return
        start, end = section.process.wall(section.start), section.process.wall(section.end)
        attributes = of_rank(section.process, {})
        self._send(self._of_attempt(section.process, section.name, start, end, attributes))
        self._alive(attempt, section.end)

    def checkpoint(self, done: CheckpointDone) -> TraceSpan | None:
        """Take the end of a checkpoint operation or of a stage; stages come before their operation.

        Returns the span of the operation, if this node sends it.
        """
        attempt = self._mine(done.process)
        if done.stage:
            if attempt is not None and len(attempt.stages) < _MAX_STAGES:
                attempt.stages.append(done)
            return None
        stages, own = [], attempt is not None
        if attempt is not None:
            fitting = (done.operation, done.step)
            stages = [each for each in attempt.stages if (each.operation, each.step) == fitting]
            attempt.stages = []
            self._alive(attempt, done.end)
        return self._send_checkpoint(done, stages) if own or done.failed else None

    def ended(self, end: Ended, moment: float) -> None:
        """Take the end of a process of the run."""
        process = end.process
        if self._ranks.get(process.rank, (0, None))[0] == process.attempt:
            self._ranks[process.rank] = (process.attempt, end.state)
        attempt = self._mine(process)
        if attempt is not None and attempt.ended is None:
            attempt.ended, attempt.ended_seen = end, moment
            self._alive(attempt, end.moment)
        self._last = max(self._last, process.wall(end.moment))
        if all(state is not None for _, state in self._ranks.values()):
            self._idle_since = moment

    def incident(self, number: int, kind: str, node: str, start: int, end: int, *, lost: bool) -> None:
        """Send an incident that is over. Every node sees a stall, and one of them sends it: that of rank
        0."""
        process = self._process
        latest = max((attempt for attempt, _ in self._ranks.values()), default=0)
        if process is None or not (lost or latest in self._attempts):
            return
        start = min(start, end)  # the clock may have been set back
        values: dict[Attribute, Value] = {Attribute.INCIDENT_KIND: kind, Attribute.NODE: node}
        trace, parent = attempt_span(self._cluster, self._run, latest)
        span = identity.span(trace, SpanName.INCIDENT.value, latest, node, start)
        attributes = of_attempt(process, values)
        self._send(TraceSpan(trace, span, parent, SpanName.INCIDENT, start, end, attributes, error=kind))

    # -- what time brings -------------------------------------------------------------------------

    def tick(self, moment: float, now: int) -> None:
        """Send the heartbeats that are due, attempts that are over, and the run once it is over.

        moment: monotonic seconds of this agent. now: nanoseconds of Unix time.
        """
        for number, attempt in list(self._attempts.items()):
            if attempt.state.sent:
                del self._attempts[number]  # by the agent before this one
            elif attempt.ended is None:
                self._send_heartbeats(attempt, attempt.heartbeats.due(now - int(self._hold * _NS)))
            elif moment - attempt.ended_seen >= self._hold:
                self._send_attempt(number, attempt, attempt.ended)
        if self._is_over(moment):
            self._send_run()
        if self._idle_since == math.inf:
            self._state.seen = now

    def _is_over(self, moment: float) -> bool:
        state = self._state
        if state.started is None or state.sent or self._idle_since == math.inf or self._attempts:
            return False
        idle = moment - self._idle_since
        return idle >= (self._hold if self._result() is Result.SUCCESS else RUN_END_SECONDS)

    def _result(self) -> Result:
        latest = max((attempt for attempt, _ in self._ranks.values()), default=0)
        states = [state for attempt, state in self._ranks.values() if attempt == latest and state is not None]
        return _RESULTS.get(worst_state(states), Result.ERROR) if states else Result.ERROR

    # -- spans ------------------------------------------------------------------------------------

    def _send_heartbeats(self, attempt: _Attempt, heartbeats: Iterable[Heartbeat]) -> None:
        process = attempt.process
        trace, parent = attempt_span(self._cluster, self._run, process.attempt)
        for number, start, end, last_step, found in heartbeats:
            span = identity.span(trace, SpanName.HEARTBEAT.value, process.attempt, number)
            values: dict[Attribute, Value] = {Attribute.STEPS: found.steps, Attribute.STEP: last_step}
            attributes, links = of_rank(process, values), tuple(found.links.values())
            heartbeat = TraceSpan(trace, span, parent, SpanName.HEARTBEAT, start, end, attributes, links)
            self._send(heartbeat._replace(events=tuple(found.events)))

    def _send_attempt(self, number: int, attempt: _Attempt, ended: Ended) -> None:
        process = attempt.process
        end = process.wall(ended.moment)
        self._send_heartbeats(attempt, attempt.heartbeats.last(end))
        states = [ended.state, *(state for at, state in self._ranks.values() if at == number and state)]
        state = worst_state(states)
        values: dict[Attribute, Value] = {
            Attribute.STATE: state.value,
            Attribute.RESULT: _RESULTS.get(state, Result.ERROR).value,
            Attribute.EXCEPTION_TYPE: ended.exception[0],
            Attribute.EXCEPTION_MESSAGE: ended.exception[1],
        }
        self._finish_attempt(attempt, end, values)
        del self._attempts[number]

    def _finish_attempt(self, attempt: _Attempt, end: int, values: Mapping[Attribute, Value]) -> None:
        process, state = attempt.process, attempt.state
        links = _scheduler_links(process.header.traceparent)
        error = None if values.get(Attribute.RESULT) == Result.SUCCESS.value else str(values[Attribute.STATE])
        attributes = of_attempt(process, {**values, **_scheduler_trace(links)})
        state.last = max(state.started, end)
        self._send_attempt_span(process.attempt, state, attributes, links, error)

    def _send_abandoned(self, process: Process) -> None:
        """Send the attempts before this one that the agent before this one had not sent, and whose boxes are
        gone."""
        for number, state in self._state.attempts.items():
            if number < process.attempt and not state.sent and number not in self._attempts:
                lost = RankState.LOST.value
                values: dict[Attribute, Value] = {Attribute.ATTEMPT: number, Attribute.STATE: lost}
                attributes = of_attempt(process, {**values, Attribute.RESULT: Result.ERROR.value})
                self._send_attempt_span(number, state, attributes, (), lost)

    def _send_attempt_span(
        self,
        number: int,
        state: AttemptState,
        attributes: Mapping[str, Value],
        links: tuple[SpanLink, ...],
        error: str | None,
    ) -> None:
        state.sent = True
        ids, end = attempt_span(self._cluster, self._run, number), max(state.started, state.last)
        span = TraceSpan(*ids, self._root, SpanName.ATTEMPT, state.started, end, attributes, links, error)
        self._send(span._replace(parental=True))

    def _send_run(self) -> None:
        state, process = self._state, self._process
        if process is None or state.started is None:
            return
        state.sent = True
        result = self._result()
        links = _scheduler_links(state.scheduler)
        values: dict[Attribute, Value] = {Attribute.RESULT: result.value, **_scheduler_trace(links)}
        end = max(state.started, self._last, *(each.last for each in state.attempts.values()))
        error = None if result is Result.SUCCESS else result.value
        ids, attributes = (self._trace, self._root, 0), of_run(process, values)
        span = TraceSpan(*ids, SpanName.RUN, state.started, end, attributes, links, error)
        self._send(span._replace(parental=True))

    def _send_checkpoint(self, done: CheckpointDone, stages: list[CheckpointDone]) -> TraceSpan:
        name = f"{SpanName.CHECKPOINT}.{done.operation}"
        parent = self._of_attempt(done.process, name, *_walls(done), _checkpoint_attributes(done))
        self._send(parent._replace(error="" if done.failed else None, parental=bool(stages)))
        for number, stage in enumerate(stages):
            span = identity.span(parent.trace, parent.span, "stage", number, stage.stage)
            attributes = _checkpoint_attributes(stage)
            place = (parent.trace, span, parent.span, f"{name}.{stage.stage}")
            error = "" if stage.failed else None
            self._send(TraceSpan(*place, *_walls(stage), attributes, error=error))
        return parent

    def _of_attempt(
        self, process: Process, name: str, start: int, end: int, attributes: Mapping[str, Value]
    ) -> TraceSpan:
        """Return a span of a rank below its attempt."""
        trace, parent = attempt_span(self._cluster, self._run, process.attempt)
        span = identity.span(trace, name, process.attempt, process.rank, start)
        return TraceSpan(trace, span, parent, name, start, end, attributes)

    def _mine(self, process: Process) -> _Attempt | None:
        return self._attempts.get(process.attempt) if process.rank == 0 else None

    def _alive(self, attempt: _Attempt, moment: float) -> None:
        wall = attempt.process.wall(moment)
        attempt.state.last = max(attempt.state.last, wall)
        self._last = max(self._last, wall)


def _walls(done: CheckpointDone) -> tuple[int, int]:
    return done.process.wall(done.start), done.process.wall(done.end)


def _checkpoint_attributes(done: CheckpointDone) -> dict[str, Value]:
    values: dict[Attribute, Value] = {
        Attribute.CHECKPOINT_OPERATION: done.operation,
        Attribute.CHECKPOINT_STAGE: done.stage,
        Attribute.STEP: done.step,
    }
    if done.bytes:
        values[Attribute.CHECKPOINT_SIZE] = min(done.bytes, 2**62)
    return of_rank(done.process, values)


def _scheduler_links(traceparent: str) -> tuple[SpanLink, ...]:
    if not traceparent:
        return ()
    _, trace, span, _ = traceparent.split("-")
    return (SpanLink(int(trace, 16), int(span, 16), LinkTo.SCHEDULER),)


def _scheduler_trace(links: tuple[SpanLink, ...]) -> dict[Attribute, Value]:
    return {Attribute.SCHEDULER_TRACE: identity.trace_text(links[0].trace)} if links else {}
