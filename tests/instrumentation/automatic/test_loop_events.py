"""The state machine of the loop by its events alone: no torch, a clock of its own."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import rankwatch
from rankwatch.automatic.loop import Loop
from rankwatch.blackbox.layout import RecordKind
from support.training.blackbox import box, now, of_kind

pytest.importorskip("torch")

import torch


class Batches:
    """Stands for an iterator of a data loader."""


def optimizer() -> Any:
    return SimpleNamespace(param_groups=[{"params": [Batches()], "lr": 0.1}])


class Training:
    """A loop that says what it does."""

    def __init__(self, run: rankwatch.Run) -> None:
        self.loop = Loop(lambda: run)
        self.batches = Batches()

    def fetch(self, *, exhausted: bool = False, batches: object = None, place: int = 0) -> None:
        began = self.loop.fetch_began(lambda: place)
        error = StopIteration() if exhausted else None
        self.loop.fetch_ended(began, batches or self.batches, None, error)

    def backward(self) -> None:
        if self.loop.backward_began(None):
            self.loop.backward_ended()

    def step(self, which: Any) -> None:
        self.loop.optimizer_began(which)
        self.loop.optimizer_ended(which)

    def iteration(self, which: Any, *, fetches: bool = True) -> None:
        if fetches:
            self.fetch()
        self.backward()
        self.step(which)


def counted(run: rankwatch.Run, tmp_path: Path) -> int:
    run.finish()
    return len(of_kind(box(tmp_path), RecordKind.STEP))


def test_hang_in_backward(run: rankwatch.Run, tmp_path: Path) -> None:
    """A loop without a loader that hangs in the backward pass of step 7 shows step 7 open, in that phase."""
    training, which = Training(run), optimizer()
    for _ in range(7):
        training.iteration(which, fetches=False)
    training.loop.backward_began(None)
    found = now(box(tmp_path))
    assert (found.step, found.steps_completed) == (7, 7)
    assert found.step_began > 0
    assert max(found.phases_began.values()) >= found.step_began


def test_pause_after_step(run: rankwatch.Run, tmp_path: Path) -> None:
    """Between two steps none is shown as open, although the last one may not be decided yet."""
    Training(run).iteration(optimizer())
    found = now(box(tmp_path))
    assert found.step_began == 0.0
    assert found.step_ended > 0.0


def test_last_step(run: rankwatch.Run, tmp_path: Path) -> None:
    """The end of the run decides its last step."""
    Training(run).iteration(optimizer(), fetches=False)
    assert counted(run, tmp_path) == 1


def in_thread(call: Callable[[], object]) -> None:
    with ThreadPoolExecutor(1) as other:
        other.submit(call).result()


def test_optimizer_in_thread(run: rankwatch.Run, tmp_path: Path) -> None:
    """Steps of an optimizer that another thread carries out count, without their phase."""
    training, which = Training(run), optimizer()
    for _ in range(5):
        training.fetch()
        training.backward()
        in_thread(lambda: training.step(which))
    assert counted(run, tmp_path) == 5
    assert "optimizer" not in {each.name for each in of_kind(box(tmp_path), RecordKind.PHASE)}


def test_training_in_thread(run: rankwatch.Run, tmp_path: Path) -> None:
    """A loop in another thread is followed, and the next one after that thread has ended."""
    training, which = Training(run), optimizer()
    for call in (in_thread, lambda train: train()):
        call(lambda: [training.iteration(which) for _ in range(3)])
    assert counted(run, tmp_path) == 6


def test_peeked_batch(run: rankwatch.Run, tmp_path: Path) -> None:
    """A batch of a dropped iterator begins no step, nor does a loader that was only read."""
    training, which = Training(run), optimizer()
    training.fetch(batches=Batches())
    read = Batches()
    for _ in range(3):
        training.fetch(batches=read)
    training.fetch(batches=read, exhausted=True)
    training.iteration(which)
    assert counted(run, tmp_path) == 1
    waits = [each for each in of_kind(box(tmp_path), RecordKind.PHASE) if each.name == "data_wait"]
    assert len(waits) == 1


LOOPS = st.fixed_dictionaries(
    {
        "loader": st.booleans(),
        "ahead": st.booleans(),
        "optimizers": st.integers(1, 3),
        "micro": st.integers(1, 3),
        "for_each": st.booleans(),
        "steps": st.integers(1, 6),
    }
)
SETTINGS = settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.fixture
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], tuple[rankwatch.Run, Path]]]:
    def start() -> tuple[rankwatch.Run, Path]:
        folder = tmp_path_factory.mktemp("run")
        run = rankwatch.start(
            run="loop", rank=0, world_size=1, directory=folder, flight_recorder=False, collectives=False,
            capacity=1024,
        )  # fmt: skip
        assert isinstance(run, rankwatch.Run)
        return run, folder

    return start  # type: ignore[return-value]


@SETTINGS
@given(LOOPS)
def test_count(fresh: Callable[[], tuple[rankwatch.Run, Path]], shape: dict[str, Any]) -> None:
    """Loops of any shape have as many steps as iterations: with one optimizer or several, with or without a
    loader, fetching ahead, with accumulated gradients, with batches for each optimizer."""
    run, folder = fresh()
    training, all_of_them = Training(run), [optimizer() for _ in range(shape["optimizers"])]
    if shape["loader"] and shape["ahead"]:
        training.fetch()
    for _ in range(shape["steps"]):
        if shape["for_each"] and shape["loader"]:
            for place, each in enumerate(all_of_them):
                training.fetch(place=place)
                training.iteration(each, fetches=False)
            continue
        for _ in range(shape["micro"]):
            if shape["loader"]:
                training.fetch()
            for _ in all_of_them:
                training.backward()
        for each in all_of_them:
            training.step(each)
    assert counted(run, folder) == shape["steps"]


MODULE = torch.nn.Linear(1, 1)
EVENTS = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 1)), max_size=40)


@SETTINGS
@given(EVENTS)
def test_any_order(fresh: Callable[[], tuple[rankwatch.Run, Path]], events: list[tuple[int, int]]) -> None:
    """No order of events raises, and the steps that are recorded follow each other."""
    run, folder = fresh()
    training, both = Training(run), [optimizer(), optimizer()]
    loop, began = training.loop, 0.0
    for event, which in events:
        match event:
            case 0:
                began = loop.fetch_began(lambda: which) or began  # noqa: B023
            case 1:
                loop.fetch_ended(began, training.batches, None, StopIteration() if which else None)
            case 2:
                loop.forward_began(MODULE)
            case 3:
                loop.forward_ended(bool(which))
            case 4:
                loop.backward_began(None)
            case 5:
                loop.backward_ended()
            case 6:
                loop.optimizer_began(both[which])
            case 7:
                loop.optimizer_ended(both[which])
            case 8:
                loop.update_began(None) if which else loop.update_ended()
            case 9:
                loop.pause()
    run.finish()
    steps = of_kind(box(folder), RecordKind.STEP)
    assert [each.payload[0] for each in steps] == list(range(len(steps)))
    assert all(each.start <= each.end for each in steps)
    assert all(each.end <= after.start for each, after in itertools.pairwise(steps))
