"""The data loader, with the wait for each batch timed."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import Generic, TypeVar

from rankwatch.spans import Span
from rankwatch.steps import Steps

T = TypeVar("T")


class Batches(Generic[T]):
    """Iterates a loader; the wait for a batch is phase `data_wait` and belongs to the step that follows."""

    def __init__(self, loader: Iterable[T], wait: Span, steps: Steps) -> None:
        self.loader = loader
        """The loader itself, for `set_epoch` and the like."""
        self._wait = wait
        self._steps = steps

    def __len__(self) -> int:
        return len(self.loader)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[T]:
        iterator = iter(self.loader)
        steps, wait = self._steps, self._wait
        while True:
            began = time.monotonic()
            with wait:
                try:
                    batch = next(iterator)
                except StopIteration:
                    return
            if not steps.open:
                steps.waiting_since(began)
            yield batch
