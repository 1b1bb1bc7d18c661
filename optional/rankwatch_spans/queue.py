"""A span as plain values, and the bounded queue from those that make spans to the thread that sends them."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Mapping
from typing import NamedTuple

Value = str | int | float | bool


class SpanLink(NamedTuple):
    """Leads to a span of another trace."""

    trace: int
    span: int
    to: str
    """Name of what it leads to."""


class SpanEvent(NamedTuple):
    """Something that happened within a span. The moment is in nanoseconds of Unix time."""

    name: str
    moment: int
    attributes: Mapping[str, Value]


class TraceSpan(NamedTuple):
    """One span. Moments are nanoseconds of Unix time."""

    trace: int
    span: int
    parent: int
    """0 for the root of a trace."""
    name: str
    start: int
    end: int
    attributes: Mapping[str, Value]
    links: tuple[SpanLink, ...] = ()
    error: str | None = None
    """Failure; empty if it failed without a word, None if it did not fail."""
    parental: bool = False
    """Other spans have it as parent: of too many spans it goes last."""
    events: tuple[SpanEvent, ...] = ()


class SpanQueue:
    """Spans that wait to be sent. Adding never waits, and drops what has no place. Thread-safe."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.dropped = 0
        self.sent = 0
        self._lock = threading.Lock()
        self._spans: deque[TraceSpan] = deque()
        self._filled = threading.Event()

    def __len__(self) -> int:
        return len(self._spans)

    def add(self, spans: Iterable[TraceSpan]) -> None:
        """Add spans at the end."""
        with self._lock:
            self._spans.extend(spans)
            self._shrink()
        self._filled.set()

    def give_back(self, spans: Iterable[TraceSpan]) -> None:
        """Put spans that could not be sent to the front again."""
        with self._lock:
            self._spans.extendleft(reversed(tuple(spans)))
            self._shrink()
        self._filled.set()

    def take(self, most: int) -> list[TraceSpan]:
        with self._lock:
            taken = [self._spans.popleft() for _ in range(min(most, len(self._spans)))]
            if not self._spans:
                self._filled.clear()
            return taken

    def count(self, *, sent: int = 0, dropped: int = 0) -> None:
        """Count spans that were taken: those that went out, and those that are lost."""
        with self._lock:
            self.sent += sent
            self.dropped += dropped

    def wait(self, seconds: float) -> bool:
        """Wait for a span; False if there is none after this time."""
        return self._filled.wait(seconds)

    def _shrink(self) -> None:
        """Drop the oldest, those that are no parents first."""
        excess = len(self._spans) - self.most
        if excess <= 0:
            return
        kept: deque[TraceSpan] = deque()
        for span in self._spans:
            if excess and not span.parental:
                excess -= 1
                self.dropped += 1
            else:
                kept.append(span)
        while len(kept) > self.most:
            kept.popleft()
            self.dropped += 1
        self._spans = kept
