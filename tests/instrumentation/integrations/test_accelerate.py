"""A loop with Accelerate on two ranks: without rankwatch, with the tracker, and without a line."""

from __future__ import annotations

import pytest

from support.frameworks.jobs import HAND, PLAIN, RANKS, ZERO, Job, run

pytest.importorskip("accelerate")
pytestmark = [pytest.mark.frameworks, pytest.mark.e2e]
_SCRIPT = "accelerate_loop.py"


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


def test_checkpoints(job: Job) -> None:
    """`save_state` and `load_state` are recorded as a whole, whatever files they have."""
    for rank in range(RANKS):
        assert {success for _, success in job.checkpoints(rank, "save")} == {True}
        assert [success for _, success in job.checkpoints(rank, "load")] == [True]
        assert job.now(rank).errors == 0


def test_tracker(job: Job) -> None:
    """The tracker records what the loop logs. Accelerate passes it on on rank 0 only."""
    logged = [value for _, value in job.scalars(0, "my_loss")]
    assert logged == (job.wrote(0)["losses"] if job.mode == HAND else [])
    assert not job.scalars(1, "my_loss")
