"""One rank on a simulated GPU whose peer comes when the test says."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from rankwatch.blackbox import layout
from rankwatch.blackbox.layout import Now, RecordKind
from rankwatch.blackbox.writer import Writer
from rankwatch.identity import Identity
from support.device.rank import Members, Network, Rank
from support.training.blackbox import Read, box, of_kind

PAIR = Members("default_pg", (0, 1))


def near(seconds: float) -> Any:
    """Equal but for the time that the host takes to enqueue."""
    return pytest.approx(seconds, abs=1e-4)


class LoneRank(Rank):
    """Rank 0 of two. The training has shown its device, unless `shown` is False.

    without: a method that `CUDAGraph` of this torch does not have.
    """

    def __init__(self, directory: Path, *, shown: bool = True, without: str = "") -> None:
        self._without = without
        super().__init__(0, Network(), directory, Identity(run="gpu"), began=time.monotonic())
        self._directory = directory
        self._meetings = 0
        if shown:
            self.gpu.use(0)

    def _hook(self, writer: Writer) -> None:
        if self._without:
            delattr(self.machine.torch.cuda.CUDAGraph, self._without)
        super()._hook(writer)

    def forward(self, seconds: float) -> None:
        """A step that computes in its forward pass."""
        with self.run.step(), self.run.phase("forward"):
            self.compute(seconds)

    def wait_for_data(self, seconds: float = 0.001) -> None:
        """The host waits for a batch."""
        with self.run.phase("data_wait"):
            self.host.spend(seconds)

    def step(self, seconds: float) -> None:
        """A step that computes outside of any phase."""
        with self.run.step():
            self.compute(seconds)

    def idle_step(self) -> None:
        """A step in which nothing happens."""
        with self.run.step():
            pass

    def peer_comes(self, after_seconds: float) -> None:
        """The peer comes to the next collective so long after now."""
        self._meetings += 1
        meeting = self.network.meet((PAIR, self._meetings), 2, 0.0)
        meeting.arrive(self.host.now + after_seconds, ())

    def device_finishes(self) -> None:
        """The host works until the device has done all that it can."""
        self.host.spend(100.0)

    def resolve(self) -> None:
        """Have the steps recorded that the device has finished, by a later step."""
        self.device_finishes()
        self.idle_step()

    def errors(self) -> int:
        """Failures inside rankwatch."""
        return int(self.writer.integers[Now.ERRORS])

    def records(self, kind: RecordKind) -> list[Read]:
        """Records of a kind in the box."""
        return of_kind(box(self._directory), kind)

    def phases(self) -> list[tuple[str, float, int]]:
        """(phase, own seconds, step) of each record."""
        found = self.records(RecordKind.DEVICE_PHASE)
        return [(each.name, each.payload[0], int(each.payload[1])) for each in found]

    def recorded_waits(self) -> list[tuple[str, float, int]]:
        """(operation, seconds, step) of each record."""
        found = self.records(RecordKind.DEVICE_WAIT)
        return [(each.name, each.payload[0], int(each.payload[1])) for each in found]

    def unknown_steps(self) -> list[int]:
        """Steps whose own time and waits could not be told apart."""
        found = self.records(RecordKind.DEVICE_STEP)
        return [int(each.payload[0]) for each in found if int(each.payload[2]) & layout.UNKNOWN_WAITS]
