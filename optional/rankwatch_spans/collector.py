"""Collector `traces`: makes spans of what the collector `ranks` has noted, and hands them to the sender."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rankwatch.conventions.traces import LinkTo, Sampled
from rankwatch.untrusted.text import printable
from rankwatch_agent.runtime.collector import Collection, Exemplar, Schedule, Series, sample
from rankwatch_agent.runtime.turns import Places, excess
from rankwatch_agent.training.notes import (
    STEP,
    Began,
    CheckpointDone,
    Ended,
    Exemplars,
    Note,
    Notes,
    OpenIncident,
    Process,
    Resumed,
    SectionDone,
    StepDone,
)
from rankwatch_spans.queue import SpanLink, SpanQueue, TraceSpan
from rankwatch_spans.run_trace import RunTrace
from rankwatch_spans.state import RunState, TraceState
from rankwatch_spans.step_trace import step_spans
from rankwatch_spans.steps import HeldSteps

HOLD_SECONDS = 10.0
"""How long steps are held until it is decided which become traces."""
MAX_SPANS_OF_PASS = 5000
"""Spans made in one second, over all runs; the others are dropped, of a user with many first."""
MAX_RUNS = 200
"""Runs that are followed at once. Of more, the user with most of them loses the oldest, or gets no place."""
_FORGET_SECONDS = 7200.0
_SAVE_SECONDS = 10.0
"""Between two writes of the state while no span goes out and no process comes or goes: each waits for the
disk."""


@dataclass(frozen=True, kw_only=True)
class TraceSettings:
    """What becomes a trace."""

    cluster: str
    node: str
    one_in: int
    """One step in so many is sampled whatever it is like; 0 samples none of them."""
    heartbeat_seconds: float
    hold_seconds: float = HOLD_SECONDS
    directory: Path | None = None
    """Folder that keeps the state."""


class TracesCollector:
    """Makes spans once a second.

    notes: filled by the collector `ranks`. queue: emptied by the thread that sends. exemplars: exported by
        the collector `ranks`.
    open_incidents: the incidents of this node that are open now.
    """

    name = "traces"

    def __init__(
        self,
        *,
        notes: Notes,
        queue: SpanQueue,
        exemplars: Exemplars,
        settings: TraceSettings,
        open_incidents: Callable[[], Mapping[str, OpenIncident]],
        schedule: Schedule,
        monotonic: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.interval_seconds, self.deadline_seconds = schedule
        self._notes, self._queue, self._settings = notes, queue, settings
        self._exemplars = exemplars
        self._open_incidents = open_incidents
        self._monotonic, self._wall = monotonic, wall
        self._state = TraceState(settings.directory, int(wall() * 1e9))
        self._until = self._state.until
        self._saved = float("-inf")
        """When the state was saved last, monotonic."""
        self._runs: dict[str, RunTrace] = {}
        self._last_note: dict[str, float] = {}
        self._refused: set[str] = set()
        """Runs that got no place in this pass."""
        self._made: list[TraceSpan] = []
        self._places = Places(MAX_SPANS_OF_PASS)
        self._over = 0
        self._incidents: dict[str, OpenIncident] = {}
        self._incident_since: dict[str, int] = {}
        self._steps = HeldSteps(
            cluster=settings.cluster,
            one_in=settings.one_in,
            hold_seconds=settings.hold_seconds,
            incidents=self._incident_since,
            sampled=self._sample,
            state=self._state,
        )

    def collect(self) -> Collection:
        """Make the spans of what was noted since the last time."""
        self._pass(at_the_end=False)
        return Collection(series=self._series())

    def close(self) -> None:
        """Decide about all steps that are held, at the end of the agent."""
        self._pass(at_the_end=True)

    def _pass(self, *, at_the_end: bool) -> None:
        moment, now = self._monotonic(), int(self._wall() * 1e9)
        self._update_incidents(moment, now)
        notes = self._notes.take()
        self._refused.clear()
        for note in notes:
            self._take(note, moment)
        self._steps.decide(moment, all_of_them=at_the_end)
        for run in self._runs.values():
            run.tick(moment, now)
        self._forget(moment)
        made, self._made = self._made, []
        self._places.free()
        changed = any(isinstance(each, (Began, Resumed, Ended)) for each in notes)
        if made or changed or at_the_end or moment >= self._saved + _SAVE_SECONDS:
            # Before the spans go out: a span that is lost with the agent is better than one that comes twice.
            self._saved = moment
            self._state.save(now)
        self._queue.add(made)

    def _take(self, note: Note, moment: float) -> None:
        process = note.process
        run = self._run(process.run, process.owner, moment)
        if run is None:
            return
        match note:
            case Began():
                run.began(process)
                # The first step of a later attempt shows what the restart cost.
                self._steps.begins(process.run, process.attempt, process.rank, resumed=process.attempt > 0)
            case Resumed():
                self._steps.begins(process.run, process.attempt, process.rank, resumed=True)
            case StepDone():
                run.step(note)
                self._steps.add(note, moment)
            case SectionDone():
                run.section(note)
            case CheckpointDone():
                span = run.checkpoint(note)
                if span is not None:
                    self._note_exemplar(process, note.operation, span)
            case Ended():
                self._end(note, run, moment)

    def _end(self, note: Ended, run: RunTrace, moment: float) -> None:
        run.ended(note, moment)
        if note.open_step is not None:
            number, began = note.open_step
            end = max(began, note.moment)
            step = StepDone(note.process, number, began, end, True, (), (), {})
            self._steps.add(step, moment, unfinished=True)

    def _run(self, run: str, owner: int, moment: float) -> RunTrace | None:
        found = self._runs.get(run)
        if run in self._refused:
            self._over += 1
            return None
        if found is None:
            owners = {each: trace.owner for each, trace in self._runs.items()}
            for gone in excess([*owners, run], owner=(owners | {run: owner}).get, most=MAX_RUNS):
                if gone == run or owners[gone] == owner:  # else the runs of one user would take turns
                    self._refused.add(run)
                    self._over += 1
                    return None
                del self._runs[gone], self._last_note[gone]
            state = self._state.runs.setdefault(run, RunState(seen=int(self._wall() * 1e9)))
            state.owner = owner
            found = self._runs[run] = RunTrace(
                self._settings.cluster,
                run,
                state,
                send=partial(self._send, owner),
                heartbeat_seconds=self._settings.heartbeat_seconds,
                hold_seconds=self._settings.hold_seconds,
            )
        self._last_note[run] = moment
        return found

    def _sample(self, step: StepDone, why: Sampled) -> None:
        spans = list(step_spans(self._settings.cluster, step, why))
        for span in spans:
            self._send(step.process.owner, span)
        self._note_exemplar(step.process, STEP, spans[0])
        run = self._runs.get(step.process.run)
        if run is not None:
            run.sampled(step, why, SpanLink(spans[0].trace, spans[0].span, LinkTo.STEP))

    def _note_exemplar(self, process: Process, operation: str, span: TraceSpan) -> None:
        found = Exemplar(span.trace, span.span, (span.end - span.start) / 1e9, span.end / 1e9)
        self._exemplars.note(process.run, operation, found, process.owner)

    def _send(self, owner: int, span: TraceSpan) -> None:
        """Take a span for the sender, unless an agent before this one has sent it.

        Attempts and runs are sent after their end, and have a state of their own.
        """
        if (name := printable(span.name)) != span.name:
            span = span._replace(name=name)
        if span.end <= self._until and not (span.parental and span.name in ("run", "attempt")):
            return
        if not self._places.take(owner) and not span.parental:
            self._over += 1
            return
        self._made.append(span)

    def _update_incidents(self, moment: float, now: int) -> None:
        """Send the incidents that are over, and note which are open."""
        open_now = dict(self._open_incidents())
        for run, before in self._incidents.items():
            present = open_now.get(run)
            trace = self._runs.get(run)
            if trace is not None and (present is None or present.number != before.number):
                since = self._incident_since[run]
                node, kind, lost = self._settings.node, before.kind, before.lost_rank
                trace.incident(before.number, kind, node, since, now, lost=lost)
        self._incidents = open_now
        walls = {run: now - int((moment - each.since) * 1e9) for run, each in open_now.items()}
        for run in self._incident_since.keys() - walls.keys():
            del self._incident_since[run]
        for run, since in walls.items():
            self._incident_since.setdefault(run, since)

    def _forget(self, moment: float) -> None:
        for run, last in list(self._last_note.items()):
            if self._runs[run].idle and moment - last > _FORGET_SECONDS:
                del self._runs[run], self._last_note[run]
        self._steps.forget(set(self._runs))

    def _series(self) -> list[Series]:
        return [
            sample("rankwatch_spans_total", ("sent",), self._queue.sent),
            sample("rankwatch_spans_total", ("dropped",), self._over + self._queue.dropped),
            sample("rankwatch_trace_notes_dropped_total", (), self._notes.dropped + self._steps.dropped),
        ]
