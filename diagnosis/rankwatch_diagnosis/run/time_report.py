"""Where the time of a run goes, as lines for a person: the phases of a step, and single long steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rankwatch_diagnosis.run.verdict import RunVerdict
from rankwatch_diagnosis.run.why import listed
from rankwatch_diagnosis.straggler.verdict import Verdict

_EVENTS_SHOWN = 5
_PHASES_SHOWN = 12
_INDENT = "  "


def time_lines(verdict: RunVerdict) -> Iterator[str]:
    """The phase table, and the events that the trends leave out."""
    yield from _phases(verdict.phases)
    if verdict.straggler is not None:
        yield from event_lines(verdict.straggler)


def _phases(table: Mapping[str, Any]) -> Iterator[str]:
    if not table:
        return
    alone = table["ranks"] == 1
    of = "" if alone else " in the median rank"
    yield f"phases:      {_milliseconds(table['step_seconds'])} ms a step{of}, over {table['steps']} steps"
    rows: Sequence[Mapping[str, Any]] = table["of_step"]
    shown = rows if len(rows) <= _PHASES_SHOWN else rows[: _PHASES_SHOWN - 1]
    width = max(len(str(each["phase"])) for each in (*shown, *table["apart"]))
    for each in shown:
        line = f"{each['phase']:<{width}} {_milliseconds(each['seconds']):>9} ms {each['share']:>6.1%}"
        yield f"{_INDENT}{line}{'' if alone else _worst(each)}"
    if len(rows) > len(shown):
        yield f"{_INDENT}and {len(rows) - len(shown)} more; --json shows them"
    for each in table["apart"]:
        times = f"{each['count']} time{'' if each['count'] == 1 else 's'}"
        line = f"{each['phase']:<{width}} {_milliseconds(each['seconds']):>9} ms, {times}"
        longest = f", the longest {_milliseconds(each['worst_seconds'])} ms"
        yield f"{_INDENT}{line}{longest if alone else _worst(each)}"


def _worst(each: Mapping[str, Any]) -> str:
    return f", the worst {_milliseconds(each['worst_seconds'])} ms on rank {each['worst_rank']}"


def _milliseconds(seconds: float) -> str:
    milliseconds = 1e3 * seconds
    return f"{milliseconds:,.1f}" if milliseconds < 1e4 else f"{milliseconds:,.0f}"


def event_lines(found: Verdict) -> Iterator[str]:
    """The single steps that lost time; nothing where there are none."""
    events = found.events
    if not events:
        return
    steps = f"{len(events)} single step{'' if len(events) == 1 else 's'}"
    yield f"lost time:   {found.event_seconds:,.1f} s in {steps}, which the slowdown leaves out"
    for each in events[:_EVENTS_SHOWN]:
        lost = f"{each['lost_seconds']:,.1f} s in {each['operation']}"
        yield f"{_INDENT}step {each['step']}: {lost}{_late(each)}"
    if len(events) > _EVENTS_SHOWN:
        yield f"{_INDENT}and {len(events) - _EVENTS_SHOWN} more; --json shows them"


def _late(event: Mapping[str, object]) -> str:
    ranks = event["ranks"]
    if isinstance(ranks, list) and ranks:
        return f" on {listed(tuple(ranks))}"
    return ", and no rank seen here came late"
