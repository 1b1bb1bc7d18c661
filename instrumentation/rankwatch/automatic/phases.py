"""Phases that begin and end at moments which the caller knows, maybe later: forward, backward, optimizer.

Calls of root modules that only forward passes follow make one forward phase.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from rankwatch.automatic.visibility import visibility
from rankwatch.blackbox import layout
from rankwatch.blackbox.layout import Now, RecordKind
from rankwatch.conventions.vocabulary import DATA_WAIT, Capability
from rankwatch.run import Run

_pack = layout.HEAD.pack_into


class TimedPhase:
    """One phase of a run. It is not entered inside itself."""

    __slots__ = ("_device", "_number", "_tag", "_word", "_writer", "began")

    def __init__(self, run: Run, name: str) -> None:
        self._writer = run._writer
        number = self._writer.name_number(name)
        self._number = number
        self._tag = layout.tag(RecordKind.PHASE, number)
        self._word = Now.PHASE_BEGAN + number
        self._device = run.device
        self.began = 0.0
        """0 while the phase is not open."""

    def begin(self, moment: float) -> None:
        """Show the phase as open."""
        self.began = self._writer.floats[self._word] = moment
        if self._device is not None:
            self._device.phase_began(self._number, moment)

    def end(self, moment: float) -> None:
        """Record the open phase."""
        began, self.began = self.began, 0.0
        self.record(began, moment)
        if self._device is not None:
            self._device.phase_ended(self._number, moment)

    def record(self, began: float, ended: float) -> None:
        """Record a phase that is over. On the device it is what `show` has shown."""
        sequence, at = self._writer.next_slot()
        _pack(self._writer.target, at, self._tag, began, ended, sequence)

    def show(self, moment: float) -> None:
        """Show the phase as open, or as closed with moment 0; `record` may follow."""
        self._writer.floats[self._word] = moment
        if self._device is not None:
            if moment:
                self._device.phase_began(self._number, moment)
            else:
                self._device.phase_ended(self._number)

    def abandon(self) -> None:
        """Forget the open phase: nobody saw its end."""
        self.began = 0.0
        if self._device is not None:
            self._device.phase_ended(self._number)


class Phases:
    """The phases that the patches of torch show."""

    def __init__(self, run: Run) -> None:
        self.data_wait = TimedPhase(run, DATA_WAIT)
        self.forward = TimedPhase(run, "forward")
        self.backward = TimedPhase(run, "backward")
        self.optimizer = TimedPhase(run, "optimizer")


class Forward:
    """The forward pass that is running, and the forward phase that is open.

    A pass may contain its own backward pass: a module that trains itself. It is over where that one begins.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._phase: TimedPhase | None = None
        self.running = False
        """A root module is called, and no backward pass has begun inside of it."""
        self._with_gradient = False
        self.began = 0.0
        """Begin of the phase; 0 while none is open."""
        self._returned = 0.0
        """When the last pass of the phase returned; 0 while the first one runs."""
        self._loss_computed = False
        """The last of them has returned the loss."""
        self.unseen = False
        """The last backward pass followed no forward pass that was seen, or began inside of one."""

    def attach(self, phase: TimedPhase) -> None:
        """Record into this phase from now on."""
        self._phase = phase
        if self.began:
            phase.begin(self.began)

    def enter(self) -> None:
        """Enter a pass without gradient: it belongs to no phase."""
        self.running, self._with_gradient = True, False

    def begin(self, moment: float) -> None:
        """Begin a pass with gradient."""
        self.running = self._with_gradient = True
        if not self.began:
            self.began, self._returned, self._loss_computed = moment, 0.0, False
            if self._phase is not None:
                self._phase.begin(moment)

    def leave(self, loss_computed: bool) -> bool:
        """End a pass that has returned, or raised. loss_computed: what it returned holds the loss.

        True if it was one without gradient."""
        if not self.running:  # a backward pass has begun inside of it
            return False
        self.running = False
        if self._with_gradient:
            self._returned, self._loss_computed = self._clock(), loss_computed
        return not self._with_gradient

    def backward_began(self, moment: float) -> None:
        """End the phase at a backward pass: now, unless its last pass has returned the loss."""
        inside, self.running = self.running, False
        self.unseen = inside or not self.began
        self._close(self._returned if self._loss_computed and not inside else moment)

    def end(self) -> None:
        """End the phase: something else begins, so it is over since its last pass has returned."""
        if self.began:
            self._close(self._clock() if self.running else self._returned)

    def _close(self, moment: float) -> None:
        began, self.began = self.began, 0.0
        if began and self._phase is not None:
            if not self._phase.began:
                self._phase.begin(began)
            self._phase.end(max(began, moment))
            visibility.sees(Capability.FORWARD)
