"""The wait for a batch, and a data loader that times it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Generic, TypeVar

from rankwatch.spans import Span
from rankwatch.steps import Steps

T = TypeVar("T")


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
