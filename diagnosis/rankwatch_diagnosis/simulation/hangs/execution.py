"""Runs the calls of all ranks until the job is through or nothing moves any more."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from rankwatch_diagnosis.simulation.hangs.calls import Call, Calls
from rankwatch_diagnosis.simulation.hangs.groups import Group, Groups
from rankwatch_diagnosis.simulation.shape import JobShape

_LEAST_GAP_NS, _MOST_GAP_NS = 1_000_000, 5_000_000
"""Compute between two calls of a rank."""
_TRANSFER_NS = 1_000_000

_Key = tuple[str, int, int, int]
"""Group, sender, receiver and number of a message; of a collective, group, -1, -1 and number."""


@dataclass(slots=True)
class Track:
    """How far one rank came. Times are nanoseconds since the job began."""

    started_ns: list[int] = field(default_factory=list)
    """Of each call that it came to, in the order of its program."""
    completed_ns: dict[int, int] = field(default_factory=dict)
    """Of each call that came to an end, by its index."""
    clock_ns: int = 0

    @property
    def blocked(self) -> bool:
        """Whether its last call is still out. Sends may be out and hold nobody."""
        return bool(self.started_ns) and len(self.started_ns) - 1 not in self.completed_ns


@dataclass(slots=True)
class _Arrivals:
    """Who has come to a collective or to one end of a message."""

    calls: dict[int, int] = field(default_factory=dict)
    """Rank -> index of its call."""
    latest_ns: int = 0


class Execution:
    """A collective ends when all of its group have come and call the same; a receive, when it is sent.

    Operations of a rank wait for each other, in all of its groups, as compute between them makes them do.
    """

    def __init__(
        self, shape: JobShape, groups: Groups, programs: Sequence[Calls], random: np.random.Generator
    ) -> None:
        self.tracks = [Track() for _ in programs]
        self._shape, self._groups, self._programs = shape, groups, programs
        self._numbers: defaultdict[tuple[int, str, int, int], int] = defaultdict(int)
        self._arrivals: defaultdict[_Key, _Arrivals] = defaultdict(_Arrivals)
        self._random = random
        self._ready: deque[int] = deque(range(len(programs)))

    def run(self) -> None:
        """Until no rank can go on; every rank then is through, has stopped, or waits for ever."""
        while self._ready:
            self._advance(self._ready.popleft())

    def _advance(self, rank: int) -> None:
        track, program = self.tracks[rank], self._programs[rank]
        gaps = self._random.integers(_LEAST_GAP_NS, _MOST_GAP_NS, len(program.calls) - len(track.started_ns))
        for gap in gaps.tolist():
            index = len(track.started_ns)
            if index == program.stops_before:
                return
            track.clock_ns += gap
            track.started_ns.append(track.clock_ns)
            if not self._call(rank, index, program.calls[index]):
                return

    def _call(self, rank: int, index: int, call: Call) -> bool:
        """Whether the rank goes on at once."""
        group = self._groups.of(rank, call.plane)
        arrivals = self._arrivals[self._key(rank, group, call)]
        arrivals.calls[rank] = index
        arrivals.latest_ns = max(arrivals.latest_ns, self.tracks[rank].clock_ns)
        waits = call.to_stage is None
        if len(arrivals.calls) < (2 if call.tag is not None else len(group.ranks)):
            return not waits
        if not self._agree(arrivals):
            return False
        self._complete(arrivals, but=rank)
        return True

    def _key(self, rank: int, group: Group, call: Call) -> _Key:
        stage = self._shape.place(rank)[0]
        ends = (-1, -1)
        if call.to_stage is not None:
            ends = (stage, call.to_stage)
        elif call.from_stage is not None:
            ends = (call.from_stage, stage)
        counter = (rank, group.name, *ends)
        self._numbers[counter] += 1
        return (group.name, *ends, self._numbers[counter])

    def _agree(self, arrivals: _Arrivals) -> bool:
        calls = [self._programs[rank].calls[index] for rank, index in arrivals.calls.items()]
        if calls[0].tag is not None:
            return True
        return len({(call.operation, call.size, call.dtype) for call in calls}) == 1

    def _complete(self, arrivals: _Arrivals, but: int) -> None:
        end = arrivals.latest_ns + _TRANSFER_NS
        for rank, index in arrivals.calls.items():
            track = self.tracks[rank]
            track.completed_ns[index] = end
            if index == len(track.started_ns) - 1:  # it waits at this very call; a send is long past
                track.clock_ns = max(track.clock_ns, end)
                if rank != but:
                    self._ready.append(rank)
