"""A loop with Accelerate on two ranks: without rankwatch, with the tracker, and without a line."""

from __future__ import annotations

import pytest

from support.frameworks.jobs import HAND, PLAIN, RANKS, ZERO, Job, run

pytest.importorskip("accelerate")
pytestmark = [pytest.mark.frameworks, pytest.mark.process]
_SCRIPT, _STEPS = "accelerate_loop.py", 4


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Job:
    return run(_SCRIPT, tmp_path_factory.mktemp("plain"), PLAIN)


@pytest.fixture(scope="module", params=[HAND, ZERO])
def job(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Job:
    return run(_SCRIPT, tmp_path_factory.mktemp(request.param), request.param)


def test_same_training(plain: Job, job: Job) -> None:
    """Losses and weights are the same bit by bit as without rankwatch."""
    for rank in range(RANKS):
        for what in ("weights", "losses"):
            assert job.wrote(rank)[what] == plain.wrote(rank)[what]


def test_steps(job: Job) -> None:
    """Accumulated batches are one step, with its phases. Steps are numbered from 0: nobody tells numbers."""
    for rank in range(RANKS):
        assert job.steps(rank) == list(range(_STEPS))
        for phase in ("forward", "backward", "optimizer"):
            assert job.seconds_of_steps(rank, phase) > 0.0
        assert job.now(rank).errors == 0


def test_loss(job: Job) -> None:
    """The loss is the sum of what Accelerate has divided: the mean over the batches of the step."""
    for rank in range(RANKS):
        losses = [value for _, value in job.scalars(rank, "loss")]
        assert losses == job.wrote(rank)["losses"]
        assert len(job.scalars(rank, "gradient_norm")) == _STEPS


def test_data_wait(job: Job) -> None:
    """The wait for data is about that of a stopwatch around `next`. Accelerate fetches one batch ahead."""
    for rank in range(RANKS):
        waited = sum(each.end - each.start for each in job.phases(rank, "data_wait"))
        assert 0.7 * job.wrote(rank)["waited"] < waited < 1.3 * job.wrote(rank)["waited"]


def test_evaluation(job: Job) -> None:
    for rank in range(RANKS):
        assert len(job.phases(rank, "evaluation")) == 1


def test_checkpoints(job: Job) -> None:
    """`save_state` and `load_state` are one operation each, whatever files they have."""
    for rank in range(RANKS):
        assert job.checkpoints(rank, "save") == [(1, True), (3, True)]
        assert [success for _, success in job.checkpoints(rank, "load")] == [True]
        assert (job.places(rank, "save"), job.places(rank, "load")) == (["state-2", "state-4"], ["state-2"])


def test_tracker(job: Job) -> None:
    """The tracker records what the loop logs. Accelerate passes it on on rank 0 only."""
    logged = [value for _, value in job.scalars(0, "my_loss")]
    assert logged == (job.wrote(0)["losses"] if job.mode == HAND else [])
    assert not job.scalars(1, "my_loss")
