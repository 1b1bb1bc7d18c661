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

    open: float | None = None
    steps_completed = 0

    def __init__(self) -> None:
        self.phases: list[tuple[float, float]] = []
        self.resolvers: list[Callable[[], None]] = []
        self.after_steps = self.resolvers.append

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


CASES: dict[str, tuple[str, list[tuple[float, float]]]] = {
    # It lasts from the wait for the first batch to the end of the last forward pass.
    "several batches": ("train eval fetch look fetch look fetch train", [(3, 10)]),
    # Forward passes in evaluation mode are enough.
    "without a loader": ("train eval look train", [(3, 4)]),
    # A module that stays in training mode is evaluated if a further fetch follows.
    "training mode": ("train fetch look fetch train", [(3, 6)]),
    # A forward pass without gradient in training mode belongs to the step that follows.
    "generator of a GAN": ("train fetch look train", []),
    # A module that is never trained belongs to the step, though it is in evaluation mode.
    "teacher": ("train fetch other train", []),
    "teacher in the first step": ("fetch other train", []),
    # Another module in evaluation mode is evaluated if a checkpoint or the end follows.
    "averaged model": ("train other pause", [(3, 4)]),
    "end of the run": ("train eval look end", [(3, 4)]),
    # An evaluation before anything was trained is recognised by what is trained next.
    "before the first step": ("eval look look train", [(1, 4)]),
    # A checkpoint between two evaluations keeps them apart.
    "two evaluations": ("train eval look pause look train", [(3, 4), (6, 7)]),
}
"""What a script does, and the evaluations that are recorded."""


@pytest.mark.parametrize(("events", "found"), CASES.values(), ids=CASES)
def test_events(events: str, found: list[tuple[float, float]]) -> None:
    """Each evaluation is recorded once, with its times, and nothing else is."""
    script, since = Script(), 0.0
    for event in events.split():
        match event:
            case "eval":
                script.model.eval()
            case "train":
                script.train()
            case "fetch":
                since = script.fetch()
            case "look" | "other":
                script.look(torch.nn.Linear(1, 1).eval() if event == "other" else None, since)
                since = 0.0
            case "pause":
                script.tick()
                script.evaluation.pause()
            case "end":
                for resolve in script.run.resolvers:
                    resolve()
    assert script.run.phases == found


def test_evaluation_that_is_shown(script: Script) -> None:
    """An evaluation under way is shown with the wait for its first batch."""
    script.model.eval()
    began = script.fetch()
    script.look(since=began)
    assert script.run.open == began


def test_wrapped_module(script: Script) -> None:
    """A module is known to be trained by the parameters that it shares with its wrapper."""
    inner = torch.nn.Linear(1, 1)
    script.evaluation.training_goes_on(torch.nn.Sequential(inner))
    inner.eval()
    script.look(inner)
    script.train()
    assert len(script.run.phases) == 1


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
