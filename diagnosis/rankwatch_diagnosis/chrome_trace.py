"""A run in the Trace Event Format: the JSON that Perfetto and chrome://tracing open.

A process of the trace is a rank, its threads are tracks: steps, phases, collectives, checkpoints. A process
above all others has a slice for each step, named after the rank that the step waits for.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rankwatch.blackbox import layout
from rankwatch.blackbox.layout import RecordKind
from rankwatch.blackbox.records import RawRecord
from rankwatch.conventions.vocabulary import LOSS
from rankwatch.untrusted.text import printable
from rankwatch_diagnosis.operations.table import Kind, OperationTable
from rankwatch_diagnosis.run.boxes import Box, Boxes, read_run
from rankwatch_diagnosis.run.operation_table import operation_table
from rankwatch_diagnosis.run.step_rows import rows_by_rank
from rankwatch_diagnosis.straggler.case import Case
from rankwatch_diagnosis.straggler.graph.critical_path import critical_path, timeline
from rankwatch_diagnosis.straggler.graph.stages import with_stages
from rankwatch_diagnosis.straggler.thresholds import DEFAULT

STEPS, PHASES, COLLECTIVES, CHECKPOINTS = "steps", "phases", "collectives", "checkpoints"
TRACKS = (STEPS, PHASES, COLLECTIVES, CHECKPOINTS)
"""The rows of a rank, from the top. One whose slices overlap takes several."""
MOST_LANES = 16
_LONGEST_SECONDS = 1e9


class Slice(NamedTuple):
    """Something that lasts. Moments are monotonic, in seconds."""

    start: float
    end: float
    track: str
    name: str
    facts: Mapping[str, Any]


class Moment(NamedTuple):
    """Something that happens."""

    at: float
    name: str
    facts: Mapping[str, Any]


class Value(NamedTuple):
    """A value of the loss."""

    at: float
    value: float


class RankSlices(NamedTuple):
    """Everything of one rank."""

    slices: list[Slice]
    moments: list[Moment]
    losses: list[Value]
    steps: dict[int, tuple[float, float]]
    """Step -> its first begin and its last end: a step that was repeated has one entry."""


def rank_slices(box: Box) -> RankSlices:
    """Return all that the box holds, in no order. What is still open ends when the box was read."""
    groups = {each.number: f"{each.name} {each.members}".strip() for each in box.now.groups}
    found = RankSlices([], [], [], {})
    for record in box.records:
        if 0.0 <= record.end - record.start < _LONGEST_SECONDS:
            _add(found, record, box.names, groups)
    found.slices.extend(_open(box))
    return found


def _add(found: RankSlices, record: RawRecord, names: Mapping[int, str], groups: Mapping[int, str]) -> None:
    start, end, name = record.start, record.end, names.get(record.name, "") or "unnamed"
    match record.kind:
        case RecordKind.PHASE:
            found.slices.append(Slice(start, end, PHASES, name, {}))
        case RecordKind.STEP:
            number, flags = layout.STEP.unpack_from(record.payload)
            first, last = found.steps.get(number, (start, end))
            found.steps[number] = (min(first, start), max(last, end))
            facts = {"step": number} | ({"failed": True} if flags & layout.STEP_FAILED else {})
            found.slices.append(Slice(start, end, STEPS, f"step {number}", facts))
        case RecordKind.COLLECTIVE:
            found.slices.append(_collective(record, name, groups))
        case RecordKind.CHECKPOINT:
            found.slices.append(_checkpoint(record, name, names))
        case RecordKind.LIFECYCLE:
            step, detail = layout.LIFECYCLE.unpack_from(record.payload)
            cause = {"cause": names[detail]} if names.get(detail) else {}
            found.moments.append(Moment(end, name, {"step": step} | cause))
        case RecordKind.SCALAR if name == LOSS:
            value, _ = layout.SCALAR.unpack_from(record.payload)
            if math.isfinite(value):
                found.losses.append(Value(end, value))


def _collective(record: RawRecord, name: str, groups: Mapping[int, str]) -> Slice:
    size, number, group, flags, waited = layout.COLLECTIVE.unpack_from(record.payload)
    facts: dict[str, Any] = {"group": groups.get(group, ""), "number": number, "bytes": size}
    facts |= {"failed": True} if flags & layout.FAILED else {}
    facts |= {"end": "not seen"} if flags & layout.UNTIMED else {}
    if record.start <= waited <= record.end:
        facts["waited_for_seconds"] = round(record.end - waited, 9)
    return Slice(record.start, record.end, COLLECTIVES, name, facts)


def _checkpoint(record: RawRecord, name: str, names: Mapping[int, str]) -> Slice:
    size, step, stage, failed, blocked = layout.CHECKPOINT.unpack_from(record.payload)
    facts = {"step": step, "bytes": size} | ({"failed": True} if failed else {})
    if 0.0 <= blocked < _LONGEST_SECONDS:
        facts["blocked_training_seconds"] = round(blocked, 9)
    return Slice(record.start, record.end, CHECKPOINTS, f"{name} {names.get(stage, '')}".strip(), facts)


def _open(box: Box) -> Iterator[Slice]:
    """Yield the step and the phase that had not ended when the box was read, or when its process did."""
    end = box.last_sign if box.ended else box.seen_wall - box.wall(0.0)
    if box.open_phase is not None and box.open_phase[1] <= end:
        yield Slice(box.open_phase[1], end, PHASES, box.open_phase[0], {"open": True})
    if 0.0 < box.now.step_began <= end:
        facts = {"step": box.now.step, "open": True}
        yield Slice(box.now.step_began, end, STEPS, f"step {box.now.step}", facts)


def in_lanes(slices: Iterable[Slice]) -> Iterator[tuple[int, Slice]]:
    """Yield each slice with its lane, by start.

    In one lane slices follow or contain each other, as viewers want. Slices come from several threads, and
    asynchronous collectives overlap. One that would need more than MOST_LANES is left out.
    """
    lanes: list[list[float]] = [[] for _ in range(MOST_LANES)]
    """By lane: ends of the slices that are open, the innermost last."""
    for each in sorted(slices, key=lambda each: (each.start, -each.end)):
        for lane, ends in enumerate(lanes):
            while ends and ends[-1] <= each.start:
                ends.pop()
            if not ends or ends[-1] >= each.end:
                ends.append(each.end)
                yield lane, each
                break


class Critical(NamedTuple):
    """What holds most of a step's critical path."""

    rank: int
    operation: str
    """Of the rank's own work on the path, the one that takes longest."""
    share: float
    """Part of the path that is this rank's own work."""


def critical_ranks(table: OperationTable) -> dict[int, Critical]:
    """Find each step's critical rank. A single rank waits for nobody, nor does a step without work."""
    if len(np.unique(table.rank)) < 2:
        return {}
    case = Case(with_stages(table), DEFAULT)
    times = timeline(case.replay, case.seconds)
    order = np.argsort(case.step, kind="stable")
    rows_of_steps = np.split(order, np.flatnonzero(np.diff(case.step[order])) + 1)
    found: dict[int, Critical] = {}
    for rows in rows_of_steps:
        own: dict[int, dict[str, float]] = defaultdict(lambda: defaultdict(float))
        whole = 0.0
        for each in critical_path(case.replay, times, np.sort(rows)):
            whole += each.ends - each.since
            if case.table.kind[each.row] != Kind.COMMUNICATION:
                operation = case.table.operations[int(case.table.operation[each.row])]
                own[int(case.table.rank[each.row])][operation] += each.ends - each.begins
        if own and whole > 0.0:
            rank = max(own, key=lambda each: sum(own[each].values()))
            operation = max(own[rank], key=own[rank].__getitem__)
            share = min(1.0, sum(own[rank].values()) / whole)
            found[int(case.table.step[rows[0]])] = Critical(rank, operation, share)
    return found


MOST_EVENTS = 1_000_000
"""Some 200 MB, which viewers in a browser still open. The newest are kept."""
_LONGEST_NAME = 120
_SECONDS_TO_MICROSECONDS = 1e6

Event = dict[str, Any]


class ChromeTrace(NamedTuple):
    """The events of a run, those of metadata first, the others by time."""

    events: list[Event]
    ranks: int
    first_step: int
    last_step: int
    left_out: int
    """Events, the oldest, beyond MOST_EVENTS."""


class StepWindow(NamedTuple):
    """Steps that the run holds, of all its ranks."""

    oldest: int
    newest: int


class Run:
    """The boxes of a run, read once."""

    def __init__(self, directory: Path) -> None:
        """Read the newest boxes in a directory; raises UserError without a usable one."""
        self.boxes: Boxes = read_run(directory)[-1]
        self._slices = {rank: rank_slices(box) for rank, box in self.boxes.by_rank.items()}

    @property
    def steps(self) -> StepWindow | None:
        """Of the steps that have ended; None where none has."""
        numbers = [number for each in self._slices.values() for number in each.steps]
        return StepWindow(min(numbers), max(numbers)) if numbers else None

    def trace(self, steps: range | None, *, most_events: int = MOST_EVENTS) -> ChromeTrace:
        """Return the trace of these steps and of what lies between them; None takes everything."""
        start = min(each.header.started_wall for each in self.boxes.by_rank.values())
        critical = self._critical(steps)
        metadata: list[Event] = []
        timed: list[Event] = []
        for rank, box in self.boxes.by_rank.items():
            clock = _Clock(box, start)
            window = _window(self._slices[rank], steps)
            made = list(_rank_events(rank, self._slices[rank], clock, window, critical))
            timed.extend(made)
            metadata.extend(_rank_names(rank, box, {each["tid"] for each in made if "tid" in each}))
        timed.extend(self._critical_events(critical, start))
        timed.sort(key=lambda each: (each["ts"], -each.get("dur", 0.0)))
        left_out = max(0, len(timed) - most_events)
        shown = [each["args"]["step"] for each in timed[left_out:] if each.get("cat") == "step"]
        return ChromeTrace(
            events=[*_critical_names(critical), *metadata, *timed[left_out:]],
            ranks=len(self.boxes.by_rank),
            first_step=min(shown, default=-1),
            last_step=max(shown, default=-1),
            left_out=left_out,
        )

    def _critical(self, steps: range | None) -> Mapping[int, Critical]:
        table = operation_table(self.boxes, rows_by_rank(self.boxes))
        if steps is not None:
            table = table.take((table.step >= steps.start) & (table.step < steps.stop))
        return critical_ranks(table)

    def _critical_events(self, critical: Mapping[int, Critical], start: float) -> Iterator[Event]:
        """Yield each step from its begin on its critical rank to the begin of the next, or to its own end."""
        spans = []
        for step, found in sorted(critical.items()):
            clock = _Clock(self.boxes.by_rank[found.rank], start)
            began, ended = self._slices[found.rank].steps[step]
            spans.append((clock.ts(began), clock.ts(ended), step, found))
        spans.sort(key=lambda each: each[:3])
        for number, (began, ended, step, found) in enumerate(spans):
            following = spans[number + 1][0] if number + 1 < len(spans) else ended
            facts = {"step": step, "share_of_critical_path": round(found.share, 4)}
            yield {
                "name": f"rank {found.rank}: {_name(found.operation)}",
                "cat": "critical",
                "ph": "X",
                "pid": _CRITICAL,
                "tid": 0,
                "ts": began,
                "dur": round(max(0.0, min(ended, following) - began), 3),
                "args": facts,
            }


_CRITICAL = 1 << 30
"""The process above the ranks."""


class _Clock:
    """From the monotonic clock of a rank to microseconds since the run's first start, by the wall clock."""

    def __init__(self, box: Box, start: float) -> None:
        self._offset = box.wall(0.0) - start

    def ts(self, moment: float) -> float:
        """Return a moment in microseconds since the start, with nanoseconds behind the point."""
        return round(max(0.0, moment + self._offset) * _SECONDS_TO_MICROSECONDS, 3)


def _window(found: RankSlices, steps: range | None) -> tuple[float, float]:
    """Return the window from the first of the steps to the last one: all time for None, empty without any."""
    if steps is None:
        return float("-inf"), float("inf")
    inside = [span for number, span in found.steps.items() if number in steps]
    if not inside:
        return float("inf"), float("-inf")
    return min(began for began, _ in inside), max(ended for _, ended in inside)


def _rank_events(
    rank: int, found: RankSlices, clock: _Clock, window: tuple[float, float], critical: Mapping[int, Critical]
) -> Iterator[Event]:
    first, last = window
    for track_number, track in enumerate(TRACKS):
        chosen = (each for each in found.slices if each.track == track and _overlaps(each, first, last))
        for lane, each in in_lanes(chosen):
            began, ended = clock.ts(each.start), clock.ts(each.end)
            facts = dict(each.facts)
            here = critical.get(facts.get("step", -1)) if track == TRACKS[0] else None
            marked = here is not None and here.rank == rank
            yield {
                "name": f"{_name(each.name)} (critical)" if marked else _name(each.name),
                "cat": track.removesuffix("s"),
                "ph": "X",
                "pid": rank,
                "tid": track_number * MOST_LANES + lane,
                "ts": began,
                "dur": round(ended - began, 3),
                "args": facts | ({"critical": True} if marked else {}),
            }
    for moment in found.moments:
        if first <= moment.at <= last:
            yield _event("i", rank, clock.ts(moment.at), moment.name, moment.facts) | {"s": "p", "tid": 0}
    for value in found.losses:
        if first <= value.at <= last:
            yield _event("C", rank, clock.ts(value.at), "loss", {"loss": value.value})


def _overlaps(each: Any, first: float, last: float) -> bool:
    """Say whether a slice lies in the window; slices that only touch it are those of its neighbours."""
    return bool(first <= each.start < last or each.start < first < each.end)


def _event(kind: str, rank: int, ts: float, name: str, facts: Mapping[str, Any]) -> Event:
    return {"name": _name(name), "ph": kind, "pid": rank, "ts": ts, "args": dict(facts)}


def _rank_names(rank: int, box: Box, threads: Iterable[int]) -> Iterator[Event]:
    host = box.header.identity.host
    yield _metadata("process_name", rank, {"name": f"rank {rank}" + (f" ({_name(host)})" if host else "")})
    yield _metadata("process_sort_index", rank, {"sort_index": rank})
    for thread in sorted(threads):
        track, lane = divmod(thread, MOST_LANES)
        name = TRACKS[track] + (f" {lane + 1}" if lane else "")
        yield _metadata("thread_name", rank, {"name": name}) | {"tid": thread}
        yield _metadata("thread_sort_index", rank, {"sort_index": thread}) | {"tid": thread}


def _critical_names(critical: Mapping[int, Critical]) -> Iterator[Event]:
    if critical:
        yield _metadata("process_name", _CRITICAL, {"name": "critical rank of each step"})
        yield _metadata("process_sort_index", _CRITICAL, {"sort_index": -1})
        yield _metadata("thread_name", _CRITICAL, {"name": "waits for"}) | {"tid": 0}


def _metadata(name: str, pid: int, facts: Mapping[str, Any]) -> Event:
    return {"name": name, "ph": "M", "pid": pid, "args": dict(facts)}


def _name(text: str) -> str:
    return printable(text)[:_LONGEST_NAME]
