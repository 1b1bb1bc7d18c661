"""What the heartbeats of one attempt hold. Each covers a stretch of Unix time, the same on all nodes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from rankwatch_agent.runtime.spans import SpanEvent, SpanLink

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
        """A step ended."""
        self._at(end).steps += 1
        self._last_step = number

    def link(self, link: SpanLink, end: int) -> bool:
        """A step that ended then became a trace; False if another rank has said so. One link suffices."""
        links = self._at(end).links
        if link.trace in links:
            return False
        if len(links) < MAX_LINKS:
            links[link.trace] = link
        return True

    def event(self, event: SpanEvent) -> None:
        """Something went wrong that whoever looks at the run should see."""
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
