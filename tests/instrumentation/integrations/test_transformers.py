"""The Trainer of Transformers on two ranks: without rankwatch, with the callback, and without a line."""

from __future__ import annotations

import math

import pytest

from rankwatch.conventions.vocabulary import Capability
from support.frameworks.jobs import HAND, PLAIN, RANKS, ZERO, Job, run

pytest.importorskip("transformers")
script = pytest.importorskip("support.frameworks.transformers_trainer")
pytestmark = [pytest.mark.frameworks, pytest.mark.process]
_FIRST = list(range(1, script.STEPS + 1))
_RESUMED = list(range(script.SAVE_STEPS + 1, script.STEPS + 1))
_SAVED = [2, 4, 5]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Job:
    return run("transformers_trainer.py", tmp_path_factory.mktemp("plain"), PLAIN)


@pytest.fixture(scope="module", params=[HAND, ZERO])
def job(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Job:
    return run("transformers_trainer.py", tmp_path_factory.mktemp(request.param), request.param)


def test_same_training(plain: Job, job: Job) -> None:
    """Losses and final weights are the same bit by bit as without rankwatch."""
    for rank in range(RANKS):
        with_, without = job.wrote(rank), plain.wrote(rank)
        assert with_["weights"] == without["weights"]
        assert str(with_["losses"]) == str(without["losses"])


def test_steps(job: Job) -> None:
    """Steps have the Trainer's own numbers, with accumulation, and go on after a resume."""
    for rank in range(RANKS):
        assert job.steps(rank) == [*_FIRST, *_RESUMED]
        assert job.now(rank).target_steps == script.STEPS


def test_loss(job: Job) -> None:
    """The loss is the sum that the Trainer itself adds up, with its rule for tokens, and NaN stays NaN."""
    for rank in range(RANKS):
        expected = [loss for losses in job.wrote(rank)["losses"] for loss in losses]
        recorded = [loss for _, loss in job.scalars(rank, "loss")]
        assert str(recorded) == str(expected)
        assert math.isnan(dict(job.scalars(rank, "loss"))[script.NAN_STEP])


def test_logged_loss(job: Job) -> None:
    """The Trainer logs the mean over ranks of what is recorded. Only its filter hides NaN."""
    recorded = [[loss for _, loss in job.scalars(rank, "loss")][: script.STEPS] for rank in range(RANKS)]
    means = [sum(each) / RANKS for each in zip(*recorded, strict=True)]
    for number, (mean, logged) in enumerate(zip(means, job.wrote(0)["logged"], strict=True), start=1):
        assert number == script.NAN_STEP or mean == pytest.approx(logged, rel=1e-6)


def test_gradient_norm(job: Job) -> None:
    """The norm of each step, the same on all ranks."""
    norms = [job.scalars(rank, "gradient_norm") for rank in range(RANKS)]
    assert [number for number, _ in norms[0]] == [*_FIRST, *_RESUMED]
    assert str(norms[0]) == str(norms[1])


def test_work(job: Job) -> None:
    """Tokens and samples belong to the step that trained on them, although one batch is fetched ahead."""
    samples = 2 * script.ACCUMULATION
    for rank in range(RANKS):
        assert job.work(rank, "samples") == [(number, samples) for number in (*_FIRST, *_RESUMED)]
        assert {amount for _, amount in job.work(rank, "tokens")} == {samples * script.LENGTH}


def test_data_wait(job: Job) -> None:
    """The wait for data is that of a stopwatch in the data set; the first wait after a resume belongs to
    no step."""
    for rank in range(RANKS):
        stopwatch = job.wrote(rank)["waited"]
        waits = job.phases(rank, "data_wait")
        assert sum(each.end - each.start for each in waits) >= stopwatch
        assert job.seconds_of_steps(rank, "data_wait") > 0.5 * stopwatch


def test_checkpoints(job: Job) -> None:
    """Every save, with the time until its files are down, and the load of a resume."""
    for rank in range(RANKS):
        saved = [*_SAVED, *[step for step in _SAVED if step > script.SAVE_STEPS]]
        assert job.checkpoints(rank, "save") == [(step, True) for step in saved]
        assert job.checkpoints(rank, "load") == [(script.SAVE_STEPS, True)]
        assert job.places(rank, "save") == [f"checkpoint-{step}" for step in saved]
        assert job.places(rank, "load") == [f"checkpoint-{script.SAVE_STEPS}"]


def test_phases(job: Job) -> None:
    """Forward, backward and optimizer of every step come from the patches of torch."""
    for rank in range(RANKS):
        for phase in ("forward", "backward", "optimizer"):
            assert job.seconds_of_steps(rank, phase) > 0.0
        assert {number for number, _ in job.scalars(rank, "learning_rate")} == set(job.steps(rank))


def test_evaluations(job: Job) -> None:
    """Evaluations of the Trainer and the one between two trainings, none of them inside a step."""
    each_training = 2  # at step 3, and at the end
    for rank in range(RANKS):
        assert len(job.phases(rank, "evaluation")) == 2 * each_training + 1
        assert job.seconds_of_steps(rank, "evaluation") == 0.0


def test_resume(job: Job) -> None:
    for rank in range(RANKS):
        assert [each.name for each in job.records(rank) if each.name == "resumed"] == ["resumed"]


def test_capabilities(job: Job) -> None:
    for rank in range(RANKS):
        states = job.now(rank).capabilities
        assert {each for each in Capability if states.get(each, "") is None} >= {
            Capability.STEPS,
            Capability.DATA_WAIT,
            Capability.LOSS,
            Capability.GRADIENT_NORM,
            Capability.CHECKPOINTS,
            Capability.EVALUATION,
        }
        assert job.now(rank).errors == 0
