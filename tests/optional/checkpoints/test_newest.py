"""The newest checkpoint by step, and one line for each newer one that cannot be used."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from rankwatch_checkpoints import CheckpointError, Verification, newest
from rankwatch_checkpoints.layouts import step_of
from rankwatch_checkpoints.newest import candidates
from support.checkpoints import flip, save_distributed, state

module = sys.modules["rankwatch_checkpoints.newest"]  # the package has a function of its name


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("step-00000050", 50),
        ("step_50", 50),
        ("step50", 50),
        ("checkpoint-500", 500),
        ("iter_0000200", 200),
        ("global_step30", 30),
        ("epoch=1-step=500.ckpt", 500),
        ("epoch=3-val_loss=0.25-step=1200.ckpt", 1200),
        ("ckpt_7.pt", 7),
        ("model-step7.pth", 7),
        ("120", 120),
        ("model_9.pt", 9),
        ("last.ckpt", None),
        ("runs", None),
        ("model.safetensors", None),
        ("step-" + "9" * 40, None),
    ],
)
def test_step_of_a_name(name: str, step: int | None) -> None:
    assert step_of(name) == step


def test_order_by_step(tmp_path: Path) -> None:
    """Not by time: a copied or restored checkpoint has any."""
    for step in (9, 100, 20):
        torch.save(state(5), tmp_path / f"step_{step}.pt")
        os.utime(tmp_path / f"step_{step}.pt", (step == 9, step == 9))
    result = newest(tmp_path)
    assert (result.step, result.path, result.passed_over) == (100, tmp_path / "step_100.pt", ())


def test_newer_ones_are_passed_over(tmp_path: Path) -> None:
    save_distributed(tmp_path / "step-10")
    save_distributed(tmp_path / "step-20")
    (tmp_path / "step-20" / ".metadata").unlink()
    save_distributed(tmp_path / "step-30")
    flip(tmp_path / "step-30" / "__0_0.distcp", 8 * 3000)
    torch.save(state(5), tmp_path / "step-40.pt", _use_new_zipfile_serialization=False)
    (tmp_path / "step-50.partial").mkdir()
    (tmp_path / "logs").mkdir()
    result = newest(tmp_path)
    assert (result.step, result.candidates) == (10, 5)
    assert [(each.step, each.reason.partition(":")[0]) for each in result.passed_over] == [
        (50, "incomplete"),
        (40, "unverifiable"),
        (30, "damaged"),
        (20, "incomplete"),
    ]
    assert "tensor" in result.passed_over[2].reason


def test_layouts(tmp_path: Path) -> None:
    """Folders and files of all frameworks are found by their names."""
    for name in ("iter_0000100", "checkpoint-300", "global_step200", "400"):
        (tmp_path / name).mkdir()
    (tmp_path / "epoch=1-step=500.ckpt").write_bytes(b"")
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("100")
    assert [each.step for each in candidates(tmp_path)] == [500, 400, 300, 200, 100]


def test_none_is_good(tmp_path: Path) -> None:
    (tmp_path / "step-1").mkdir()
    result = newest(tmp_path)
    assert (result.found, len(result.passed_over)) == (None, 1)


def test_what_nobody_expected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A training starts also where verification has a fault of its own."""
    for step in (1, 2):
        torch.save(state(5), tmp_path / f"step-{step}.pt")
    plain = module.verify

    def broken(path: Path, **options: Any) -> Verification:
        if path.name == "step-2.pt":
            raise RecursionError("maximum recursion depth exceeded")
        return plain(path, **options)

    monkeypatch.setattr(module, "verify", broken)
    result = newest(tmp_path)
    assert result.step == 1
    assert result.passed_over[0].reason.endswith("RecursionError: maximum recursion depth exceeded")


def test_many_candidates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All are counted, and of too many the newest are looked into."""
    monkeypatch.setattr(module, "_MOST_LOOKED_INTO", 3)
    for step in range(8):
        (tmp_path / f"step-{step}").mkdir()
    result = newest(tmp_path)
    assert (result.candidates, [each.step for each in result.passed_over]) == (8, [7, 6, 5])


def test_no_folder(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="it is not there"):
        newest(tmp_path / "none")
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="Not a directory"):
        newest(tmp_path / "file")
