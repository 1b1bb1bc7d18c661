"""Folders of torch.distributed.checkpoint, shard by shard and tensor by tensor."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, Metadata

from rankwatch_checkpoints import Damage, Outcome, Verification, distributed, pickles, verify
from rankwatch_checkpoints.distributed_metadata import (
    Chunk,
    TensorEntry,
    coverage_problem,
    read_metadata,
)
from support.checkpoints import flip, random_bits, save_distributed, truncate
from support.hostile_pickles import attacks


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    return save_distributed(tmp_path / "step-7")


@pytest.fixture
def metadata(saved: Path) -> Metadata:
    with open(saved / ".metadata", "rb") as file:
        read = pickle.load(file)
    assert isinstance(read, Metadata)
    return read


def write(saved: Path, metadata: Metadata) -> None:
    with open(saved / ".metadata", "wb") as file:
        pickle.dump(metadata, file)


def problems(found: Verification) -> list[tuple[str, Damage, str]]:
    return [(each.file, each.damage, each.tensor) for each in found.problems]


def test_good(saved: Path) -> None:
    found = verify(saved)
    assert (found.outcome, found.format, found.step, found.problems) == (Outcome.GOOD, "distributed", 7, [])
    assert found.tensors == 6  # five tensors, one of them under two names, less the tied one, and `step`


def test_a_flipped_bit_names_its_tensor(saved: Path) -> None:
    """The region in which the bit lies belongs to one tensor, and that is named, header or content."""
    data = (saved / ".metadata").read_bytes()
    items = read_metadata(data).items
    assert len(items) == 6
    for item in items:
        for place in (
            item.offset,
            item.offset + 40,
            item.offset + item.length // 2,
            item.offset + item.length - 1,
        ):
            flip(saved / item.file, place * 8 + 3)
            found = verify(saved)
            assert {each.tensor for each in found.problems} == {item.tensor}, place
            flip(saved / item.file, place * 8 + 3)


def test_random_bits_of_shards(saved: Path) -> None:
    shard = saved / "__0_0.distcp"
    for bit in random_bits(shard, 40, seed=2):
        flip(shard, bit)
        found = verify(saved)
        assert found.outcome is Outcome.DAMAGED
        assert all(each.tensor for each in found.problems), bit
        flip(shard, bit)


def test_random_bits_of_the_metadata(saved: Path) -> None:
    """A pickle has no checksum. What names, shapes, types and places say is held against the shards; what
    stays unseen is listed in docs/checkpoint-verification.md, and is none of these."""
    path = saved / ".metadata"
    whole = read_metadata(path.read_bytes())
    unseen = 0
    for bit in random_bits(path, 200, seed=3):
        flip(path, bit)
        found = verify(saved)
        if found.outcome is Outcome.GOOD:
            unseen += 1
            after = read_metadata(path.read_bytes())
            assert {each.shape for each in after.tensors.values()} == {
                each.shape for each in whole.tensors.values()
            }
            assert [each[2:] for each in after.items] == [each[2:] for each in whole.items]
        flip(path, bit)
    assert unseen < 20


def test_truncated_shard(saved: Path) -> None:
    truncate(saved / "__0_0.distcp", 4000)
    found = verify(saved)
    assert found.outcome is Outcome.DAMAGED
    assert {each.damage for each in found.problems} == {Damage.TRUNCATED}
    assert all(each.tensor for each in found.problems)


def test_missing_shard(saved: Path) -> None:
    (saved / "__0_0.distcp").unlink()
    found = verify(saved)
    assert {each.damage for each in found.problems} == {Damage.MISSING}
    assert len(found.problems) == 6


def test_bytes_behind_the_last_tensor(saved: Path) -> None:
    with open(saved / "__0_0.distcp", "ab") as file:
        file.write(b"more")
    assert problems(verify(saved)) == [("__0_0.distcp", Damage.EXTRA, "")]


def test_without_metadata(saved: Path) -> None:
    """`.metadata` is written last: without it the save is not finished."""
    (saved / ".metadata").rename(saved / ".metadata.tmp")
    found = verify(saved)
    assert (found.outcome, found.problems[0].damage) == (Outcome.INCOMPLETE, Damage.UNFINISHED)


def test_left_over_shard(saved: Path) -> None:
    """A shard of an earlier save into the same folder is no damage."""
    (saved / "__5_0.distcp").write_bytes((saved / "__0_0.distcp").read_bytes())
    found = verify(saved)
    assert found.outcome is Outcome.GOOD
    assert any("left over" in each.reason for each in found.unchecked)


def test_metadata_of_each_rank(saved: Path) -> None:
    """With use_collectives=False every rank writes its own; a rank without it has not finished."""
    (saved / ".metadata").rename(saved / "__0.metadata")
    assert verify(saved).outcome is Outcome.GOOD
    (saved / "__1_0.distcp").write_bytes(b"")
    found = verify(saved)
    assert ("__1.metadata", Damage.UNFINISHED, "") in problems(found)


@pytest.mark.parametrize("file", ["../outside", "/etc/passwd", "a/../../b", ""])
def test_paths_out_of_the_folder(saved: Path, metadata: Metadata, file: str) -> None:
    for info in metadata.storage_data.values():
        info.relative_path = file
    write(saved, metadata)
    found = verify(saved)
    assert found.outcome is Outcome.DAMAGED
    assert "leads out of the folder" in found.problems[0].detail


@pytest.mark.parametrize(("offset", "length"), [(-1, 10), (0, -5), (0, 1 << 70), (1 << 70, 1)])
def test_places_that_cannot_be(saved: Path, metadata: Metadata, offset: int, length: int) -> None:
    info = next(iter(metadata.storage_data.values()))
    info.offset, info.length = offset, length
    write(saved, metadata)
    assert verify(saved).outcome is Outcome.DAMAGED


def test_transformed_shards_are_not_judged(saved: Path, metadata: Metadata) -> None:
    for info in metadata.storage_data.values():
        info.transform_descriptors = ["zstd"]
    write(saved, metadata)
    found = verify(saved)
    assert "zstd" in found.unchecked[-1].reason
    assert found.outcome is Outcome.UNVERIFIABLE


def test_a_chunk_without_bytes(saved: Path, metadata: Metadata) -> None:
    entry = metadata.state_dict_metadata["model.norm.bias"]
    entry.size = torch.Size([9])  # type: ignore[union-attr]
    entry.chunks.append(ChunkStorageMetadata(torch.Size([7]), torch.Size([2])))  # type: ignore[union-attr]
    write(saved, metadata)
    assert (".metadata", Damage.MISSING, "model.norm.bias") in problems(verify(saved))


def test_coverage() -> None:
    """The chunks must fill the shape exactly."""

    def problem(shape: tuple[int, ...], *chunks: tuple[tuple[int, ...], tuple[int, ...]]) -> str:
        return coverage_problem(TensorEntry("torch.float32", shape, tuple(Chunk(*each) for each in chunks)))

    assert problem((4, 4), ((0, 0), (2, 4)), ((2, 0), (2, 2)), ((2, 2), (2, 2))) == ""
    assert problem((), ((), ())) == ""
    assert "hold 12 of the 16" in problem((4, 4), ((0, 0), (3, 4)))
    assert "beyond" in problem((4, 4), ((2, 0), (3, 4)))
    assert "overlap" in problem((4, 4), ((0, 0), (3, 4)), ((1, 0), (1, 4)))
    assert problem((0, 4)) == ""
    assert "overlap" in problem((4, 4), ((0, 0), (2, 4)), ((0, 0), (2, 4)))


@pytest.mark.parametrize("name", list(attacks(Path("canary"))))
def test_hostile_metadata(saved: Path, tmp_path: Path, name: str) -> None:
    """A `.metadata` that would run a command when unpickled runs nothing, and is called damaged."""
    canary = tmp_path / "canary"
    (saved / ".metadata").write_bytes(attacks(canary)[name])
    assert verify(saved).outcome is Outcome.DAMAGED
    assert not canary.exists()


def test_pipes_and_links(saved: Path, tmp_path: Path) -> None:
    """A FIFO in place of a shard does not block; a link out of the folder is not followed."""
    shard = saved / "__0_0.distcp"
    shard.rename(tmp_path / "elsewhere")
    os.mkfifo(shard)
    assert verify(saved).problems[0].detail == "it is no regular file"
    shard.unlink()
    shard.symlink_to(tmp_path / "elsewhere")
    assert "symbolic link that leads out" in verify(saved).problems[0].detail


@pytest.mark.parametrize(
    ("module", "limit", "value"), [(pickles, "MOST_MEMORY_BYTES", 4000), (distributed, "MOST_PIECES", 5)]
)
def test_more_than_is_read(
    saved: Path, monkeypatch: pytest.MonkeyPatch, module: ModuleType, limit: str, value: int
) -> None:
    """A save of more ranks than fit into memory is not damaged, and nobody can call it good, whatever else
    lies there."""
    torch.save({"a": torch.ones(3)}, saved / "rng_state.pth")
    monkeypatch.setattr(module, limit, value)
    found = verify(saved)
    assert (found.outcome, found.problems) == (Outcome.UNVERIFIABLE, [])
    (unchecked,) = found.unchecked
    assert (unchecked.file, unchecked.reason.endswith("than are read")) == (".metadata", True)


def test_one_shard_of_two_spellings(saved: Path, metadata: Metadata) -> None:
    """A shard is read once, whatever its names in the metadata look like."""
    for each, info in enumerate(metadata.storage_data.values()):
        info.relative_path = ("./" * (each % 3)) + info.relative_path
    write(saved, metadata)
    assert verify(saved).outcome is Outcome.GOOD
