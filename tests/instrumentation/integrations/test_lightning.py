"""Lightning's `Trainer.fit` on two ranks, in both namespaces: with the callback, and without a line."""

from __future__ import annotations

import pytest

from rankwatch.blackbox.layout import RecordKind
from rankwatch.conventions.vocabulary import Capability
from support.frameworks.jobs import HAND, PLAIN, RANKS, ZERO, Job, run

torch = pytest.importorskip("torch")
pytest.importorskip("lightning")
pytest.importorskip("pytorch_lightning")
pytestmark = [pytest.mark.frameworks, pytest.mark.process]
_BATCHES, _STEPS, _SAVE_STEPS, _MANUAL = 5, 6, 2, 4
_FIRST, _RESUMED = list(range(1, _STEPS + 1)), [5, 6]
_SCRIPT = "lightning_trainer.py"


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Job:
    return run(_SCRIPT, tmp_path_factory.mktemp("plain"), PLAIN)


@pytest.fixture(scope="module", params=[(HAND, "lightning.pytorch"), (ZERO, "pytorch_lightning")])
def job(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Job:
    mode, namespace = request.param
    return run(_SCRIPT, tmp_path_factory.mktemp(mode), mode, namespace)


def test_same_training(plain: Job, job: Job) -> None:
    """Losses and final weights are the same bit by bit as without rankwatch."""
    for rank in range(RANKS):
        for what in ("weights", "losses"):
            assert job.wrote(rank)[what] == plain.wrote(rank)[what]


def test_steps(job: Job) -> None:
    """Accumulated batches are one step, also the last ones of an epoch; two optimizers by hand are one
    too."""
    for rank in range(RANKS):
        assert job.steps(rank) == [*_FIRST, *_RESUMED, *range(1, _MANUAL + 1)]
        assert job.now(rank).target_steps == _MANUAL


def test_loss(job: Job) -> None:
    """The loss of a step is the sum of those of its batches, which Lightning has divided by their number."""
    for rank in range(RANKS):
        first, again = job.wrote(rank)["losses"]
        epochs = [first[:_BATCHES], first[_BATCHES:]]
        groups = [each[at : at + 2] for each in epochs for at in range(0, _BATCHES, 2)]
        groups += [again[:2], again[2:]]
        expected = [float(sum(torch.tensor(each, dtype=torch.float32))) for each in groups]
        recorded = [value for _, value in job.scalars(rank, "loss")][: len(groups)]
        assert recorded == expected


def test_data_wait(job: Job) -> None:
    """The wait for data is at least that of a stopwatch in the data set, and inside of steps."""
    for rank in range(RANKS):
        stopwatch = job.wrote(rank)["waited"]
        assert stopwatch <= job.seconds_of_steps(rank, "data_wait") < 4 * stopwatch


def test_checkpoints(job: Job) -> None:
    """Every save with its size, and the load of a resume. A resume in the middle of an accumulation saves
    again."""
    for rank in range(RANKS):
        assert job.checkpoints(rank, "save") == [(step, True) for step in (2, 4, 6, 4, 6)]
        assert job.checkpoints(rank, "load") == [(2 * _SAVE_STEPS, True)]
        assert job.places(rank, "save") == [f"step={each}.ckpt" for each in (2, 4, 6, 4, "6-v1")]
        assert job.places(rank, "load") == [f"step={2 * _SAVE_STEPS}.ckpt"]
    saved = [each for each in job.records(0) if each.kind == RecordKind.CHECKPOINT and each.name == "save"]
    assert all(each.payload[0] > 0 for each in saved if not each.payload[2])


def test_phases(job: Job) -> None:
    """Forward, backward and optimizer of every step come from the patches of torch."""
    for rank in range(RANKS):
        for phase in ("forward", "backward", "optimizer"):
            assert job.seconds_of_steps(rank, phase) > 0.0
        assert {number for number, _ in job.scalars(rank, "learning_rate")} == set(job.steps(rank))


def test_evaluations(job: Job) -> None:
    """The sanity check and each validation, none of them inside a step."""
    for rank in range(RANKS):
        assert len(job.phases(rank, "evaluation")) == 4
        assert job.seconds_of_steps(rank, "evaluation") == 0.0


def test_resume(job: Job) -> None:
    for rank in range(RANKS):
        assert [each.payload[0] for each in job.records(rank) if each.name == "resumed"] == [4]


def test_capabilities(job: Job) -> None:
    for rank in range(RANKS):
        states = job.now(rank).capabilities
        for each in (Capability.STEPS, Capability.DATA_WAIT, Capability.LOSS, Capability.EVALUATION):
            assert states[each] is None
        assert job.now(rank).errors == 0
