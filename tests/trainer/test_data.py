"""The training text and its batches."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from rankwatch_trainer.data import ShardedBatches, read_corpus, standard_library
from rankwatch_trainer.errors import UsageError

TEXT = torch.arange(240, dtype=torch.uint8)
"""60 sequences of 4 bytes, each with its own first byte."""


def shard(rank: int, world_size: int = 3) -> ShardedBatches:
    """Two micro-batches of two sequences per step."""
    return ShardedBatches(TEXT, shape=(2, 2), context=3, rank=rank, world_size=world_size, seed=5)


def test_epoch() -> None:
    """In an epoch every sequence of the text is used once, by one rank."""
    firsts: list[int] = []
    for rank in range(3):
        batches = shard(rank)
        firsts += torch.cat([next(batches)[..., 0].flatten() for _ in range(5)]).tolist()
    assert sorted(firsts) == list(range(0, 240, 4))


def test_batch() -> None:
    """A sequence has context + 1 consecutive bytes, from which tokens and targets are cut."""
    batch = next(shard(0))
    assert (batch.shape, batch.dtype) == ((2, 2, 4), torch.int64)
    assert torch.equal(batch[0, 0], batch[0, 0, 0] + torch.arange(4))


def test_restored_position() -> None:
    """The batches after a restored position are the same as without a restart, also in the next epoch."""
    straight, resumed = shard(1), shard(1)
    for _ in range(3):
        next(straight)
    resumed.position = straight.position
    for _ in range(7):
        assert torch.equal(next(straight), next(resumed))
    assert straight.position["epoch"] == 1


def test_order_of_epochs() -> None:
    """Two epochs have different orders."""
    batches = shard(0)
    first, second = (torch.cat([next(batches) for _ in range(5)]) for _ in range(2))
    assert not torch.equal(first, second)


def test_too_few_sequences() -> None:
    """A rank that could never fill a batch raises at the start."""
    with pytest.raises(UsageError, match="holds 3 sequences of 4 bytes for each of 20 ranks"):
        shard(0, world_size=20)


def test_standard_library() -> None:
    """Each reading gives the same text, so that all ranks on a machine train on the same bytes."""
    one, other = (read_corpus(standard_library(), 300_000) for _ in range(2))
    assert torch.equal(one.training, other.training)
    assert torch.equal(one.held_out, other.held_out)
    assert len(one.training) + len(one.held_out) == 300_000
    assert b"import" in bytes(one.training.tolist())


def test_corpus_files(tmp_path: Path) -> None:
    """Files are sorted by name and installed packages are skipped. The last tenth is held out."""
    for name, content in {"b.py": "bbbb", "a.py": "aaaa", "sub/c.py": "cc", "notes.txt": "x"}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content)
    (tmp_path / "site-packages").mkdir()
    (tmp_path / "site-packages" / "later.py").write_text("later")
    corpus = read_corpus(tmp_path, 1000)
    assert bytes(corpus.training.tolist()) == b"aaaabbbbc"
    assert bytes(corpus.held_out.tolist()) == b"c"


def test_no_source_files(tmp_path: Path) -> None:
    """The error names the folder, because only the user can repair an empty installation."""
    with pytest.raises(UsageError, match=r"could not read the training text: no \*\.py file under"):
        read_corpus(tmp_path, 1000)
