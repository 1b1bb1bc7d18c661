"""Loops with Accelerate that go another way than most, on two ranks."""

from __future__ import annotations

from typing import Any

import pytest

from rankwatch.conventions.vocabulary import Capability, Lifecycle, Unseen
from support.frameworks.jobs import RANKS, Job, run_cases

pytest.importorskip("accelerate")
pytestmark = [pytest.mark.frameworks, pytest.mark.nightly, pytest.mark.process]
_CASES = ("two_models", "resumed", "uneven", "dispatched", "local", "own_run")
_BATCHES = 4
Cases = dict[str, tuple[Job, Any]]


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> Cases:
    return run_cases("accelerate_cases.py", tmp_path_factory.mktemp("cases"), *_CASES)


@pytest.mark.parametrize("case", ["resumed", "uneven", "dispatched", "local"])
def test_steps(case: str, cases: Cases) -> None:
    """The second half of an epoch after a checkpoint, ranks with unlike numbers of batches, batches that rank
    0 reads for all, and ranks that average their weights now and then."""
    job, losses = cases[case]
    assert job.steps(0) == list(range(len(losses)))
    assert [loss for _, loss in job.scalars(0, "loss")] == losses
    for rank in range(RANKS):
        steps = job.steps(rank)
        assert len(steps) >= _BATCHES
        for phase in ("forward", "backward", "optimizer"):
            assert len(job.phases(rank, phase)) == len(steps)
        assert {number for number, _ in job.scalars(rank, "learning_rate")} == set(steps)
        assert job.now(rank).ended_by == Lifecycle.FINISHED
        assert job.now(rank).errors == 0


def test_uneven_ranks(cases: Cases) -> None:
    """Each rank has the steps that it made."""
    job, losses = cases["uneven"]
    assert len(losses) == _BATCHES + 1
    assert job.steps(1) == list(range(_BATCHES))


def test_dispatched_batches(cases: Cases) -> None:
    """A rank without a loader of its own waits for rank 0. How much of a batch is whose is not known."""
    job, _ = cases["dispatched"]
    for rank in range(RANKS):
        assert len(job.phases(rank, "data_wait")) >= _BATCHES
        assert job.now(rank).capabilities[Capability.WORK] == Unseen.UNKNOWN_FORMAT


def test_two_models(cases: Cases) -> None:
    """Models that are accumulated together make one step, with the loss of both."""
    job, losses = cases["two_models"]
    for rank in range(RANKS):
        assert job.steps(rank) == [0, 1]
        assert len(job.phases(rank, "backward")) == _BATCHES
        assert len(job.phases(rank, "optimizer")) == 2 * 2
    expected = [sum(losses[:2]), sum(losses[2:])]
    assert [loss for _, loss in job.scalars(0, "loss")] == pytest.approx(expected, rel=1e-6)


def test_checkpoint(cases: Cases) -> None:
    """`save_state` in the middle of an epoch, and `load_state`."""
    job, _ = cases["resumed"]
    for rank in range(RANKS):
        assert job.checkpoints(rank, "save") == job.checkpoints(rank, "load") == [(1, True)]


def test_run_of_script(cases: Cases) -> None:
    """The tracker records into the run that the script has started, and adds nothing else to it."""
    job, losses = cases["own_run"]
    assert job.steps(0) == list(range(len(losses)))
    assert [loss for _, loss in job.scalars(0, "my_loss")] == losses
    assert not job.phases(0, "backward")
    assert job.now(0).ended_by == Lifecycle.FINISHED
