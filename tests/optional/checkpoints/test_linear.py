"""Verification takes time that grows with what is read, whatever was written to make it grow faster.

Counted are operations of the interpreter and bytes read, not seconds.
"""

from __future__ import annotations

import json
import os
import pickle
import random
import sys
import zipfile
from collections.abc import Callable
from itertools import pairwise, product
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from rankwatch_checkpoints import ManifestWriter, Outcome, merge, verify
from rankwatch_checkpoints.distributed_metadata import Chunk, TensorEntry, coverage_problem
from rankwatch_checkpoints.reading import OpenFile, Pace, Region
from rankwatch_checkpoints.result import Verification
from rankwatch_checkpoints.torch_zip import verify_torch_zip
from support.hostile_checkpoints import chunk, metadata, stored, tensor, write_metadata

SMALL = 40
TIMES = 4
MOST_GROWTH = 1.4 * TIMES
"""For four times the bytes. What is quadratic grows sixteen times."""


def operations(function: Callable[[], object]) -> int:
    """How many operations the interpreter runs."""
    count = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal count
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        function()
    finally:
        sys.settrace(before)
    return count


def chunks_that_overlap_in_one_dimension(folder: Path, size: int) -> None:
    """Each column is cut elsewhere, so half of all chunks lie beside each row."""
    boxes = []
    for each in range(size):
        cuts = (0, each, each + size, 2 * size)
        boxes += [chunk((begin, each), (end - begin, 1)) for begin, end in pairwise(cuts) if begin < end]
    write_metadata(folder, metadata(w=tensor((2 * size, size), boxes)))


def tensors_that_share_chunks(folder: Path, size: int) -> None:
    boxes = [chunk((each,), (1,)) for each in range(size)]
    write_metadata(folder, metadata(**{f"t{each}": tensor((size,), boxes) for each in range(size)}))


def names_that_share_a_tensor(folder: Path, size: int) -> None:
    entry = tensor((size,), [chunk((each,), (1,)) for each in range(size)])
    write_metadata(folder, metadata(**{f"t{each}": entry for each in range(size)}))


def items_that_share_transforms(folder: Path, size: int) -> None:
    made = metadata()
    transforms: list[Any] = [f"transform-{each}" for each in range(10 * size)]
    for each in range(size):
        made.storage_data |= stored(f"t{each}", "__0_0.distcp", transforms, offset=4 * each)
    write_metadata(folder, made)


def items_that_share_a_state(folder: Path, size: int) -> None:
    """Each attribute is looked for in all of them, for each of the items."""
    made = metadata()
    shared = {f"attribute{each}": each for each in range(10 * size)}
    for each in range(size):
        ((index, place),) = stored(f"w{each}", "__0_0.distcp").items()
        made.storage_data[index] = place
        object.__setattr__(index, "__dict__", shared)
    write_metadata(folder, made)


def names_that_share_a_path(folder: Path, size: int) -> None:
    made = metadata(**{f"t{each}": tensor((), [chunk((), ())]) for each in range(size)})
    path = tuple(f"key{each}" for each in range(10 * size))
    made.planner_data = dict.fromkeys(made.state_dict_metadata, path)
    write_metadata(folder, made)


def shards_of_an_index(folder: Path, size: int) -> None:
    folder.mkdir()
    weights = {f"t{each}": f"m{each}.bin" for each in range(10 * size)}
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": weights}))


def folders_of_a_manifest(folder: Path, size: int) -> None:
    folder.mkdir()
    with ManifestWriter(folder, step=1) as manifest:
        for each in range(5 * size):
            with manifest.open(f"{each}/a.txt") as file:
                file.write(b"x")
    merge(folder, 1)


MADE = (
    chunks_that_overlap_in_one_dimension,
    tensors_that_share_chunks,
    names_that_share_a_tensor,
    items_that_share_transforms,
    items_that_share_a_state,
    names_that_share_a_path,
    shards_of_an_index,
    folders_of_a_manifest,
)


@pytest.mark.parametrize("make", MADE, ids=lambda each: each.__name__)
def test_operations_grow_with_the_bytes(tmp_path: Path, make: Callable[[Path, int], None]) -> None:
    """What is read and four times as much of the same take operations in that proportion."""
    counts = []
    for size in (SMALL, TIMES * SMALL):
        folder = tmp_path / f"of-{size}"
        make(folder, size)
        counts.append(operations(lambda folder=folder: verify(folder)))  # type: ignore[misc]
    assert counts[1] <= MOST_GROWTH * counts[0]


def test_metadata_of_many_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each rank's chunks are put to those of the others once, and not all again for each rank."""
    hashed = 0
    plain = Chunk.__hash__

    def counted(each: Chunk) -> int:
        nonlocal hashed
        hashed += 1
        return plain(each)

    monkeypatch.setattr(Chunk, "__hash__", counted)
    (tmp_path / "step-1").mkdir()
    for rank in range(100):
        made = metadata(w=tensor((100,), [chunk((rank,), (1,))]))
        (tmp_path / "step-1" / f"__{rank}.metadata").write_bytes(pickle.dumps(made))
    verify(tmp_path / "step-1")
    assert 100 <= hashed <= 400


def test_cut_file_of_many_entries(tmp_path: Path) -> None:
    """Without a directory the end of each entry is looked for, and no more is read than lies before it."""
    read = []
    for count in (1000, 4000):
        path = tmp_path / f"{count}.pt"
        with zipfile.ZipFile(path, "w") as file:
            for each in range(count):
                file.writestr(f"a/{each}", b"PK\x07\x08")
        os.truncate(path, path.stat().st_size - 50)
        read.append(bytes_read(path))
    assert read[1] <= MOST_GROWTH * read[0]


def bytes_read(path: Path) -> int:
    pace = Pace()
    with OpenFile(os.open(path, os.O_RDONLY), pace) as file:
        verify_torch_zip(Region(file), path.name, Verification(path))
    return pace.bytes


def test_coverage_is_exact() -> None:
    """Every way to cover a small shape by a few boxes: found if and only if each element has one box."""
    dice = random.Random(4)
    exact = 0
    for _ in range(3000):
        shape = tuple(dice.randint(1, 3) for _ in range(dice.randint(1, 3)))
        boxes = tuple(random_box(dice, shape) for _ in range(dice.randint(1, 4)))
        if dice.random() < 0.5:
            boxes = cut(dice, shape)
        elements = [each for box in boxes for each in inside(box)]
        once = sorted(elements) == sorted(product(*map(range, shape)))
        exact += once
        assert (coverage_problem(TensorEntry("torch.float32", shape, boxes)) == "") is once, (shape, boxes)
    assert 500 < exact < 2900


def random_box(dice: random.Random, shape: tuple[int, ...]) -> Chunk:
    begin = tuple(dice.randrange(size) for size in shape)
    return Chunk(begin, tuple(dice.randint(0, size - at) for size, at in zip(shape, begin, strict=True)))


def cut(dice: random.Random, shape: tuple[int, ...]) -> tuple[Chunk, ...]:
    """The shape cut along each dimension, and one of its pieces moved or doubled now and then."""
    cuts = [sorted({0, size, dice.randint(0, size)}) for size in shape]
    boxes = [
        Chunk(tuple(begin for begin, _ in each), tuple(end - begin for begin, end in each))
        for each in product(*(list(pairwise(places)) for places in cuts))
    ]
    if dice.random() < 0.3:
        boxes[dice.randrange(len(boxes))] = dice.choice(boxes)
    return tuple(boxes)


def inside(box: Chunk) -> list[tuple[int, ...]]:
    return list(product(*(range(at, at + size) for at, size in zip(*box, strict=True))))


def test_many_pieces_of_a_real_save(tmp_path: Path) -> None:
    """Cut in two dimensions into 10,000 pieces, as large jobs do, and each piece is looked at once."""
    boxes = [chunk((row, column), (1, 1)) for row in range(100) for column in range(100)]
    write_metadata(tmp_path / "step-1", metadata(w=tensor((100, 100), boxes)))
    found = verify(tmp_path / "step-1")
    assert found.outcome is Outcome.DAMAGED
    assert {each.detail.partition(" at ")[0] for each in found.problems} == {"no shard holds its chunk"}
