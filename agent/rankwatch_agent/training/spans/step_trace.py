"""The trace of one step: a span for each rank, and its phases below it.

The spans of the ranks stand side by side, without a span above them: no node has to send one for all others,
so no parent is missing where a node sends nothing. Each links to the attempt in the run's trace.
"""

from __future__ import annotations

from collections.abc import Iterator

from rankwatch import identity
from rankwatch.conventions import COMMUNICATION
from rankwatch.conventions.traces import ALIASES, Attribute, LinkTo, Sampled, SpanName
from rankwatch_agent.runtime.spans import SpanLink, TraceSpan, Value
from rankwatch_agent.training.spans.attributes import fit, of_rank, of_scalars
from rankwatch_agent.training.spans.records import StepDone
from rankwatch_agent.training.split import blocked_times

MAX_PHASE_SPANS = 64
"""Spans of phases in one step of one rank; of more, the longest are kept."""


def attempt_span(cluster: str, run: str, attempt: int) -> tuple[int, int]:
    """Trace and span of an attempt."""
    trace = identity.run_trace(cluster, run)
    return trace, identity.span(trace, SpanName.ATTEMPT.value, attempt)


def step_spans(cluster: str, step: StepDone, why: Sampled) -> Iterator[TraceSpan]:
    """The spans of one rank's step: itself, then its phases."""
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
    """Phases, and the time blocked in collectives, in the order of their starts."""
    phases, collectives = list(step.phases), list(step.collectives)
    blocked = blocked_times(step.start, step.end, phases, collectives) if collectives else []
    parts = [*phases, *((start, end, COMMUNICATION) for start, end, _ in blocked)]
    if len(parts) > MAX_PHASE_SPANS:
        parts = sorted(parts, key=lambda part: part[0] - part[1])[:MAX_PHASE_SPANS]
    return sorted(parts)
