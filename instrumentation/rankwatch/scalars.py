"""Scalars of the training loop (loss, gradient norm, learning rate, ...) and amounts of work.

Nothing waits for a value on a GPU. The value is copied to pinned memory asynchronously and recorded after a
later step, once a CUDA event shows that the copy is complete. Scalars that stay the same are recorded again
now and then, so that an agent that starts later knows them, too.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable
from math import inf
from typing import Any, NamedTuple

from rankwatch.blackbox import layout
from rankwatch.blackbox.layout import Now, RecordKind
from rankwatch.blackbox.writer import Writer
from rankwatch.conventions.vocabulary import LOSS
from rankwatch.errors import UsageError, shown

_MAX_PENDING = 1024
_LOSS_WORD = int(Now.LOSS)  # members of an enum are slow keys
_clock = time.monotonic
REPEAT_STEPS = 500
"""Steps after which they are recorded again: far fewer than a ring holds."""


class _Pending(NamedTuple):
    kind: RecordKind
    name: str
    step: int
    moment: float
    copy: Any  # a one-element tensor in pinned memory
    copied: Any  # torch.cuda.Event


class Scalars:
    """Records scalars. Holds at most 1,024 values that a GPU has not delivered yet; drops the oldest."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._pending: deque[_Pending] = deque(maxlen=_MAX_PENDING)
        self._scalars: tuple[dict[str, int], Any] = ({}, layout.SCALAR.pack_into)
        self._works: tuple[dict[str, int], Any] = ({}, layout.WORK.pack_into)

    def record(self, name: str, value: Any, step: int, kind: RecordKind = RecordKind.SCALAR) -> None:
        """Record a number, or a tensor with one element on the CPU or a CUDA device, as SCALAR or WORK.

        Raises ValueError for a tensor on another device, because reading it would wait for the device, and
        UsageError for work that is negative or not finite.
        """
        moment = _clock()
        if type(value) is not float and not isinstance(value, (float, int)):  # `float | int` costs an object
            if hasattr(value, "to_local"):  # a DTensor: take this rank's part, without a collective
                value = value.to_local()
            if getattr(value, "is_cuda", False):
                if (pending := _copy_later(kind, name, value, step, moment)) is not None:
                    self._pending.append(pending)
                return
            if not getattr(value, "is_cpu", True):
                raise ValueError(f"it is on device {value.device}; reading it would wait for the device")
            item = getattr(value, "item", None)  # `float` warns of a tensor that requires a gradient
            value = value if item is None else item()
        self._write(kind, name, float(value), step, moment)

    def resolve(self) -> None:
        """Record what the GPU has delivered since. Never waits."""
        pending = self._pending
        while pending:
            try:
                if not pending[0].copied.query():
                    return
            except Exception:  # an event that cannot be queried must not block the following ones
                pending.popleft()
                raise
            kind, name, step, moment, copy, _ = pending.popleft()
            self._write(kind, name, float(copy), step, moment)  # host memory: this synchronises nothing

    def _write(self, kind: RecordKind, name: str, value: float, step: int, moment: float) -> None:
        if kind is RecordKind.WORK:
            tags, pack = self._works
            if not 0.0 <= value < inf:
                raise UsageError(f"work of {value:g} {name} is no amount, expected a number from 0 up")
        else:
            tags, pack = self._scalars
        tag = tags.get(name)
        if tag is None:
            tag = self._tag(kind, name, tags)
        self._writer.pair(tag, moment, moment, pack, value, step)
        if name == LOSS and kind is RecordKind.SCALAR:
            self._writer.floats[_LOSS_WORD] = value

    def _tag(self, kind: RecordKind, name: str, tags: dict[str, int]) -> int:
        number = self._writer.name_number(name[: layout.NAME_SIZE])
        tag = layout.tag(kind, number)
        # 0: the table of names is full. `tags` must not grow without bound, in number or in length.
        if number and len(name) <= layout.NAME_SIZE:
            tags[name] = tag
        return tag


def _copy_later(kind: RecordKind, name: str, tensor: Any, step: int, moment: float) -> _Pending | None:
    """Copy it; None while a CUDA graph is captured: it has no value yet, and pinned memory cannot be had."""
    torch: Any = sys.modules["torch"]
    if torch.cuda.is_current_stream_capturing():
        return None
    source = tensor.detach().reshape(1)
    target = torch.empty(1, dtype=source.dtype, device="cpu", pin_memory=True)
    target.copy_(source, non_blocking=True)
    copied = torch.cuda.Event()
    copied.record(torch.cuda.current_stream(source.device))  # the current device may be another one
    return _Pending(kind, name, step, moment, target, copied)


class StatedValues:
    """The values that a run has stated.

    record: takes the name and the value of a scalar.
    """

    def __init__(self, record: Callable[[str, float], None]) -> None:
        self._record = record
        self._values: dict[str, float] = {}
        self._steps_left = 0

    def state(self, name: str, value: float) -> None:
        """State the value from now on; 0 states none. The next step records it."""
        if value:
            self._values[name], self._steps_left = value, 0

    def after_step(self) -> None:
        """Record the values if they are due."""
        if not self._values:
            return
        self._steps_left -= 1
        if self._steps_left < 0:
            self._steps_left = REPEAT_STEPS
            for name, value in self._values.items():
                self._record(name, value)


def as_amount(name: str, value: object) -> float:
    """Return a finite number above 0. Raises UsageError."""
    number = value if isinstance(value, (int, float)) and not isinstance(value, bool) else 0
    if 0.0 < number <= sys.float_info.max:
        return float(number)
    raise UsageError(f"{name} is {shown(value)}, expected a number above 0")
