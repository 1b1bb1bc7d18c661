"""The trace of one step, the attributes of spans, and the contents of heartbeats.

A step has a span for each rank, and its phases below it. The spans of the ranks stand side by side, without a
span above them: no node has to send one for all others, so no parent is missing where a node sends nothing.
Each links to the attempt in the run's trace.

Attributes have the names that other tools give them, and are bounded in length and number. A heartbeat covers
a stretch of Unix time, the same on all nodes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

from rankwatch import identity
from rankwatch.conventions.traces import (
    ALIASES,
    ATTEMPT_ALIASES,
    COORDINATE_ALIASES,
    RUN_ALIASES,
    SCALARS,
    Attribute,
    LinkTo,
    Sampled,
    SpanName,
)
from rankwatch.conventions.vocabulary import COMMUNICATION
from rankwatch_agent.runtime.exposition import fit_label_value
from rankwatch_agent.training.notes import Process, StepDone
from rankwatch_agent.training.steps.split import blocked_times
from rankwatch_spans.queue import SpanEvent, SpanLink, TraceSpan, Value

MAX_PHASE_SPANS = 64
"""Spans of phases in one step of one rank; of more, the longest are kept."""


def attempt_span(cluster: str, run: str, attempt: int) -> tuple[int, int]:
    """Trace and span of an attempt."""
    trace = identity.run_trace(cluster, run)
    return trace, identity.span(trace, SpanName.ATTEMPT.value, attempt)


def step_spans(cluster: str, step: StepDone, why: Sampled) -> Iterator[TraceSpan]:
    """Yield the spans of one rank's step: itself, then its phases."""
    process = step.process
    trace = identity.step_trace(cluster, process.run, process.attempt, step.number, step.repeat)
    own = identity.rank_step_span(trace, process.rank)
    values: dict[Attribute, Value] = {
        Attribute.STEP: step.number,
        Attribute.SAMPLED: why.value,
        **of_scalars(step.scalars),
    }
    yield TraceSpan(
        trace,
        own,
        0,
        SpanName.STEP,
        process.wall(step.start),
        process.wall(step.end),
        of_rank(process, values),
        (SpanLink(*attempt_span(cluster, process.run, process.attempt), LinkTo.ATTEMPT),),
        "" if step.failed else None,
        parental=True,
    )
    for number, (start, end, name) in enumerate(_parts(step)):
        named: dict[Attribute, Value] = {
            Attribute.RANK: process.rank,
            Attribute.STEP: step.number,
            Attribute.PHASE: name,
        }
        yield TraceSpan(
            trace,
            identity.span(trace, "phase", process.rank, name, number),
            own,
            name,
            process.wall(start),
            process.wall(end),
            fit(named, ALIASES),
        )


def _parts(step: StepDone) -> list[tuple[float, float, str]]:
    """Return phases, and the time blocked in collectives, in the order of their starts."""
    phases, collectives = list(step.phases), list(step.collectives)
    blocked = blocked_times(step.start, step.end, phases, collectives) if collectives else []
    parts = [*phases, *((start, end, COMMUNICATION) for start, end, _ in blocked)]
    if len(parts) > MAX_PHASE_SPANS:
        parts = sorted(parts, key=lambda part: part[0] - part[1])[:MAX_PHASE_SPANS]
    return sorted(parts)


_MAX_COORDINATES = 8


def fit(values: Mapping[Attribute, Value], aliases: Mapping[Attribute, str]) -> dict[str, Value]:
    """Return attributes with aliases: texts bounded, empty ones left out, numbers not finite as text."""
    found: dict[str, Value] = {}
    for name, value in values.items():
        if isinstance(value, str):
            value = fit_label_value(value)
            if not value:
                continue
        elif isinstance(value, float) and not math.isfinite(value):
            value = str(value)  # a loss that is no number is what one looks for
        found[name.value] = value
        if name in aliases:
            found[aliases[name]] = value
    return found


def of_run(process: Process, values: Mapping[Attribute, Value]) -> dict[str, Value]:
    """Return the attributes of the span of a run."""
    named: dict[Attribute, Value] = {Attribute.RUN_CLASS: process.header.run_class}
    return fit({**_of_any(process), **named, **values}, RUN_ALIASES)


def of_attempt(process: Process, values: Mapping[Attribute, Value]) -> dict[str, Value]:
    """Return the attributes of the span of an attempt."""
    named: dict[Attribute, Value] = {Attribute.ATTEMPT: process.attempt}
    return fit({**_of_any(process), **named, **values}, ATTEMPT_ALIASES)


def _of_any(process: Process) -> dict[Attribute, Value]:
    identity = process.header.identity
    return {
        Attribute.RUN: process.run,
        Attribute.RUN_NAME: identity.short_name,
        Attribute.WORLD_SIZE: identity.world_size,
    }


def of_rank(process: Process, values: Mapping[Attribute, Value]) -> dict[str, Value]:
    """Return the attributes of a span of one rank."""
    identity = process.header.identity
    named: dict[Attribute, Value] = {
        Attribute.RUN: process.run,
        Attribute.ATTEMPT: process.attempt,
        Attribute.RANK: process.rank,
        Attribute.LOCAL_RANK: identity.local_rank,
        Attribute.WORLD_SIZE: identity.world_size,
        Attribute.NODE: identity.host,
    }
    found = fit({**named, **values}, ALIASES)
    for name, (index, size) in islice(identity.coordinates.items(), _MAX_COORDINATES):
        if alias := COORDINATE_ALIASES.get(name):
            found[f"{alias}.rank"], found[f"{alias}.size"] = index, size
    return found


def of_scalars(scalars: Mapping[str, float]) -> dict[Attribute, Value]:
    """Return the attributes of a step for the scalars that others name too."""
    return {SCALARS[name]: value for name, value in scalars.items() if name in SCALARS}


MAX_LINKS = 128
"""Links to steps in one heartbeat."""
MAX_EVENTS = 32
"""Events in one heartbeat: the first ones of its time."""
MAX_AT_ONCE = 144
"""Heartbeats sent in one pass, a day of them by default: a clock may claim that a run began in 1970."""


@dataclass
class Contents:
    """What happened in the time of one heartbeat."""

    steps: int = 0
    links: dict[int, SpanLink] = field(default_factory=dict)
    """By trace."""
    events: list[SpanEvent] = field(default_factory=list)


class Heartbeat(NamedTuple):
    """A heartbeat that is due. Moments are nanoseconds of Unix time."""

    number: int
    start: int
    end: int
    last_step: int
    contents: Contents


class Heartbeats:
    """The heartbeats of an attempt that are still to come. Moments are nanoseconds of Unix time."""

    def __init__(self, started: int, length: int) -> None:
        self._started, self._length = started, length
        self._next = started // length
        self._last_step = -1
        self._open: dict[int, Contents] = {}
        """The next heartbeat and the one after it: what is read late must not come into the wrong one."""

    def step(self, number: int, end: int) -> None:
        """Count a step that ended."""
        self._at(end).steps += 1
        self._last_step = number

    def link(self, link: SpanLink, end: int) -> bool:
        """Link a step that ended then to its trace; False if another rank has done so. One link suffices."""
        links = self._at(end).links
        if link.trace in links:
            return False
        if len(links) < MAX_LINKS:
            links[link.trace] = link
        return True

    def event(self, event: SpanEvent) -> None:
        """Note that something went wrong that whoever looks at the run should see."""
        events = self._at(event.moment).events
        if len(events) < MAX_EVENTS:
            events.append(event)

    def due(self, until: int) -> Iterator[Heartbeat]:
        """Remove those that are over at this moment. Of too many the last are left."""
        over = until // self._length
        self._next = max(self._next, over - MAX_AT_ONCE)
        while self._next < over:
            yield self._take((self._next + 1) * self._length)

    def last(self, end: int) -> Iterator[Heartbeat]:
        """Remove all, with the one that the end of the attempt cuts off."""
        yield from self.due(end - 1)
        yield self._take(end)

    def _take(self, end: int) -> Heartbeat:
        number, self._next = self._next, self._next + 1
        start = max(self._started, number * self._length)
        contents = self._open.pop(number, None) or Contents()
        for earlier in [each for each in self._open if each < number]:
            del self._open[earlier]
        return Heartbeat(number, start, max(start, end), self._last_step, contents)

    def _at(self, moment: int) -> Contents:
        number = min(max(moment // self._length, self._next), self._next + 1)
        return self._open.setdefault(number, Contents())
