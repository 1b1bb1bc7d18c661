"""The timed phase: the hottest code of rankwatch, run several times in every training step.

Each phase is a context manager made of two closures over one black box. Closures, because their
variables are cells (about 2 ns) where attributes of `self` cost 20; static methods, because `with`
then binds nothing. `make bench` holds the cost against prometheus_client and OpenTelemetry.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Protocol, cast

from rankwatch.blackbox import layout
from rankwatch.blackbox.layout import Now, RecordKind
from rankwatch.blackbox.writer import Writer


class Span(AbstractContextManager[None], Protocol):
    """A phase that can be entered again and again, though not inside itself."""

    __slots__ = ()


class NullSpan(AbstractContextManager[None]):
    """Does nothing, for a phase that is not recorded."""

    __slots__ = ()

    def __enter__(self) -> None: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def phase_span(writer: Writer, number: int) -> tuple[Span, Callable[[], None]]:
    """A context manager that records phase `number`, and a call that makes it follow the writer
    to where it writes after `Writer.detach`."""
    clock = time.monotonic
    pack = layout.HEAD.pack_into
    tag = layout.tag(RecordKind.PHASE, number)
    word = Now.PHASE_BEGAN + number
    next_slot = writer.next_slot
    target = writer.target
    now = writer.floats
    began = 0.0

    def enter() -> None:
        nonlocal began
        now[word] = began = clock()

    def leave(
        kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        sequence, at = next_slot()
        pack(target, at, tag, began, clock(), sequence)

    def follow_writer() -> None:
        nonlocal target, now
        target = writer.target
        now = writer.floats

    methods = {"__slots__": (), "__enter__": staticmethod(enter), "__exit__": staticmethod(leave)}
    return cast(Span, type("PhaseSpan", (), methods)()), follow_writer
