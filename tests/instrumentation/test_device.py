"""Phases on the GPU's clock, with events that stand for CUDA's, and with CUDA's own where there is a GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import rankwatch
from rankwatch.blackbox.layout import Now, RecordKind
from rankwatch.blackbox.writer import Writer
from rankwatch.conventions import PHASES
from rankwatch.identity import Identity
from rankwatch.run import Run
from support.training.blackbox import box, of_kind


class Gpu:
    """A GPU whose clock is set by the test and that finishes work when told."""

    def __init__(self) -> None:
        self.clock_ms = 0.0
        self.finished_ms = 0.0
        self.events = 0

    def event(self) -> Event:
        self.events += 1
        return Event(self)


class Event:
    def __init__(self, gpu: Gpu) -> None:
        self.gpu = gpu
        self.at_ms = 0.0

    def record(self) -> None:
        self.at_ms = self.gpu.clock_ms

    def query(self) -> bool:
        return self.gpu.finished_ms >= self.at_ms

    def elapsed_time(self, later: Event) -> float:
        assert later.query(), "asked for a time before the GPU had passed it: CUDA would raise"
        return later.at_ms - self.at_ms


@pytest.fixture
def gpu() -> Gpu:
    return Gpu()


@pytest.fixture
def run(tmp_path: Path, gpu: Gpu) -> Run:
    """A run on that GPU."""
    identity = Identity(run="gpu")
    return Run(identity, Writer(tmp_path, identity, phases=PHASES), PHASES, gpu.event)


def device_phases(directory: Path) -> list[tuple[str, float, float, int]]:
    """(phase, seconds, own seconds, step) of each record."""
    return [
        (each.name, each.payload[0], each.payload[1], int(each.payload[2]))
        for each in of_kind(box(directory), RecordKind.DEVICE_PHASE)
    ]


def test_a_phase_is_recorded_once_the_gpu_has_passed_its_end(run: Run, gpu: Gpu, tmp_path: Path) -> None:
    """After a later step, with its own step's number, and never by waiting."""
    with run.step(), run.phase("forward"):
        gpu.clock_ms += 30.0
    assert device_phases(tmp_path) == []
    gpu.finished_ms = gpu.clock_ms
    with run.step():
        pass
    assert device_phases(tmp_path) == [("forward", pytest.approx(0.030), pytest.approx(0.030), 0)]


def test_the_last_collective_splits_own_work_from_waiting(run: Run, gpu: Gpu, tmp_path: Path) -> None:
    """Own work ends where the compute stream reached the last bucket."""
    assert run.device is not None
    with run.step(), run.phase("backward"):
        gpu.clock_ms += 10.0
        run.device.arrive()
        gpu.clock_ms += 10.0
        run.device.arrive()
        gpu.clock_ms += 80.0
        gpu.finished_ms = gpu.clock_ms
    assert device_phases(tmp_path) == [("backward", pytest.approx(0.100), pytest.approx(0.020), 0)]


def test_nested_phases_have_events_of_their_own(run: Run, gpu: Gpu, tmp_path: Path) -> None:
    """The inner one's collective is not the outer one's."""
    assert run.device is not None
    with run.step(), run.phase("backward"):
        with run.phase("communication"):
            run.device.arrive()
            gpu.clock_ms += 5.0
        gpu.clock_ms += 5.0
        gpu.finished_ms = gpu.clock_ms
    assert device_phases(tmp_path) == [
        ("communication", pytest.approx(0.005), pytest.approx(0.0), 0),
        ("backward", pytest.approx(0.010), pytest.approx(0.010), 0),
    ]


def test_events_are_used_again(run: Run, gpu: Gpu) -> None:
    """A long run makes no new ones."""
    for _ in range(200):
        with run.step(), run.phase("forward"):
            gpu.clock_ms += 1.0
        gpu.finished_ms = gpu.clock_ms
    assert gpu.events <= 6


def test_a_gpu_that_never_finishes_costs_bounded_memory(run: Run, gpu: Gpu) -> None:
    """The oldest phases are let go."""
    gpu.finished_ms = -1.0
    for _ in range(2000):
        with run.step(), run.phase("forward"):
            gpu.clock_ms += 1.0
    assert run.device is not None
    assert len(run.device._pending) <= 512


@pytest.mark.gpu
def test_a_real_gpu_times_its_phases_without_synchronising(tmp_path: Path) -> None:
    """torch itself raises on a synchronising call in this mode."""
    torch: Any = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no CUDA GPU on this machine")
    run = rankwatch.start(run="gpu", directory=tmp_path, flight_recorder=False)
    matrix = torch.randn(4096, 4096, device="cuda")
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        with run.step(), run.phase("forward"):
            for _ in range(20):
                matrix = matrix @ matrix / 64.0
    finally:
        torch.cuda.set_sync_debug_mode("default")
    torch.cuda.synchronize()
    with run.step():
        pass
    ((name, seconds, own, step),) = device_phases(tmp_path)
    assert (name, step) == ("forward", 0)
    assert 0.0 < own == seconds


def test_a_gpu_that_refuses_events_never_ends_the_training(
    run: Run, gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an error on the GPU, or in a forked child: the exception of the trainer goes on its way."""

    def refuse(_: Event) -> None:
        raise RuntimeError("CUDA error")

    monkeypatch.setattr(Event, "record", refuse)
    with pytest.raises(KeyError), run.step(), run.phase("forward"):
        raise KeyError
    assert run.device is not None
    assert run.device.open is None
    assert run._writer.integers[Now.ERRORS] == 2


def test_an_event_that_cannot_be_asked_does_not_keep_back_the_others(
    run: Run, gpu: Gpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One recorded while a CUDA graph was captured."""
    asked: list[Event] = []
    sound = Event.query

    def query(event: Event) -> bool:
        asked.append(event)
        if len(asked) == 1:
            raise RuntimeError("captured")
        return sound(event)

    monkeypatch.setattr(Event, "query", query)
    for _ in range(3):
        with run.step(), run.phase("forward"):
            gpu.clock_ms += 1.0
        gpu.finished_ms = gpu.clock_ms
    run.finish()
    assert len(device_phases(tmp_path)) == 2
