"""One rank's steps, laid out one after another: what it computed, what it waited for, when nothing ran.

Compute on several streams or threads is one line of work. A collective counts where nothing computes: its
*exposed* part. One that ends while something computes is hidden, and nobody waited for it here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rankwatch_profiler_traces.phases import NO_STEP, Phase, Phases, Steps, steps_of, top_level
from rankwatch_profiler_traces.recording import Call, Described, Recording, operation_of_call
from rankwatch_profiler_traces.stream import Group

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
HOST = "host"
"""Operation of a rank on which nothing runs and nothing is waited for: Python, or launching kernels."""
COMPUTE = "compute"
"""Of a trace that shows no phases."""
_MICROSECOND = 1e-6
_LEAST_EXPOSED = 0.02
"""Part of a collective that must be exposed: gaps between operators are everywhere."""
_MOST_BEHIND = 0.05
"""Part of a collective that may be computed between the end of the wait and its own end."""
_MOST_PIECES_BEHIND = 64


class Work(NamedTuple):
    """A stretch of a step in which the rank does one thing; seconds."""

    operation: str
    seconds: float


class Meeting(NamedTuple):
    """A collective or message in the rank's line of work; seconds."""

    operation: str
    group: str
    number: int
    """Its place among those of its operation and group in the step."""
    size_bytes: int
    exposed: float
    hidden: bool
    """It ended while the rank computed."""
    seconds: float
    """Of the whole call."""


class StepLine(NamedTuple):
    """A step of a rank: its items follow each other without a gap."""

    step: int
    start: float
    """Seconds since the origin of the timeline."""
    items: tuple[Work | Meeting, ...]

    @property
    def seconds(self) -> float:
        """How long it takes."""
        return sum(each.exposed if isinstance(each, Meeting) else each.seconds for each in self.items)


class Timeline(NamedTuple):
    """All steps of a rank."""

    steps: tuple[StepLine, ...]
    origin_microseconds: float
    """On the clock of the trace."""
    on_device: bool
    phases_known: bool
    steps_by: str
    """Name of what showed the steps; empty for the profiler's annotation."""
    described: int
    """Collectives with a process group, of all there are."""
    sized: int
    """Collectives with a size."""
    calls: int
    several_groups: bool
    """The rank is in more than one process group of several ranks."""


class _Pieces(NamedTuple):
    """Compute that does not overlap, in order, in microseconds."""

    begin: Floats
    end: Floats
    step: Ints
    phase: NDArray[np.int8]

    def take(self, rows: Ints | slice) -> _Pieces:
        """Return some of them."""
        return _Pieces(self.begin[rows], self.end[rows], self.step[rows], self.phase[rows])


def lay_out(recording: Recording, rank: int, groups: Sequence[Group] = ()) -> Timeline | None:
    """Return the timeline of a rank; None where nothing shows its steps.

    groups: all process groups of the rank, if they are known.
    """
    phases = Phases(recording.phases)
    on_device = bool(len(recording.kernels)) or any(not each.on_host for each in recording.calls)
    calls = sorted(
        (_named(each, recording, rank) for each in recording.calls),
        key=lambda call: (call.begin, call.length),
    )
    keys = [(each.begin, each.begin + each.length, _key(each)) for each in calls]
    steps = steps_of(recording.steps, recording.device_steps, phases.optimizer_ends(), keys)
    if steps is None or not len(steps.number):
        return None
    launches = _Launches(recording)
    pieces = (
        _device_pieces(recording, launches, phases, steps)
        if on_device
        else _host_pieces(recording, phases, steps)
    )
    origin = float(steps.begin[0])
    lines = _lines(calls, launches, pieces, phases, steps, on_device=on_device)
    return Timeline(
        steps=tuple(each._replace(start=(each.start - origin) * _MICROSECOND) for each in lines),
        origin_microseconds=origin,
        on_device=on_device,
        phases_known=phases.known,
        steps_by=steps.source,
        described=sum(bool(each.described.group) for each in calls),
        sized=sum(each.described.size_bytes > 0 for each in calls),
        calls=len(calls),
        several_groups=sum(len(each.ranks) != 1 for each in groups) > 1,
    )


def _named(call: Call, recording: Recording, rank: int) -> Call:
    """Return the call with its operation as name, and what the host knew of it where its kernel does not."""
    described = call.described
    if not described.group:
        described = recording.described.get(described.external, described)
    return call._replace(name=operation_of_call(call, described, rank), described=described)


def _key(call: Call) -> tuple[str, str, int]:
    return call.name, group_of(call.described), call.described.size_bytes


def group_of(described: Described) -> str:
    """Return a name that all members of the group share, and no other group."""
    return f"{described.group} {described.group_ranks}".strip()


class _Launches:
    """When and where kernels were launched, in microseconds of the host."""

    def __init__(self, recording: Recording) -> None:
        correlation = np.asarray(recording.launches.of, dtype=np.int64)
        order = np.argsort(correlation, kind="stable")
        self._correlation = correlation[order]
        self._moment = np.asarray(recording.launches.begin, dtype=np.float64)[order]
        self._thread = np.asarray(recording.launch_thread, dtype=np.int64)[order]

    def of(self, correlation: Ints) -> tuple[Floats, Ints]:
        """Return moment and thread of each launch; NaN and -1 where it is not recorded."""
        if not len(self._correlation):
            return np.full(len(correlation), np.nan), np.full(len(correlation), -1)
        place = np.minimum(np.searchsorted(self._correlation, correlation), len(self._correlation) - 1)
        found = (self._correlation[place] == correlation) & (correlation > 0)
        return np.where(found, self._moment[place], np.nan), np.where(found, self._thread[place], -1)


def _device_pieces(recording: Recording, launches: _Launches, phases: Phases, steps: Steps) -> _Pieces:
    """Return kernels and copies of all streams, in the step and phase of their launch."""
    begin = np.asarray(recording.kernels.begin, dtype=np.float64)
    order = np.argsort(begin, kind="stable")
    begin = begin[order]
    end = begin + np.asarray(recording.kernels.length, dtype=np.float64)[order]
    moment, thread = launches.of(np.asarray(recording.kernels.of, dtype=np.int64)[order])
    moment = _filled(moment, begin)
    step = steps.of(moment if steps.by_launch else begin)
    return _disjoint(begin, end, step, phases.at(moment, thread))


def _filled(moment: Floats, begin: Floats) -> Floats:
    """Fill in the launches that are missing, by what the stream ran before; without any, by the kernel's
    time."""
    known = np.isfinite(moment)
    if not known.any():
        return begin
    last = np.maximum.accumulate(np.where(known, np.arange(len(moment)), 0))
    return np.where(np.isfinite(moment[last]), moment[last], moment[known][0])


def _host_pieces(recording: Recording, phases: Phases, steps: Steps) -> _Pieces:
    """Return operators of all threads of a rank without a device, but for those that make up a batch."""
    begin, end, thread = top_level(recording.operators)
    order = np.argsort(begin, kind="stable")
    begin, end, thread = begin[order], end[order], thread[order]
    step = np.where(_Union(*phases.loading).holds(begin), NO_STEP, steps.of(begin))
    return _disjoint(begin, end, step, phases.at(begin, thread))


def _disjoint(begin: Floats, end: Floats, step: Ints, phase: NDArray[np.int8]) -> _Pieces:
    """Count what overlaps once, for the one that began first."""
    reached = np.r_[-np.inf, np.maximum.accumulate(end)[:-1]] if len(end) else end
    begin = np.maximum(begin, reached)
    rows = (end > begin) & (step != NO_STEP)
    return _Pieces(begin[rows], end[rows], step[rows], phase[rows])


def _lines(
    calls: list[Call], launches: _Launches, pieces: _Pieces, phases: Phases, steps: Steps, *, on_device: bool
) -> Iterator[StepLine]:
    moment, _ = launches.of(np.array([each.launch for each in calls], dtype=np.int64))
    begins = np.array([each.begin for each in calls], dtype=np.float64)
    # The host annotates its own collectives where they run, be it on a thread of their own.
    moment = np.where(np.isfinite(moment) & steps.by_launch, moment, begins)
    step_of_call = steps.of(moment)
    # Kernels of several streams are almost in the order of their steps.
    order = np.argsort(pieces.step, kind="stable")
    pieces = pieces.take(order)
    bounds = np.searchsorted(pieces.step, np.arange(len(steps.number) + 1))
    loading = _Union(*phases.loading)
    reached: float | None = None
    for at in range(len(steps.number)):
        own = slice(int(bounds[at]), int(bounds[at + 1]))
        part = pieces.take(own)
        met = [calls[each] for each in np.flatnonzero(step_of_call == at).tolist()]
        if not len(part.begin) and not met:
            continue
        window = _window(part, met, steps, at, reached, on_device=on_device)
        reached = window[1]
        items = tuple(_items(part, met, window, loading, named=phases.known))
        yield StepLine(int(steps.number[at]), window[0], items)


def _window(
    pieces: _Pieces, calls: list[Call], steps: Steps, at: int, reached: float | None, *, on_device: bool
) -> tuple[float, float]:
    """Begin and end of a step where its work runs: the device follows the host, and ends later.

    `reached` is the end of the step before it; None for the first.
    """
    if not on_device:
        return float(steps.begin[at]), float(steps.end[at])
    begins = [*pieces.begin[:1].tolist(), *(each.begin for each in calls)]
    ends = [each.begin + each.length for each in calls]
    if len(pieces.end):
        ends.append(float(pieces.end.max()))
    begin = min(begins) if reached is None else reached
    return begin, max(begin, *ends)


class _Union:
    """Intervals, and how much of a stretch they cover."""

    def __init__(self, begin: Floats, end: Floats) -> None:
        order = np.argsort(begin, kind="stable")
        begin, end = begin[order], end[order]
        if len(begin):
            reached = np.r_[-np.inf, np.maximum.accumulate(end)[:-1]]
            begin = np.maximum(begin, reached)
            begin, end = begin[end > begin], end[end > begin]
        self.begin, self.end = begin, end
        self._sum = np.r_[0.0, np.cumsum(end - begin)]

    def covers(self, begin: float, end: float) -> float:
        """Return the length of what lies between the two moments."""
        return max(0.0, self._before(end) - self._before(begin)) if end > begin else 0.0

    def holds(self, moments: Floats) -> NDArray[np.bool_]:
        """Return for each moment whether it lies in one of the intervals."""
        if not len(self.begin):
            return np.zeros(len(moments), dtype=np.bool_)
        place = np.searchsorted(self.begin, moments, side="right") - 1
        found: NDArray[np.bool_] = (place >= 0) & (moments < self.end[np.maximum(place, 0)])
        return found

    def _before(self, moment: float) -> float:
        place = int(np.searchsorted(self.begin, moment, side="right"))
        if place == 0:
            return 0.0
        return float(self._sum[place] - max(0.0, self.end[place - 1] - moment))


class _Placed(NamedTuple):
    """A call with the part of it that is exposed, in microseconds."""

    begin: float
    end: float
    call: Call
    hidden: bool


def _items(
    pieces: _Pieces, calls: list[Call], window: tuple[float, float], loading: _Union, *, named: bool
) -> Iterator[Work | Meeting]:
    numbers: dict[tuple[str, str], int] = {}
    met: dict[int, int] = {}
    for at, call in enumerate(calls):  # numbered in the order of their beginning, the same on all ranks
        key = call.name, group_of(call.described)
        met[at] = numbers[key] = numbers.get(key, -1) + 1
    placed = sorted(
        ((_placed(pieces, call, window), at) for at, call in enumerate(calls)),
        key=lambda each: (each[0].end, each[1]),
    )
    reached = window[0]
    for each, at in placed:
        begin = max(each.begin, reached)
        yield from _works(pieces, reached, begin, loading, named=named)
        end = max(each.end, begin)
        yield Meeting(
            operation=each.call.name,
            group=group_of(each.call.described),
            number=met[at],
            size_bytes=each.call.described.size_bytes,
            exposed=(end - begin) * _MICROSECOND,
            hidden=each.hidden,
            seconds=each.call.length * _MICROSECOND,
        )
        reached = end
    yield from _works(pieces, reached, max(window[1], reached), loading, named=named)


def _placed(pieces: _Pieces, call: Call, window: tuple[float, float]) -> _Placed:
    """Return where a call stands between the pieces. A hidden one stands where the piece ends that hides its
    end; a hidden message that is sent, where the rank gave it away."""
    begin, end = max(call.begin, window[0]), min(call.begin + call.length, window[1])
    end = max(begin, end)
    place = int(np.searchsorted(pieces.begin, end, side="left")) - 1
    gap = _waited(pieces, begin, end, place, window[0])
    if gap is not None:
        return _Placed(*gap, call, hidden=False)
    stands = max(end, float(pieces.end[place]) if place >= 0 else end)
    if call.name == "send":
        given = int(np.searchsorted(pieces.begin, begin, side="right")) - 1
        stands = max(begin, float(pieces.end[given])) if given >= 0 else begin
    return _Placed(stands, stands, call, hidden=True)


def _waited(
    pieces: _Pieces, begin: float, end: float, place: int, window_begin: float
) -> tuple[float, float] | None:
    """Return the longest stretch without compute towards the end of a call; None without one worth the name.

    place: the last piece that begins before the end of the call. Whoever waits may go on a moment before the
    end is recorded, and small kernels run beside any wait, so that little compute behind it does not count.
    """
    longest: tuple[float, float] | None = None
    least = _LEAST_EXPOSED * (end - begin)
    after, behind = end, 0.0
    for at in range(place, max(place - _MOST_PIECES_BEHIND, -2), -1):
        gap_begin = max(begin, float(pieces.end[at]) if at >= 0 else window_begin)
        if after - gap_begin >= max(least, (longest[1] - longest[0]) if longest else 0.0):
            longest = gap_begin, after
        if at < 0 or pieces.begin[at] <= begin:
            break
        behind += min(float(pieces.end[at]), after) - float(pieces.begin[at])
        if behind > _MOST_BEHIND * (end - begin):
            break
        after = float(pieces.begin[at])
    return longest


def _works(pieces: _Pieces, begin: float, end: float, loading: _Union, *, named: bool) -> Iterator[Work]:
    """Yield what the rank does between two meetings: runs of a phase, each followed by the time in which
    nothing ran.
    """
    first, last = (int(each) for each in np.searchsorted(pieces.begin, (begin, end), side="left"))
    if first < last:
        phase = pieces.phase[first:last]
        changes = np.flatnonzero(np.diff(phase)) + 1 if named else np.empty(0, dtype=np.int64)
        starts = np.r_[0, changes] + first
        stops = np.r_[changes + first, last]
        yield from _idle(begin, float(pieces.begin[first]), 0.0, loading)
        for start, stop in zip(starts.tolist(), stops.tolist(), strict=True):
            busy = float((pieces.end[start:stop] - pieces.begin[start:stop]).sum())
            name = Phase(int(pieces.phase[start])).name.lower() if named else COMPUTE
            yield Work(name, busy * _MICROSECOND)
            until = float(pieces.begin[stop]) if stop < last else end
            yield from _idle(float(pieces.begin[start]), until, busy, loading)
        return
    yield from _idle(begin, end, 0.0, loading)


def _idle(begin: float, end: float, busy: float, loading: _Union) -> Iterator[Work]:
    """Yield the time between two moments in which nothing ran, of which the host spent some on its batch."""
    idle = max(0.0, end - begin - busy)
    if idle <= 0.0:
        return
    waited = min(idle, loading.covers(begin, end))
    if waited > 0.0:
        yield Work(Phase.DATA_LOADING.name.lower(), waited * _MICROSECOND)
    if idle > waited:
        yield Work(HOST, (idle - waited) * _MICROSECOND)
