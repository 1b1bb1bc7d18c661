"""Evaluations, found by forward passes without gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest

from rankwatch.automatic.evaluation import Evaluation
from rankwatch.run import Run

torch = pytest.importorskip("torch")


class Recorded:
    """A run that keeps its phases."""

    def __init__(self) -> None:
        self.open: float | None = None
        self.phases: list[tuple[float, float]] = []
        self.resolvers: list[Callable[[], None]] = []
        self.steps_completed = 0

    def after_steps(self, resolve: Callable[[], None]) -> None:
        self.resolvers.append(resolve)

    def show_phase(self, name: str, began: float) -> None:
        assert name == "evaluation"
        self.open = began

    def record_phase(self, name: str, began: float, ended: float) -> None:
        assert began == self.open, "the phase that is shown as open is the one that ends"
        self.phases.append((began, ended))


class Script:
    """Events at the moments 1, 2, 3, ...: each call is one later than the last."""

    def __init__(self) -> None:
        self.run = Recorded()
        self.now = 0.0
        self.evaluation = Evaluation(lambda: self.now)
        self.evaluation.attach(cast(Run, self.run))
        self.model = torch.nn.Linear(1, 1)

    def tick(self) -> float:
        self.now += 1.0
        return self.now

    def fetch(self) -> float:
        began = self.tick()
        self.tick()
        self.evaluation.fetched()
        return began

    def look(self, module: Any = None, since: float = 0.0) -> None:
        """A forward pass without gradient that takes one unit of time."""
        self.tick()
        self.evaluation.forward_began(module or self.model, since)
        self.tick()
        self.evaluation.forward_ended()

    def train(self) -> None:
        self.tick()
        self.model.train()
        self.evaluation.training_goes_on(self.model)
        self.tick()


@pytest.fixture
def script() -> Script:
    """A loop that has trained its model."""
    script = Script()
    script.train()
    return script


def test_evaluation_of_several_batches(script: Script) -> None:
    """It lasts from the wait for the first batch to the end of the last forward pass."""
    script.model.eval()
    began = script.fetch()
    script.look(since=began)
    assert script.run.open == began
    script.look(since=script.fetch())
    ended = script.now
    script.fetch()
    script.train()
    assert script.run.phases == [(began, ended)]


def test_without_a_loader(script: Script) -> None:
    """Forward passes in evaluation mode are enough."""
    script.model.eval()
    script.look()
    ended = script.now
    script.train()
    assert script.run.phases == [(ended - 1.0, ended)]


def test_in_training_mode(script: Script) -> None:
    """A module that stays in training mode is evaluated if a further fetch follows."""
    began = script.fetch()
    script.look(since=began)
    ended = script.now
    script.fetch()
    script.train()
    assert script.run.phases == [(began, ended)]


def test_generator_of_a_gan(script: Script) -> None:
    """A forward pass without gradient in training mode belongs to the step that follows."""
    script.look(since=script.fetch())
    script.train()
    assert script.run.phases == []


def test_teacher(script: Script) -> None:
    """A module that is never trained belongs to the step, though it is in evaluation mode."""
    teacher = torch.nn.Linear(1, 1).eval()
    script.look(teacher, script.fetch())
    script.train()
    assert script.run.phases == []


def test_averaged_model(script: Script) -> None:
    """Another module in evaluation mode is evaluated if a checkpoint or the end follows."""
    script.look(torch.nn.Linear(1, 1).eval())
    ended = script.now
    script.tick()
    script.evaluation.pause()
    assert script.run.phases == [(ended - 1.0, ended)]


def test_end_of_the_run(script: Script) -> None:
    """An evaluation that the run ends with is recorded then."""
    script.model.eval()
    script.look()
    for resolve in script.run.resolvers:
        resolve()
    assert script.run.phases == [(script.now - 1.0, script.now)]


def test_wrapped_module(script: Script) -> None:
    """A module is known to be trained by the parameters that it shares with its wrapper."""
    inner = torch.nn.Linear(1, 1)
    script.evaluation.training_goes_on(torch.nn.Sequential(inner))
    inner.eval()
    script.look(inner)
    script.train()
    assert len(script.run.phases) == 1


def test_before_the_first_step() -> None:
    """An evaluation before anything was trained is recognised by what is trained next."""
    script = Script()
    script.model.eval()
    script.look()
    script.look()
    script.train()
    assert script.run.phases == [(1.0, 4.0)]


def test_before_the_run_is_open() -> None:
    """What was evaluated before is recorded as soon as there is a run."""
    script = Script()
    run, script.run = script.run, Recorded()
    script.evaluation = Evaluation(lambda: script.now)
    script.model.eval()
    script.look()
    script.train()
    run.open = 1.0
    script.evaluation.attach(cast(Run, run))
    assert run.phases == [(1.0, 2.0)]


def test_teacher_in_the_first_step() -> None:
    """A teacher that runs before anything was trained is no evaluation."""
    script = Script()
    script.look(torch.nn.Linear(1, 1).eval(), script.fetch())
    script.train()
    assert script.run.phases == []


def test_two_evaluations(script: Script) -> None:
    """A checkpoint between two evaluations keeps them apart."""
    script.model.eval()
    script.look()
    script.evaluation.pause()
    script.look()
    script.train()
    assert len(script.run.phases) == 2
