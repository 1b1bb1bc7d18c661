"""The settings of the trainer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import pytest

from rankwatch_trainer.config import TrainerConfig, parse_config
from rankwatch_trainer.faults import FAULTS


def test_defaults() -> None:
    assert parse_config([]) == TrainerConfig()


def test_types_of_flags() -> None:
    """Numbers, paths, switches and repeated faults arrive as the dataclass declares them."""
    flags = "--steps 7 --learning-rate 0.5 --checkpoint-dir c --preempt-on-sigterm"
    config = parse_config([*flags.split(), "--fault", "kill:rank=0", "--fault", "stall"])
    assert config == TrainerConfig(
        steps=7,
        learning_rate=0.5,
        checkpoint_dir=Path("c"),
        preempt_on_sigterm=True,
        fault=("kill:rank=0", "stall"),
    )


def test_emulated_device() -> None:
    """It has a tiny model by default. Given values win."""
    config = parse_config(["--device", "emulated", "--batch-size", "5"])
    assert (config.width, config.context, config.batch_size) == (16, 16, 5)


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    """It lists every flag, and every fault with its parameters and the keys that all faults share."""
    with pytest.raises(SystemExit) as stop:
        parse_config(["--help"])
    assert stop.value.code == 0
    text = capsys.readouterr().out
    flags = ["--" + field.name.replace("_", "-") for field in fields(TrainerConfig)]
    shown = (
        "Optimizer steps of the whole run",
        "  from=STEP    its first step, counted from 1",
        "  straggler [factor=1.5]\n      The rank's layers take `factor` times as long",
        "  stall [seconds, one step]\n      The rank stops for `seconds`",
    )
    assert [each for each in (*flags, *shown, *(f"\n  {name}" for name in FAULTS)) if each not in text] == []


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--steps", "0"], "could not use steps = 0 from flag --steps: expected a whole number >= 1"),
        (["--learning-rate", "nan"], "learning_rate = nan from flag --learning-rate: expected a number > 0"),
        (
            ["--layer-forward-seconds", "-1"],
            "= -1.0 from flag --layer-forward-seconds: expected a number >= 0",
        ),
        (["--heads", "7"], "heads = 7 from flag --heads: expected a divisor of width 64"),
        (["--resume", "auto"], "checkpoint_dir = None from default: expected a directory, because --resume"),
        (["--steps", "many"], "steps = 'many' from flag --steps: expected a whole number"),
        (["--stepps", "1"], "unrecognized arguments: --stepps 1"),
        (["--device", "tpu"], "device = 'tpu' from flag --device: expected one of cpu, cuda, emulated"),
        (["--fault", "gremlin"], "no fault is called 'gremlin', expected one of straggler, stall"),
        (["--fault", "checkpoint-corruption"], "checkpoint_dir is None, expected a directory, because fault"),
        (["--fault", "checkpoint-write-failure"], "checkpoint_dir is None, expected a directory, because"),
        (["--history", "/dev/null/h"], "could not write history /dev/null/h: Not a directory"),
        (["--checkpoint-dir", "/dev/null/c"], "could not create checkpoint_dir /dev/null/c: Not a directory"),
        (["--fault", "kill:rank=1"], "rank is '1', expected a whole number below the world size 1"),
        (["--device", "cuda"], "device is cuda, but local rank 0 has no GPU on this machine"),
    ],
)
def test_mistakes(
    trainer: Callable[..., int],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    sentence: str,
) -> None:
    """One sentence names the value and what is expected. Nothing else is printed; the status is 2."""
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    assert trainer(*arguments) == 2
    printed = capsys.readouterr()
    assert sentence in printed.err
    assert printed.err.count("\n") == 1
    assert printed.out == ""
