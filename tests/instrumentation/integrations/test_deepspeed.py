"""A loop with DeepSpeed's engine on two ranks, without a line."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import pytest

from rankwatch.conventions.vocabulary import Capability
from support.frameworks.jobs import PLAIN, RANKS, ZERO, Job, run
from support.paths import TESTS

pytest.importorskip("deepspeed")
pytestmark = [pytest.mark.frameworks, pytest.mark.process]
_SCRIPT, _STEPS = "deepspeed_loop.py", 6


@pytest.fixture(autouse=True, scope="module")
def on_cpu() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DS_ACCELERATOR", "cpu")
        patch.setenv("DS_IGNORE_CUDA_DETECTION", "1")
        yield


@pytest.fixture(scope="module")
def sharded(tmp_path_factory: pytest.TempPathFactory) -> Job:
    """ZeRO 2, which steps its optimizer once for each group of parameters, with accumulation."""
    return run(_SCRIPT, tmp_path_factory.mktemp("sharded"), ZERO, "2", "2")


def test_same_training(sharded: Job, tmp_path: Path) -> None:
    """Losses and weights are the same bit by bit as without rankwatch."""
    plain = run(_SCRIPT, tmp_path, PLAIN, "2", "2")
    for rank in range(RANKS):
        assert sharded.wrote(rank) == plain.wrote(rank)


def test_steps(sharded: Job) -> None:
    """A step of the engine is one step, whose phases hold what DeepSpeed does before and after torch."""
    for rank in range(RANKS):
        assert sharded.steps(rank) == list(range(_STEPS))
        counts = {name: len(sharded.phases(rank, name)) for name in ("forward", "backward", "optimizer")}
        assert counts == {"forward": 2 * _STEPS, "backward": 2 * _STEPS, "optimizer": _STEPS}
        assert len(sharded.phases(rank, "evaluation")) == 1
        assert sharded.now(rank).errors == 0


def test_values(sharded: Job) -> None:
    """The loss is the mean of the accumulated batches, the norm is that of ZeRO before clipping."""
    for rank in range(RANKS):
        wrote = sharded.wrote(rank)
        assert [value for _, value in sharded.scalars(rank, "loss")] == pytest.approx(wrote["losses"], 1e-6)
        assert [value for _, value in sharded.scalars(rank, "gradient_norm")] == wrote["norms"]
        assert len(sharded.scalars(rank, "learning_rate")) == _STEPS
        assert not sharded.scalars(rank, "loss_2")


def test_checkpoints(sharded: Job) -> None:
    """All files of a rank are one save: those of the model and of the rank's part of the optimizer."""
    for rank in range(RANKS):
        assert sharded.checkpoints(rank, "save") == [(2, True), (5, True)]
        assert sharded.places(rank, "save") == ["global_step3", "global_step6"]


@pytest.mark.nightly
def test_skipped_steps(tmp_path: Path) -> None:
    """In half precision the recorded loss has no scale, and a step that overflows is one, without update."""
    job = run(_SCRIPT, tmp_path, ZERO, "2", "1", "fp16")
    for rank in range(RANKS):
        wrote = job.wrote(rank)
        assert 0 < wrote["skipped"] < _STEPS
        assert job.steps(rank) == list(range(_STEPS))
        assert [value for _, value in job.scalars(rank, "loss")] == wrote["losses"]
        norms = [value for _, value in job.scalars(rank, "gradient_norm")]
        assert sum(map(math.isinf, norms)) == wrote["skipped"]
        assert len(job.scalars(rank, "learning_rate")) == _STEPS - wrote["skipped"]


@pytest.mark.nightly
def test_unsharded(tmp_path: Path) -> None:
    """Without ZeRO, too: an engine that steps its optimizer while it is made has not trained yet."""
    job = run(_SCRIPT, tmp_path, ZERO, "0", "1", "fp16")
    for rank in range(RANKS):
        assert job.steps(rank) == list(range(_STEPS))
        assert [value for _, value in job.scalars(rank, "loss")] == job.wrote(rank)["losses"]
        assert job.now(rank).capabilities[Capability.GRADIENT_NORM] is None


@pytest.mark.nightly
def test_pipeline(tmp_path: Path) -> None:
    """Each stage records the steps, and the loss of `train_batch`, which the last one alone computes."""
    job = run("deepspeed_pipeline.py", tmp_path, ZERO)
    for rank in range(RANKS):
        assert job.steps(rank) == list(range(_STEPS))
        assert [value for _, value in job.scalars(rank, "loss")] == job.wrote(rank)
        assert not job.scalars(rank, "loss_2")
        for phase in ("forward", "backward", "optimizer"):
            assert job.seconds_of_steps(rank, phase) > 0.0
        assert job.now(rank).errors == 0


@pytest.mark.nightly
def test_trainer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The Trainer of Transformers leads a loop on DeepSpeed: its numbers of steps, its loss, ZeRO's norm."""
    pytest.importorskip("transformers")
    monkeypatch.setenv("PYTHONPATH", str(TESTS))
    job = run("deepspeed_trainer.py", tmp_path, ZERO)
    for rank in range(RANKS):
        wrote = job.wrote(rank)
        assert job.steps(rank) == [1, 2, 3, 4]
        assert [value for _, value in job.scalars(rank, "loss")] == wrote["losses"]
        assert [value for _, value in job.scalars(rank, "gradient_norm")] == wrote["norms"]
        assert job.checkpoints(rank, "save") == [(2, True), (4, True)]
        assert len(job.phases(rank, "optimizer")) == 4
        assert job.now(rank).errors == 0
