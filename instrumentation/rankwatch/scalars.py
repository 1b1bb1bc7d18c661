"""Scalars of the training loop: loss, gradient norm, learning rate, anything.

A value on a GPU is never waited for: it is copied to pinned memory asynchronously and collected
after a later step, when its event says that the copy is done.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from typing import Any, NamedTuple

from rankwatch.blackbox import layout
from rankwatch.blackbox.layout import Now, RecordKind
from rankwatch.blackbox.writer import Writer
from rankwatch.conventions import LOSS

_MAX_PENDING = 1024


class _Pending(NamedTuple):
    name: str
    step: int
    moment: float
    copy: Any  # a one-element tensor in pinned memory
    copied: Any  # torch.cuda.Event


class Scalars:
    """Records scalars; holds those that a GPU has not delivered yet, at most 1,024 of them."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._pending: deque[_Pending] = deque(maxlen=_MAX_PENDING)

    def record(self, name: str, value: object, step: int) -> None:
        """Record a number, or a tensor with one element on any device."""
        moment = time.monotonic()
        if isinstance(value, float | int):
            self._write(name, float(value), step, moment)
        elif getattr(value, "is_cuda", False):
            self._pending.append(_copy_later(name, value, step, moment))
        else:
            detach = getattr(value, "detach", None)  # a tensor that still carries its graph
            self._write(name, float(detach() if detach else value), step, moment)  # type: ignore[arg-type]

    def resolve(self) -> None:
        """Record what the GPU has delivered meanwhile; never waits."""
        pending = self._pending
        while pending and pending[0].copied.query():
            name, step, moment, copy, _ = pending.popleft()
            self._write(name, float(copy), step, moment)  # in host memory by now: no synchronisation

    def _write(self, name: str, value: float, step: int, moment: float) -> None:
        number = self._writer.name_number(name)
        self._writer.append(RecordKind.SCALAR, number, moment, moment, layout.SCALAR, value, step)
        if name == LOSS:
            self._writer.floats[Now.LOSS] = value


def _copy_later(name: str, tensor: Any, step: int, moment: float) -> _Pending:
    torch: Any = sys.modules["torch"]

    if hasattr(tensor, "to_local"):  # a DTensor: this rank's own part, never a collective
        tensor = tensor.to_local()
    source = tensor.detach().reshape(1)
    target = torch.empty(1, dtype=source.dtype, pin_memory=True)
    target.copy_(source, non_blocking=True)
    copied = torch.cuda.Event()
    copied.record()
    return _Pending(name, step, moment, target, copied)
