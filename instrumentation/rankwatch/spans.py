"""Timed phases, and the wait for a batch, which is one.

This is the hottest code of rankwatch: it runs several times in every training step.

A phase is a context manager made of two closures over one black box. A variable of a closure costs about
2 ns, an attribute of `self` 20 ns. The closures are static methods, so that `with` binds no method, which
costs 70 ns. `make bench` compares the cost with prometheus_client and OpenTelemetry.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, cast

from rankwatch.blackbox import layout
from rankwatch.blackbox.layout import Now, RecordKind
from rankwatch.blackbox.writer import Writer
from rankwatch.errors import shown
from rankwatch.failures import Failures

if TYPE_CHECKING:
    from rankwatch.steps import Steps

T = TypeVar("T")


class Span(AbstractContextManager[None], Protocol):
    """A phase that can be entered many times, but not inside itself."""

    __slots__ = ()


class _TypeOfClosures(type):
    """The type of a phase of two closures. `with` finds these themselves, which take no `self`. `ExitStack`
    asks the type for the methods and passes the phase: the type answers with methods that take it."""

    @property
    def __enter__(cls) -> Callable[[object], None]:
        enter = vars(cls)["__enter__"].__func__
        return lambda _: enter()

    @property
    def __exit__(cls) -> Callable[..., None]:
        leave = vars(cls)["__exit__"].__func__
        return lambda _, *error: leave(*error)


def span_of(name: str, enter: Callable[[], None], leave: Callable[..., None]) -> Span:
    """Return a phase of two closures."""
    methods = {"__slots__": (), "__enter__": staticmethod(enter), "__exit__": staticmethod(leave)}
    return cast(Span, _TypeOfClosures(name, (), methods)())


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
    began = math.inf  # readers leave out a phase that was never entered

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

    return span_of("PhaseSpan", enter, leave), follow_writer


class Phases(dict[str, Any]):
    """Name of a phase -> its span. An undeclared name is reported, and its time counts as `other`."""

    def __init__(self, failures: Failures) -> None:
        self._failures: Failures | None = failures

    def release(self) -> None:
        """Record no phase any more and let go of the box, because torch's compiler keeps `run.phase`."""
        self.update(dict.fromkeys(self, NullSpan()))
        self._failures = None

    def __missing__(self, name: str) -> Any:
        if self._failures is None:
            return NullSpan()
        known = ", ".join(self)
        self._failures.misuse(
            f"phase {shown(name)} is not one of {known}; declare it with start(phases=({shown(name)},))"
        )
        return NullSpan()


class BatchWait(AbstractContextManager[None]):
    """Phase `data_wait`. Outside a step it belongs to the following step."""

    __slots__ = ("_began", "_clock", "_enter", "_exit", "_steps")

    def __init__(self, phase: Span, steps: Steps, clock: Callable[[], float] = time.monotonic) -> None:
        self._enter, self._exit = phase.__enter__, phase.__exit__
        self._steps = steps
        self._clock = clock
        self._began = 0.0

    def __enter__(self) -> None:
        self._began = self._clock()
        self._enter()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._exit(kind, error, trace)
        if kind is None and not self._steps.open:
            self._steps.waiting_since(self._began)


class Batches(Generic[T]):
    """Iterates over a loader and times the wait for each batch."""

    def __init__(self, loader: Iterable[T], wait: AbstractContextManager[None]) -> None:
        self.loader = loader
        """The loader itself, for `set_epoch` and the like."""
        self._wait = wait

    def __len__(self) -> int:
        return len(self.loader)  # type: ignore[arg-type]

    def __bool__(self) -> bool:
        return bool(self.loader)  # which may have no length

    def __iter__(self) -> Iterator[T]:
        return _TimedIterator(iter(self.loader), self._wait)


class _TimedIterator(Iterator[T]):
    """Iterator that times each `next`.

    A generator would not do: it keeps each batch alive until the next one, and an exception of the loader
    ends it for good, although the loader itself may continue.
    """

    __slots__ = ("_iterator", "_wait")

    def __init__(self, iterator: Iterator[T], wait: AbstractContextManager[None]) -> None:
        self._iterator = iterator
        self._wait = wait

    def __next__(self) -> T:
        with self._wait:
            return next(self._iterator)
