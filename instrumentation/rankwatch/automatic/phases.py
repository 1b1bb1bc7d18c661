"""Phases that begin and end at moments which the caller knows, maybe later: forward, backward, optimizer."""

from __future__ import annotations

from rankwatch.blackbox import layout
from rankwatch.blackbox.layout import Now, RecordKind
from rankwatch.conventions import DATA_WAIT
from rankwatch.run import Run
from rankwatch.spans import NullSpan

_pack = layout.HEAD.pack_into


class TimedPhase:
    """One phase of a run. It is not entered inside itself."""

    __slots__ = ("_device", "_device_phases", "_tag", "_word", "_writer", "began")

    def __init__(self, run: Run, name: str) -> None:
        self._writer = run._writer
        number = self._writer.name_number(name)
        self._tag = layout.tag(RecordKind.PHASE, number)
        self._word = Now.PHASE_BEGAN + number
        self._device_phases = run.device
        self._device = run.device.span(NullSpan(), number) if run.device is not None else None
        self.began = 0.0
        """0 while the phase is not open."""

    def begin(self, moment: float) -> None:
        """Show the phase as open."""
        self.began = self._writer.floats[self._word] = moment
        if self._device is not None:
            self._device.__enter__()

    def end(self, moment: float) -> None:
        """Record the open phase."""
        began, self.began = self.began, 0.0
        self.record(began, moment)
        if self._device is not None:
            self._device.__exit__(None, None, None)

    def record(self, began: float, ended: float) -> None:
        """Record a phase that is over, on the host's clock only."""
        sequence, at = self._writer.next_slot()
        _pack(self._writer.target, at, self._tag, began, ended, sequence)

    def show(self, moment: float) -> None:
        """Show the phase as open on the host; `record` may follow."""
        self._writer.floats[self._word] = moment

    def abandon(self) -> None:
        """Forget the open phase: nobody saw its end."""
        self.began = 0.0
        if self._device_phases is not None and self._device_phases.open is self._device:
            self._device_phases.open = None


class Phases:
    """The phases that the seams of torch show."""

    def __init__(self, run: Run) -> None:
        self.data_wait = TimedPhase(run, DATA_WAIT)
        self.forward = TimedPhase(run, "forward")
        self.backward = TimedPhase(run, "backward")
        self.optimizer = TimedPhase(run, "optimizer")
