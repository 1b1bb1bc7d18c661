"""Training as rank 0 of 1, in this process."""

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
def test_the_loss_goes_down_on_real_text(trainer: Trainer, tmp_path: Path, accumulation: int) -> None:
    """From that of guessing among 256 bytes (5.5 nats) to clearly less, in 30 steps."""
    assert trainer(*TINY, "--steps", 30, "--history", tmp_path / "h", "--accumulation", accumulation) == 0
    losses = read_history(tmp_path / "h")["loss"]
    assert len(losses) == 30
    assert 5.3 < losses[0] < 5.8
    assert sum(losses[-5:]) / 5 < 4.0


def test_a_corpus_too_small_for_one_step_is_told(
    trainer: Trainer, capsys: pytest.CaptureFixture[str]
) -> None:
    """One sentence, exit status 2."""
    assert trainer("--corpus-bytes", 10) == 2
    printed = capsys.readouterr()
    assert printed.err.startswith("rankwatch_trainer: the text of 9 bytes holds 0 sequences of 65 bytes")
    assert printed.err.count("\n") == 1
    assert end_record(printed.out)["outcome"] == "failed"


def test_the_same_seed_gives_the_same_losses_and_another_seed_others(
    trainer: Trainer, tmp_path: Path
) -> None:
    """Weights and data hang on the seed alone."""
    losses = []
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        trainer(*TINY, "--steps", 3, "--seed", seed, "--history", tmp_path / name)
        losses.append(read_history(tmp_path / name)["loss"])
    assert losses[0] == losses[1] != losses[2]


def test_rank_0_tells_progress_evaluation_and_the_end(
    trainer: Trainer, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """One line every few steps; standard output holds the end record alone."""
    caplog.set_level(logging.INFO)
    assert trainer(*EMULATED, "--steps", 7, "--log-every", 3, "--eval-every", 5) == 0
    messages = [record.getMessage() for record in caplog.records]
    assert [message.split("  ")[0] for message in messages] == [
        *("step 3/7", "step 5/7", "step 6/7", "step 7/7"),
    ]
    assert "held-out loss" in messages[1]
    record = end_record(capsys.readouterr().out)
    assert (record["outcome"], record["steps"], record["last_step"]) == ("finished", 7, 7)
    assert record["final_loss"] > 0 and record["steps_per_second"] > 0


def test_a_nan_loss_spoils_the_rest_of_the_run(trainer: Trainer, tmp_path: Path) -> None:
    """As it does in earnest: the weights are lost."""
    trainer(*EMULATED, "--steps", 4, "--fault", "loss-nan:from=3", "--history", tmp_path / "h")
    assert [loss is None for loss in read_history(tmp_path / "h")["loss"]] == [False, False, True, True]


def test_a_blown_up_learning_rate_makes_the_loss_diverge(trainer: Trainer, tmp_path: Path) -> None:
    """The loss leaves what it had come down to."""
    common = (*TINY, "--steps", 40, "--warmup-steps", 2)
    trainer(*common, "--fault", "loss-blowup:from=25", "--history", tmp_path / "h")
    losses = read_history(tmp_path / "h")["loss"]
    assert max(losses[26:]) > losses[23] + 1.0


def test_unequal_sequences_are_trained_on_and_their_tokens_reported(
    trainer: Trainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two sequences of 32 bytes in each of two micro-batches, and from step 4 on of a quarter and more."""
    monkeypatch.delenv("RANKWATCH_DISABLE")
    monkeypatch.setenv("RANKWATCH_DIR", str(tmp_path))
    flags = (*TINY, "--steps", 12, "--batch-size", 2, "--accumulation", 2)
    assert trainer(*flags, "--fault", "unequal-batches:ratio=4,from=4") == 0
    work = of_kind(box(tmp_path), RecordKind.WORK)
    tokens = [each.payload[0] for each in work if each.name == "tokens"]
    assert tokens[:3] == [128.0] * 3
    assert len({*tokens[3:]}) > 3 and all(32 <= each <= 128 for each in tokens[3:])


def test_training_goes_on_when_checkpoints_cannot_be_written(
    trainer: Trainer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The failure is told, the older checkpoint stays, the next one is written again."""
    common = (*EMULATED, "--checkpoint-dir", tmp_path, "--checkpoint-every", 2, "--keep-checkpoints", 1)
    fault = "checkpoint-write-failure:from=3,until=7"
    assert trainer(*common, "--steps", 6, "--fault", fault) == 0
    told = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert told == [
        f"could not save the checkpoint of step {step} in {tmp_path}, training goes on: "
        "No space left on device"
        for step in (4, 6)
    ]
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000002"]
    assert trainer(*common, "--steps", 8, "--resume", "auto") == 0
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000008"]


def test_resume_passes_over_a_corrupt_checkpoint(
    trainer: Trainer,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """One sentence tells it, and the older good one is used."""
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


def test_corruption_on_the_way_to_the_disk_is_found_at_once(
    trainer: Trainer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Verification follows every save."""
    fault = "checkpoint-corruption:until=3"
    assert trainer(*EMULATED, "--checkpoint-dir", tmp_path, "--steps", 2, "--fault", fault) == 0
    assert "could not verify" in caplog.text


def test_a_new_run_does_not_mix_with_the_checkpoints_of_an_earlier_one(
    trainer: Trainer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It asks for another directory, or for a resume."""
    (tmp_path / "step-00000004").mkdir()
    assert trainer(*EMULATED, "--checkpoint-dir", tmp_path) == 2
    printed = capsys.readouterr()
    assert "holds checkpoints of an earlier run, expected an empty directory, or --resume auto" in printed.err
    assert end_record(printed.out)["outcome"] == "failed"


def test_a_checkpoint_of_another_model_is_told(
    trainer: Trainer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One sentence, exit status 1."""
    common = (*EMULATED, "--checkpoint-dir", tmp_path, "--steps", 2)
    assert trainer(*common) == 0
    assert trainer(*common, "--resume", "auto", "--width", 8) == 1
    assert "could not resume: the checkpoint is of a model of other shape" in capsys.readouterr().err


def test_the_learning_rate_rises_to_its_peak_and_falls_to_its_final_value() -> None:
    """The last step trains with the final learning rate, the first after the warm-up with the peak."""
    config = TrainerConfig(steps=100, warmup_steps=10, learning_rate=1.0, final_learning_rate=0.1)
    rates = [learning_rate(config, completed) for completed in range(100)]
    assert rates[0] == pytest.approx(0.1)
    assert rates[9] == rates[10] == pytest.approx(1.0)
    assert rates[99] == pytest.approx(0.1)
    assert rates[:10] == sorted(rates[:10])
    assert rates[10:] == sorted(rates[10:], reverse=True)


def test_a_run_shorter_than_its_warm_up_works() -> None:
    """No division by nothing."""
    config = TrainerConfig(steps=3, warmup_steps=10)
    assert learning_rate(config, 2) < config.learning_rate
    assert learning_rate(TrainerConfig(steps=1, warmup_steps=0), 0) == TrainerConfig().learning_rate
