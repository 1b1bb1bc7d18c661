"""Phases on the GPU's clock, with fake CUDA events, and with real ones on a machine with a GPU."""

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
    """A GPU whose clock and progress the test sets."""

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
        assert later.query(), "the GPU has not passed the event: CUDA would raise"
        return later.at_ms - self.at_ms


@pytest.fixture
def gpu() -> Gpu:
    return Gpu()


@pytest.fixture
def run(tmp_path: Path, gpu: Gpu) -> Run:
    """A run on the fake GPU."""
    identity = Identity(run="gpu")
    return Run(identity, Writer(tmp_path, identity, phases=PHASES), PHASES, gpu.event)


def device_phases(directory: Path) -> list[tuple[str, float, float, int]]:
    """(phase, seconds, own seconds, step) of each record."""
    return [
        (each.name, each.payload[0], each.payload[1], int(each.payload[2]))
        for each in of_kind(box(directory), RecordKind.DEVICE_PHASE)
    ]


def test_phase(run: Run, gpu: Gpu, tmp_path: Path) -> None:
    """A phase is recorded after a later step, once the GPU has passed its end, with its own step's number."""
    with run.step(), run.phase("forward"):
        gpu.clock_ms += 30.0
    assert device_phases(tmp_path) == []
    gpu.finished_ms = gpu.clock_ms
    with run.step():
        pass
    assert device_phases(tmp_path) == [("forward", pytest.approx(0.030), pytest.approx(0.030), 0)]


def test_arrival(run: Run, gpu: Gpu, tmp_path: Path) -> None:
    """The rank's own work ends when the compute stream reaches the last collective."""
    assert run.device is not None
    with run.step(), run.phase("backward"):
        gpu.clock_ms += 10.0
        run.device.arrive()
        gpu.clock_ms += 10.0
        run.device.arrive()
        gpu.clock_ms += 80.0
        gpu.finished_ms = gpu.clock_ms
    assert device_phases(tmp_path) == [("backward", pytest.approx(0.100), pytest.approx(0.020), 0)]


def test_nested_phases(run: Run, gpu: Gpu, tmp_path: Path) -> None:
    """A collective of the inner phase is not an arrival of the outer phase."""
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


def test_reused_events(run: Run, gpu: Gpu) -> None:
    """A long run creates no new events."""
    for _ in range(200):
        with run.step(), run.phase("forward"):
            gpu.clock_ms += 1.0
        gpu.finished_ms = gpu.clock_ms
    assert gpu.events <= 6


def test_gpu_that_never_finishes(run: Run, gpu: Gpu) -> None:
    """The oldest phases are dropped, so that memory stays bounded."""
    gpu.finished_ms = -1.0
    for _ in range(2000):
        with run.step(), run.phase("forward"):
            gpu.clock_ms += 1.0
    assert run.device is not None
    assert len(run.device._pending) <= 512


@pytest.mark.gpu
def test_real_gpu(tmp_path: Path) -> None:
    """Timing never synchronises the GPU. In debug mode torch raises on a synchronising call."""
    torch: Any = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no CUDA GPU on this machine")
    run = rankwatch.start(run="gpu", rank=0, directory=tmp_path, flight_recorder=False)
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


def test_refused_events(run: Run, gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDA refuses events after an error on the GPU. The refusal is counted, and only the trainer's own
    exception propagates."""

    def refuse(_: Event) -> None:
        raise RuntimeError("CUDA error")

    monkeypatch.setattr(Event, "record", refuse)
    with pytest.raises(KeyError), run.step(), run.phase("forward"):
        raise KeyError
    assert run.device is not None
    assert run.device.open is None
    assert run._writer.integers[Now.ERRORS] == 2


def test_failing_query(run: Run, gpu: Gpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An event recorded during the capture of a CUDA graph cannot be queried. It must not block the
    others."""
    queried: list[Event] = []
    original = Event.query

    def query(event: Event) -> bool:
        queried.append(event)
        if len(queried) == 1:
            raise RuntimeError("captured")
        return original(event)

    monkeypatch.setattr(Event, "query", query)
    for _ in range(3):
        with run.step(), run.phase("forward"):
            gpu.clock_ms += 1.0
        gpu.finished_ms = gpu.clock_ms
    run.finish()
    assert len(device_phases(tmp_path)) == 2
