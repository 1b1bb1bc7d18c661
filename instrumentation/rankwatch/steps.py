"""Training steps: their numbers, and their time from the beginning of the wait for a batch."""

from __future__ import annotations

import operator
import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING

from rankwatch.blackbox import layout
from rankwatch.blackbox.layout import Now, RecordKind
from rankwatch.blackbox.writer import Writer
from rankwatch.errors import shown
from rankwatch.failures import Failures

if TYPE_CHECKING:
    from rankwatch.device.timeline import DeviceTimeline

_FIRST_TOO_LARGE = 1 << 62
"""Step numbers are smaller than this, so that the next number still fits a word of the black box."""

_TAG = layout.tag(RecordKind.STEP, 0)
_pack = layout.STEP.pack_into
# Plain numbers, because members of an enum are slow keys.
_STEP, _STEP_BEGAN, _STEP_ENDED = int(Now.STEP), int(Now.STEP_BEGAN), int(Now.STEP_ENDED)
_STEPS_COMPLETED = int(Now.STEPS_COMPLETED)


class Steps:
    """The steps of one run. As a context manager it is the step that the last call of `number` chose.

    after_each: called after each step, for values that a GPU delivers late.
    """

    def __init__(
        self,
        writer: Writer,
        failures: Failures,
        device: DeviceTimeline | None = None,
        clock: Callable[[], float] = time.monotonic,
        *,
        after_each: Callable[[], None],
    ) -> None:
        self._writer = writer
        self._clock = clock
        self._failures = failures
        self._device = device
        self._wanted: int | None = None
        self._began = 0.0
        self._waiting_since = 0.0
        self._after_each = after_each
        self.before_first: Callable[[], object] | None = None
        """Called once, when the first step begins."""
        self.current = -1
        """Number of the open step, else of the last one; -1 before the first."""
        self.repeats = 0
        """How often the numbers have begun again, as in a loop that counts the steps of each epoch from 0."""
        self._last_ended = -_FIRST_TOO_LARGE
        self.seconds = 0.0
        """Of all steps that have ended."""

    @property
    def open(self) -> bool:
        """True while a step is open."""
        return self._began > 0.0

    def number(self, number: int | None) -> Steps:
        """Choose the number of the next step: this one, or by default the one after the last."""
        self._wanted = number
        return self

    def waiting_since(self, moment: float) -> None:
        """Begin the next step at this moment, when the wait for its batch began. 0 cancels that."""
        self._waiting_since = moment

    def resume(self, number: int) -> None:
        """Continue after this step."""
        self.current = self._whole(number, self.current)

    def begin(self, number: int | None = None) -> None:
        """Open a step."""
        if self._began:
            self._failures.misuse(f"step {self.current} is still open; steps do not nest: end it first")
            self.end()
        if self.before_first is not None:
            call, self.before_first = self.before_first, None
            try:
                call()
            except Exception as error:  # noqa: BLE001 - nothing of ours may end the training
                self._failures.note("prepare for the first step", error)
        following = self.current + 1
        self.current = step = following if number is None else self._whole(number, following)
        if step <= self._last_ended:
            self.repeats += 1
        self._began = began = self._waiting_since or self._clock()
        self._waiting_since = 0.0
        writer = self._writer
        writer.integers[_STEP] = step
        writer.floats[_STEP_BEGAN] = began
        if self._device is not None:
            self._device.step_began(began)

    def end(self, *, failed: bool = False, at: float = 0.0) -> None:
        """Close the open step and write its record. at: when it ended, if that was earlier than now."""
        if not self._began:
            self._failures.misuse("no step is open: begin one first")
            return
        writer = self._writer
        flags = int(failed)
        if self._device is not None and self._device.step_ended(self.current, self._began, at):
            flags |= layout.STEP_ON_DEVICE
        ended = at or self._clock()
        flags |= (writer.integers[_STEPS_COMPLETED] + 1) << layout.STEP_PLACE_BITS
        writer.pair(_TAG, self._began, ended, _pack, self.current, flags)
        self.seconds += ended - self._began
        self._last_ended = self.current
        self._began = 0.0
        floats = writer.floats
        floats[_STEP_BEGAN] = 0.0
        floats[_STEP_ENDED] = ended
        writer.integers[_STEPS_COMPLETED] += 1
        self._failures.strict = False
        self._after_each()

    def abandon(self) -> None:
        """Forget the open step, if there is one: its number is given again."""
        if self._began:
            if self._device is not None:
                self._device.step_abandoned()
            self._began = 0.0
            self.repeats -= self.current <= self._last_ended
            self.current -= 1
            self._writer.integers[_STEP] = self.current
            self._writer.floats[_STEP_BEGAN] = 0.0

    def show_ended(self, moment: float) -> None:
        """Let the now block show the open step as ended at this moment. It stays open: `end` may follow, or
        more work of the same step, which `show_open` shows."""
        floats = self._writer.floats
        floats[_STEP_BEGAN] = 0.0
        floats[_STEP_ENDED] = moment
        if self._device is not None:
            self._device.step_may_end(moment)

    def show_open(self, following_since: float = 0.0) -> None:
        """Let the now block show the open step again, or a following one that has begun at this moment."""
        writer = self._writer
        writer.integers[_STEP] = self.current + 1 if following_since else self.current
        writer.floats[_STEP_BEGAN] = following_since or self._began

    def _whole(self, number: object, otherwise: int) -> int:
        """Return the number of a step as an int. If it is no whole number, report that and return
        `otherwise`."""
        if type(number) is int and -_FIRST_TOO_LARGE < number < _FIRST_TOO_LARGE:
            return number
        if (whole := as_whole(number)) is not None:
            return whole
        self._failures.misuse(
            f"step number is {shown(number)}, expected a whole number below 2**62; reading one on a device "
            "would wait for it"
        )
        return otherwise

    def __enter__(self) -> None:
        wanted, self._wanted = self._wanted, None
        self.begin(wanted)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end(failed=kind is not None)


def as_whole(number: object) -> int | None:
    """Return a number of the caller as an int that fits a word of the black box; None if it is no whole
    number, or a tensor on a device: reading it would wait for the device. Raises nothing."""
    try:
        whole = operator.index(number) if getattr(number, "is_cpu", True) else None  # type: ignore[arg-type]
    except Exception:  # noqa: BLE001 - the code of any object
        return None
    return whole if whole is not None and -_FIRST_TOO_LARGE < whole < _FIRST_TOO_LARGE else None
