"""Timed phases. This is the hottest code of rankwatch: it runs several times in every training step.

A phase is a context manager made of two closures over one black box. A variable of a closure costs about
2 ns, an attribute of `self` 20 ns. The closures are static methods, so that `with` binds no method.
`make bench` compares the cost with prometheus_client and OpenTelemetry.
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
    """A phase that can be entered many times, but not inside itself."""

    __slots__ = ()


class NullSpan(AbstractContextManager[None]):
    """Does nothing; stands for a phase that is not recorded."""

    __slots__ = ()

    def __enter__(self) -> None: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def phase_span(
    writer: Writer, number: int, clock: Callable[[], float] = time.monotonic
) -> tuple[Span, Callable[[], None]]:
    """Return a context manager that records phase `number`, and a function to call after `Writer.detach`.

    The function makes the context manager write where the writer writes from then on.
    """
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
