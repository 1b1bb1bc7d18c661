"""Checkpoints that frameworks themselves have written are good, and damage in them is named."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from rankwatch_checkpoints import Damage, Outcome, newest, verify
from support.checkpoints import flip, truncate

pytestmark = [
    pytest.mark.frameworks,
    pytest.mark.filterwarnings("ignore"),  # of the frameworks
]


@pytest.fixture
def hugging_face(tmp_path: Path) -> Path:
    """Two checkpoints of a Trainer."""
    transformers = pytest.importorskip("transformers")

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(64, 64)

        def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"loss": ((self.layer(x) - labels) ** 2).mean()}

    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path / "out"),
        max_steps=4,
        save_steps=2,
        per_device_train_batch_size=2,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
    )
    rows = [{"x": torch.randn(64), "labels": torch.randn(64)} for _ in range(8)]
    transformers.Trainer(model=Model(), args=arguments, train_dataset=rows).train()
    return tmp_path / "out"


def test_hugging_face(hugging_face: Path) -> None:
    found = verify(hugging_face / "checkpoint-4")
    assert (found.outcome, found.format, found.step, found.problems) == (Outcome.GOOD, "hugging face", 4, [])
    flip(hugging_face / "checkpoint-4" / "optimizer.pt", 8 * 8000)
    (problem,) = verify(hugging_face / "checkpoint-4").problems
    assert (problem.file, problem.tensor.startswith("state.")) == ("optimizer.pt", True)
    result = newest(hugging_face)
    assert (result.step, [each.step for each in result.passed_over]) == (2, [4])
    (hugging_face / "checkpoint-2" / "trainer_state.json").unlink()
    assert verify(hugging_face / "checkpoint-2").outcome is Outcome.INCOMPLETE


def test_safetensors(tmp_path: Path) -> None:
    library = pytest.importorskip("safetensors.torch")
    path = tmp_path / "model.safetensors"
    kinds = (torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.float8_e4m3fn)
    library.save_file({str(kind): torch.zeros(3, 5).to(kind) for kind in kinds}, path)
    found = verify(path)
    assert (found.outcome, found.tensors, found.problems) == (Outcome.GOOD, len(kinds), [])
    truncate(path, path.stat().st_size - 1)
    assert [each.damage for each in verify(path).problems] == [Damage.TRUNCATED]


def test_lightning(tmp_path: Path) -> None:
    lightning = pytest.importorskip("lightning.pytorch")

    class Module(lightning.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(64, 64)

        def training_step(self, batch: torch.Tensor, _: int) -> torch.Tensor:
            return self.layer(batch).square().mean()

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.Adam(self.parameters())

    checkpoints = lightning.callbacks.ModelCheckpoint(dirpath=tmp_path, every_n_train_steps=2, save_top_k=-1)
    trainer = lightning.Trainer(
        max_steps=4,
        accelerator="cpu",
        logger=False,
        callbacks=[checkpoints],
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Module(), torch.utils.data.DataLoader(torch.randn(8, 64), batch_size=2))
    result = newest(tmp_path)
    assert (result.step, result.candidates, result.passed_over) == (4, 2, ())
    assert result.path is not None
    flip(result.path, 8 * (result.path.stat().st_size // 2))
    (problem,) = verify(result.path).problems
    assert "state" in problem.tensor
