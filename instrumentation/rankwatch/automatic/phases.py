"""Phases that begin and end at moments which the caller knows, maybe later: forward, backward, optimizer."""

from __future__ import annotations

from rankwatch.blackbox import layout
from rankwatch.blackbox.layout import Now, RecordKind
from rankwatch.conventions import DATA_WAIT
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
    """The phases that the seams of torch show."""

    def __init__(self, run: Run) -> None:
        self.data_wait = TimedPhase(run, DATA_WAIT)
        self.forward = TimedPhase(run, "forward")
        self.backward = TimedPhase(run, "backward")
        self.optimizer = TimedPhase(run, "optimizer")
