"""The training text and its batches."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from rankwatch_trainer.data import ShardedBatches, read_corpus, standard_library
from rankwatch_trainer.errors import UsageError

TEXT = torch.arange(240, dtype=torch.uint8)
"""60 windows of 4 bytes, each recognisable by its first."""


def shard(rank: int, world_size: int = 3) -> ShardedBatches:
    """Two micro-batches of two sequences per step."""
    return ShardedBatches(TEXT, shape=(2, 2), context=3, rank=rank, world_size=world_size, seed=5)


def test_in_an_epoch_the_ranks_share_all_of_the_text_and_no_part_twice() -> None:
    """Every window is seen once, by one rank."""
    firsts: list[int] = []
    for rank in range(3):
        batches = shard(rank)
        firsts += torch.cat([next(batches)[..., 0].flatten() for _ in range(5)]).tolist()
    assert sorted(firsts) == list(range(0, 240, 4))


def test_a_batch_holds_context_plus_one_bytes_in_a_row() -> None:
    """Tokens and targets are cut from it."""
    batch = next(shard(0))
    assert batch.shape == (2, 2, 4)
    assert batch.dtype == torch.int64
    assert torch.equal(batch[0, 0], batch[0, 0, 0] + torch.arange(4))


def test_a_restored_position_goes_on_exactly_there_across_an_epoch() -> None:
    """What follows depends on the position alone."""
    straight, resumed = shard(1), shard(1)
    for _ in range(3):
        next(straight)
    resumed.position = straight.position
    for _ in range(7):
        assert torch.equal(next(straight), next(resumed))
    assert straight.position["epoch"] == 1


def test_each_epoch_has_an_order_of_its_own() -> None:
    """The second epoch is not the first again."""
    batches = shard(0)
    first, second = (torch.cat([next(batches) for _ in range(5)]) for _ in range(2))
    assert not torch.equal(first, second)


def test_too_little_text_for_one_step_is_told() -> None:
    """A rank that could never fill a batch says so at the start."""
    with pytest.raises(UsageError, match="holds 3 sequences of 4 bytes for each of 20 ranks"):
        shard(0, world_size=20)


def test_a_text_shorter_than_one_sequence_is_told() -> None:
    """It holds none."""
    with pytest.raises(UsageError, match="the text of 9 bytes holds 0 sequences of 65 bytes"):
        ShardedBatches(TEXT[:9], shape=(1, 1), context=64, rank=0, world_size=1, seed=5)


def test_the_standard_library_gives_the_same_text_each_time() -> None:
    """Two ranks on one machine read the same bytes."""
    one, other = (read_corpus(standard_library(), 300_000) for _ in range(2))
    assert torch.equal(one.training, other.training)
    assert torch.equal(one.held_out, other.held_out)
    assert len(one.training) + len(one.held_out) == 300_000
    assert b"import" in bytes(one.training.tolist())


def test_files_come_in_the_order_of_their_names_and_packages_installed_later_not_at_all(
    tmp_path: Path,
) -> None:
    """The order does not depend on the file system; the last tenth is held out."""
    for name, content in {"b.py": "bbbb", "a.py": "aaaa", "sub/c.py": "cc", "notes.txt": "x"}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content)
    (tmp_path / "site-packages").mkdir()
    (tmp_path / "site-packages" / "later.py").write_text("later")
    corpus = read_corpus(tmp_path, 1000)
    assert bytes(corpus.training.tolist()) == b"aaaabbbbc"
    assert bytes(corpus.held_out.tolist()) == b"c"


def test_a_folder_without_source_files_is_told(tmp_path: Path) -> None:
    """An empty installation is the user's to mend."""
    with pytest.raises(UsageError, match=r"could not read the training text: no \*\.py file under"):
        read_corpus(tmp_path, 1000)
