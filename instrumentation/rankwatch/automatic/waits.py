"""Waits for batches. Only what follows shows whether a batch was for training, so they are kept."""

from __future__ import annotations

import weakref
from collections import deque
from typing import Any, NamedTuple

_MOST = 64
"""Waits that are kept; beyond, the oldest are dropped. Loops fetch all batches of a step ahead at most."""


class Wait(NamedTuple):
    """One wait for a batch, on the monotonic clock."""

    began: float
    ended: float
    iterator: weakref.ref[Any] | None
    amounts: dict[str, float]
    """Work of the batch, by unit."""
    exhausted: bool
    """There was no further batch."""

    @property
    def abandoned(self) -> bool:
        """The loop has dropped the iterator, so the batch was only looked at."""
        return self.iterator is not None and self.iterator() is None


class Waits:
    """The waits since training went on last."""

    def __init__(self) -> None:
        self._waits: deque[Wait] = deque(maxlen=_MOST)

    def __bool__(self) -> bool:
        return bool(self._waits)

    @property
    def first_began(self) -> float:
        """When the first wait began that counts; 0 without one."""
        return next((each.began for each in self._waits if not each.abandoned), 0.0)

    @property
    def last_began(self) -> float:
        """When the last wait began; 0 without one."""
        return self._waits[-1].began if self._waits else 0.0

    def add(self, began: float, ended: float, iterator: object, amounts: dict[str, float]) -> None:
        """A batch has come."""
        self._drop_exhausted()
        self._waits.append(Wait(began, ended, _reference(iterator), amounts, False))

    def exhausted(self, began: float, ended: float, iterator: object) -> None:
        """There was no further batch. If training follows at once, the loop fetches a batch ahead; if nothing
        was trained with the batches before, the loop has only read them."""
        reference = _reference(iterator)
        before = len(self._waits)
        self.drop(reference)
        if len(self._waits) == before:
            self._waits.append(Wait(began, ended, reference, {}, True))

    def last_iterator(self) -> weakref.ref[Any] | None:
        """The iterator of the last wait."""
        return self._waits[-1].iterator if self._waits else None

    def drop(self, iterator: weakref.ref[Any] | None) -> None:
        """Forget the waits for batches of this iterator: they were not for training."""
        if any(each.iterator is iterator for each in self._waits):
            self._waits = deque([each for each in self._waits if each.iterator is not iterator], maxlen=_MOST)

    def take(self) -> list[Wait]:
        """The waits for training that goes on now. They are forgotten here."""
        taken = [each for each in self._waits if not each.abandoned]
        self._waits.clear()
        return taken

    def clear(self) -> None:
        """Forget all."""
        self._waits.clear()

    def _drop_exhausted(self) -> None:
        if self._waits and self._waits[-1].exhausted:
            self._waits.pop()


def _reference(iterator: object) -> weakref.ref[Any] | None:
    try:
        return weakref.ref(iterator)
    except TypeError:  # a generator of a framework, or none
        return None
