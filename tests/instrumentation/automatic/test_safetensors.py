"""Checkpoints in files of safetensors, in a program that knows nothing of rankwatch."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.automatic.programs import errors, operations, run_program, saved

pytest.importorskip("torch")
pytest.importorskip("safetensors")
pytestmark = pytest.mark.frameworks

PROGRAM = """
from safetensors.torch import load_file, load_model, save_file, save_model
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.AdamW(model.parameters())
step(10)
save_file(model.state_dict(), HERE + "/model.safetensors", metadata={"format": "pt"})
torch.save(optimizer.state_dict(), HERE + "/optimizer.pt")
step(20)
save_model(model, HERE + "/whole.safetensors")
step(30)
save_file({"image": torch.zeros(3)}, HERE + "/image.safetensors")
load_model(model, HERE + "/whole.safetensors")
step(40)
"""


@pytest.mark.process
def test_files(tmp_path: Path) -> None:
    """A file is one write, also by `save_model`, and joins files of torch.save; its bytes stay the same."""
    (box,) = run_program(PROGRAM, tmp_path / "with")
    size = {each.name: each.stat().st_size for each in (tmp_path / "with").glob("*.*")}
    assert [(each.operation, each.step, each.bytes) for each in operations(box)] == [
        ("save", 10, size["model.safetensors"] + size["optimizer.pt"]),
        ("save", 20, size["whole.safetensors"]),
        ("load", 30, size["whole.safetensors"]),
    ]
    assert [each.stage for each in saved(box) if each.stage] == ["write", "write", "write", "read"]
    assert errors(box) == 0
    run_program(PROGRAM, tmp_path / "without", recorded=False)
    for name in ("model.safetensors", "whole.safetensors"):
        assert (tmp_path / "with" / name).read_bytes() == (tmp_path / "without" / name).read_bytes()
