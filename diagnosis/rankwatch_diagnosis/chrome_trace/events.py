"""A run in the Trace Event Format: the JSON that Perfetto and chrome://tracing open.

A process of the trace is a rank, its threads are tracks: steps, phases, collectives, checkpoints. A process
above all others has a slice for each step, named after the rank that the step waits for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from rankwatch.untrusted.text import printable
from rankwatch_diagnosis.chrome_trace.critical import Critical, critical_ranks
from rankwatch_diagnosis.chrome_trace.slices import MOST_LANES, TRACKS, RankSlices, in_lanes, rank_slices
from rankwatch_diagnosis.run.boxes import Box, Boxes, read_boxes
from rankwatch_diagnosis.run.folder import find_run, read_copied_ranks
from rankwatch_diagnosis.run.operation_table import operation_table
from rankwatch_diagnosis.run.step_rows import rows_by_rank

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
        """Raises UserError without a usable box."""
        folder = find_run(directory)
        copied = None if folder.bundle is None else read_copied_ranks(folder.bundle)
        self.boxes: Boxes = read_boxes(folder.boxes, copied=copied)
        self._slices = {rank: rank_slices(box) for rank, box in self.boxes.by_rank.items()}

    @property
    def steps(self) -> StepWindow | None:
        """Of the steps that have ended; None where none has."""
        numbers = [number for each in self._slices.values() for number in each.steps]
        return StepWindow(min(numbers), max(numbers)) if numbers else None

    def trace(self, steps: range | None, *, most_events: int = MOST_EVENTS) -> ChromeTrace:
        """The trace of these steps and of what lies between them; None takes everything."""
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
        """Each step from its begin on its critical rank to the begin of the next one, or to its own end."""
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
        """With nanoseconds behind the point."""
        return round(max(0.0, moment + self._offset) * _SECONDS_TO_MICROSECONDS, 3)


def _window(found: RankSlices, steps: range | None) -> tuple[float, float]:
    """From the begin of the first of the steps to the end of the last one; an empty window without them."""
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
    """Slices that only touch the window are those of its neighbours."""
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
