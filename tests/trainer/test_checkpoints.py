"""The checkpoint store: a checkpoint is complete and verified, or it does not count."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import rankwatch
from rankwatch_checkpoints.manifest import NAME
from rankwatch_trainer.checkpoints import CheckpointStore
from rankwatch_trainer.errors import CheckpointError
from support.jobs.trainer import flip_a_byte, plain_store

STATE = {"weights": torch.arange(5.0), "position": {"epoch": 1}, "random": (3, (1, 2), None)}


def test_save_and_load(tmp_path: Path) -> None:
    """Tensors and plain values come back unchanged. The directory contains nothing else."""
    store = plain_store(tmp_path / "checkpoints")
    store.save(10, STATE)
    loaded = store.load(10)
    assert torch.equal(loaded["weights"], STATE["weights"])
    assert (loaded["position"], loaded["random"]) == (STATE["position"], STATE["random"])
    assert [path.name for path in store.directory.iterdir()] == ["step-00000010"]


def test_silent_corruption(tmp_path: Path) -> None:
    """Checksums are of the intended content, so the damage is found at once, and the older one stays."""
    plain_store(tmp_path, keep=1).save(10, STATE)

    def lying_disk(path: Path, content: bytes) -> None:
        path.write_bytes(content)
        flip_a_byte(path)

    failing = CheckpointStore(tmp_path, rankwatch.DisabledRun(), keep=1, write_file=lying_disk)
    with pytest.raises(CheckpointError, match=r"could not verify .*state\.pt: its SHA-256 is"):
        failing.save(20, STATE)
    assert failing.steps() == [20, 10]
    assert failing.newest_good() == 10


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (lambda step: flip_a_byte(step / "state.pt"), "its SHA-256 is"),
        (lambda step: (step / "state.pt").write_bytes(b"short"), "it has 5 bytes, expected"),
        (lambda step: (step / "state.pt").unlink(), "could not read"),
        (lambda step: (step / NAME).unlink(), "could not read"),
        (lambda step: (step / NAME).write_text("{]"), "it is no manifest of a checkpoint"),
        (lambda step: (step / NAME).write_text('{"format": 1}'), "it is no manifest"),
        (lambda step: (step / NAME).write_text('{"format": 9}'), "it is no manifest of a checkpoint"),
        (lambda step: (step / NAME).write_text("[]"), "it is no manifest of a checkpoint"),
    ],
)
def test_damaged_checkpoint(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: object, sentence: str
) -> None:
    """It is logged once, and the older good one is used."""
    store = plain_store(tmp_path)
    store.save(10, STATE)
    store.save(20, STATE)
    assert callable(damage)
    damage(tmp_path / "step-00000020")
    assert store.newest_good() == 10
    (record,) = caplog.records
    assert record.getMessage().startswith("passed over checkpoint of step 20: ")
    assert sentence in record.getMessage()


def test_damaged_later_checkpoint(tmp_path: Path) -> None:
    """A good one of an earlier step is kept, and the next save of the later step replaces the damaged one."""
    store = plain_store(tmp_path, keep=1)
    store.save(20, STATE)
    flip_a_byte(tmp_path / "step-00000020" / "state.pt")
    store.save(15, STATE)
    assert store.newest_good() == 15
    store.save(20, STATE)
    assert store.newest_good() == 20
    assert store.steps() == [20]


def test_partial_checkpoint(tmp_path: Path) -> None:
    """A partial checkpoint of a dead process is not used. The next save of its step removes it."""
    store = plain_store(tmp_path)
    (tmp_path / "step-00000010.partial").mkdir()
    (tmp_path / "step-00000010.partial" / "rest").write_bytes(b"")
    assert store.newest_good() is None
    store.save(10, STATE)
    assert [path.name for path in (tmp_path / "step-00000010").iterdir() if path.name == "rest"] == []


def test_unexpected_content(tmp_path: Path) -> None:
    """The checksums match, but the content is a pickle of another type. Its code must not run."""
    store = plain_store(tmp_path)
    store.save(10, {"path": tmp_path})
    with pytest.raises(CheckpointError, match="it is no state of a trainer"):
        store.load(10)
