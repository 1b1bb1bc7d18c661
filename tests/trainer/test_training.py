"""Training with one rank, in the process of the test."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from rankwatch.blackbox.layout import RecordKind
from rankwatch_trainer.config import TrainerConfig
from rankwatch_trainer.state import learning_rate
from support.jobs.trainer import EMULATED, TINY, end_record, flip_a_byte, read_history
from support.training.blackbox import box, of_kind

Trainer = Callable[..., int]


@pytest.mark.parametrize("accumulation", [1, 2])
def test_loss_decreases(trainer: Trainer, tmp_path: Path, accumulation: int) -> None:
    """Within 30 steps the loss falls well below that of guessing among 256 bytes, which is 5.5 nats."""
    assert trainer(*TINY, "--steps", 30, "--history", tmp_path / "h", "--accumulation", accumulation) == 0
    losses = read_history(tmp_path / "h")["loss"]
    assert len(losses) == 30
    assert 5.3 < losses[0] < 5.8
    assert sum(losses[-5:]) / 5 < 4.0


def test_small_corpus(trainer: Trainer, capsys: pytest.CaptureFixture[str]) -> None:
    """A corpus too small for one step gives one sentence and a failed end record."""
    assert trainer("--corpus-bytes", 10) == 2
    printed = capsys.readouterr()
    assert printed.err.startswith("rankwatch_trainer: the text of 9 bytes holds 0 sequences of 65 bytes")
    assert printed.err.count("\n") == 1
    assert end_record(printed.out)["outcome"] == "failed"


def test_seed(trainer: Trainer, tmp_path: Path) -> None:
    """Weights and data depend only on the seed."""
    losses = []
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        trainer(*TINY, "--steps", 3, "--seed", seed, "--history", tmp_path / name)
        losses.append(read_history(tmp_path / name)["loss"])
    assert losses[0] == losses[1] != losses[2]


def test_output(
    trainer: Trainer, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """Progress and evaluations are logged. Standard output has only the end record."""
    caplog.set_level(logging.INFO)
    assert trainer(*EMULATED, "--steps", 7, "--log-every", 3, "--eval-every", 5) == 0
    messages = [record.getMessage() for record in caplog.records]
    assert [message.split("  ")[0] for message in messages] == [
        *("step 3/7", "step 5/7", "step 6/7", "step 7/7")
    ]
    assert "held-out loss" in messages[1]
    record = end_record(capsys.readouterr().out)
    assert (record["outcome"], record["steps"], record["last_step"]) == ("finished", 7, 7)
    assert record["final_loss"] > 0 and record["steps_per_second"] > 0


def test_loss_nan(trainer: Trainer, tmp_path: Path) -> None:
    """All later losses are NaN too, as in a real run, because the weights are lost."""
    trainer(*EMULATED, "--steps", 4, "--fault", "loss-nan:from=3", "--history", tmp_path / "h")
    assert [loss is None for loss in read_history(tmp_path / "h")["loss"]] == [False, False, True, True]


def test_loss_blowup(trainer: Trainer, tmp_path: Path) -> None:
    """The loss rises far above the value that it had reached."""
    common = (*TINY, "--steps", 40, "--warmup-steps", 2)
    trainer(*common, "--fault", "loss-blowup:from=25", "--history", tmp_path / "h")
    losses = read_history(tmp_path / "h")["loss"]
    assert max(losses[26:]) > losses[23] + 1.0


def test_unequal_batches(trainer: Trainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reported tokens are those of the cut sequences; a full step has 2 x 2 sequences of 32 bytes."""
    monkeypatch.delenv("RANKWATCH_DISABLE")
    monkeypatch.setenv("RANKWATCH_DIR", str(tmp_path))
    flags = (*TINY, "--steps", 12, "--batch-size", 2, "--accumulation", 2)
    assert trainer(*flags, "--fault", "unequal-batches:ratio=4,from=4") == 0
    work = of_kind(box(tmp_path), RecordKind.WORK)
    tokens = [each.payload[0] for each in work if each.name == "tokens"]
    assert tokens[:3] == [128.0] * 3
    assert len({*tokens[3:]}) > 3 and all(32 <= each <= 128 for each in tokens[3:])


def test_checkpoint_write_failure(trainer: Trainer, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It is logged and training goes on; the older checkpoint stays, and later ones are written again."""
    common = (*EMULATED, "--checkpoint-dir", tmp_path, "--checkpoint-every", 2, "--keep-checkpoints", 1)
    fault = "checkpoint-write-failure:from=3,until=7"
    assert trainer(*common, "--steps", 6, "--fault", fault) == 0
    errors = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert errors == [
        f"could not save the checkpoint of step {step} in {tmp_path}, training goes on: "
        "No space left on device"
        for step in (4, 6)
    ]
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000002"]
    assert trainer(*common, "--steps", 8, "--resume", "auto") == 0
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000008"]


def test_resume_from_corrupt_checkpoint(
    trainer: Trainer, tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    """The corrupt checkpoint is logged once, and the run resumes from the older good one."""
    common = (*EMULATED, "--checkpoint-dir", tmp_path, "--checkpoint-every", 2)
    assert trainer(*common, "--steps", 4) == 0
    flip_a_byte(tmp_path / "step-00000004" / "state.pt")
    capsys.readouterr()
    caplog.set_level(logging.INFO)
    assert trainer(*common, "--steps", 6, "--resume", "auto") == 0
    messages = [record.getMessage() for record in caplog.records]
    assert sum("passed over checkpoint of step 4" in message for message in messages) == 1
    assert "resumed from the checkpoint of step 2" in messages
    assert end_record(capsys.readouterr().out)["steps"] == 4


def test_checkpoint_corruption(trainer: Trainer, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Every save is verified, so that the damage is logged at once."""
    fault = "checkpoint-corruption:until=3"
    assert trainer(*EMULATED, "--checkpoint-dir", tmp_path, "--steps", 2, "--fault", fault) == 0
    assert "could not verify" in caplog.text


def test_checkpoints_of_an_earlier_run(
    trainer: Trainer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A new run refuses their directory. The error asks for an empty directory or for --resume."""
    (tmp_path / "step-00000004").mkdir()
    assert trainer(*EMULATED, "--checkpoint-dir", tmp_path) == 2
    printed = capsys.readouterr()
    assert "holds checkpoints of an earlier run, expected an empty directory, or --resume auto" in printed.err
    assert end_record(printed.out)["outcome"] == "failed"


def test_checkpoint_of_another_model(
    trainer: Trainer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error says that the shapes differ, and the exit status is 1."""
    common = (*EMULATED, "--checkpoint-dir", tmp_path, "--steps", 2)
    assert trainer(*common) == 0
    assert trainer(*common, "--resume", "auto", "--width", 8) == 1
    assert "could not resume: the checkpoint is of a model of other shape" in capsys.readouterr().err


def test_learning_rate() -> None:
    """It rises to its peak during the warm-up, and falls to its final value in the last step."""
    config = TrainerConfig(steps=100, warmup_steps=10, learning_rate=1.0, final_learning_rate=0.1)
    rates = [learning_rate(config, completed) for completed in range(100)]
    assert rates[0] == pytest.approx(0.1)
    assert rates[9] == rates[10] == pytest.approx(1.0)
    assert rates[99] == pytest.approx(0.1)
    assert rates[:10] == sorted(rates[:10])
    assert rates[10:] == sorted(rates[10:], reverse=True)


def test_short_run() -> None:
    """A run shorter than its warm-up works, and so does one without a warm-up."""
    config = TrainerConfig(steps=3, warmup_steps=10)
    assert learning_rate(config, 2) < config.learning_rate
    assert learning_rate(TrainerConfig(steps=1, warmup_steps=0), 0) == TrainerConfig().learning_rate
