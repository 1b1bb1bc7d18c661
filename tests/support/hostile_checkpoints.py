"""Small checkpoints that would take all memory, or hours, or raise, if anything believed them.

Each function makes one at a path that does not exist yet, as a folder or a file.
"""

from __future__ import annotations

import json
import os
import pickle
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)

from rankwatch_checkpoints.manifest import NAME, FileDigest, Manifest, as_bytes

HUGE_BYTES = 15 << 40
"""Just below the largest file of ext4."""


def sparse(path: Path, size: int, start: bytes = b"", end: bytes = b"") -> None:
    """A file of this size of which only the start and the end are written."""
    with open(path, "wb") as file:
        file.write(start)
        file.truncate(size)
        file.seek(size - len(end))
        file.write(end)


def huge_zip(path: Path, crc: int) -> None:
    """A file of `torch.save`'s kind with one tensor of 15 TB of zeros, of which nothing is written."""
    name, flags = b"archive/data/0", 0x0808
    size = HUGE_BYTES - 1000
    local = struct.pack("<4s5H3I2H", b"PK\x03\x04", 0, flags, 0, 0, 0, 0, 0, 0, len(name), 0) + name
    descriptor = struct.pack("<4sI2Q", b"PK\x07\x08", crc, size, size)
    wide = struct.pack("<2H2Q", 1, 16, size, size)
    no = 0xFFFFFFFF
    central = struct.pack(
        "<4s6H3I5H2I",
        *(b"PK\x01\x02", 0, 0, flags, 0, 0, 0, crc, no, no, len(name), len(wide), 0, 0, 0, 0, 0),
    )
    directory = central + name + wide
    begin = len(local) + size + len(descriptor)
    end64 = struct.pack("<4sQ2H2I4Q", b"PK\x06\x06", 44, 0x031E, 45, 0, 0, 1, 1, len(directory), begin)
    locator = struct.pack("<4sIQI", b"PK\x06\x07", 0, begin + len(directory), 1)
    end = struct.pack("<4s4H2IH", b"PK\x05\x06", 0, 0, 1, 1, len(directory), no, 0)
    tail = descriptor + directory + end64 + locator + end
    sparse(path, len(local) + size + len(tail), local, tail)


def metadata(**tensors: TensorStorageMetadata) -> Metadata:
    """Metadata of torch.distributed.checkpoint that lists these tensors."""
    return Metadata(dict(tensors), {name: (name,) for name in tensors}, {})


def tensor(shape: tuple[int, ...], chunks: list[ChunkStorageMetadata]) -> TensorStorageMetadata:
    return TensorStorageMetadata(TensorProperties(torch.float32), torch.Size(shape), chunks)


def chunk(offsets: tuple[int, ...], sizes: tuple[int, ...]) -> ChunkStorageMetadata:
    return ChunkStorageMetadata(torch.Size(offsets), torch.Size(sizes))


def stored(name: str, file: str, transforms: list[Any] | None = None, offset: int = 0) -> dict[Any, Any]:
    """One stored item."""
    return {MetadataIndex(name, torch.Size([0]), 0): _StorageInfo(file, offset, 4, transforms)}


def write_metadata(folder: Path, value: Metadata) -> None:
    folder.mkdir()
    (folder / ".metadata").write_bytes(pickle.dumps(value))


def ranks_without_number(path: Path) -> None:
    path.mkdir()
    (path / "rng_state_99999999999.pth").write_bytes(b"x")


def metadata_of_a_rank_without_number(path: Path) -> None:
    path.mkdir()
    (path / f"__{10**100}.metadata").write_bytes(pickle.dumps(metadata()))
    (path / f"__{10**90}_0.distcp").write_bytes(b"")


def sparse_index(path: Path) -> None:
    path.mkdir()
    sparse(path / "model.safetensors.index.json", 1 << 40)


def sparse_metadata(path: Path) -> None:
    path.mkdir()
    sparse(path / ".metadata", 1 << 40)


def sparse_manifest(path: Path) -> None:
    """A digest of 15 TB that nobody has written."""
    path.mkdir()
    sparse(path / "a.pt", HUGE_BYTES)
    digests = {"a.pt": FileDigest(HUGE_BYTES, "0" * 64)}
    (path / NAME).write_bytes(as_bytes(Manifest(1, "sha256", digests)))


def sparse_tensor(path: Path) -> None:
    path.mkdir()
    huge_zip(path / "a.pt", 1)


def nested_folders(path: Path) -> None:
    """More than Python calls functions in functions."""
    path.mkdir()
    at = str(path)
    for _ in range(1500):
        at += "/d"
        os.mkdir(at)  # noqa: PTH102 - a Path parses itself anew


def remove_nested(path: Path) -> None:
    """Remove what `nested_folders` has made, which `shutil.rmtree` cannot."""
    for depth in range(1500, 0, -1):
        os.rmdir(str(path) + "/d" * depth)  # noqa: PTH106


def sizes_of_500_bits(path: Path) -> None:
    """Their product has more digits than Python prints."""
    sizes: Any = (2**500,) * 40
    entry: Any = ChunkStorageMetadata((0,) * 40, (2**499,) * 40)  # type: ignore[arg-type]
    write_metadata(path, metadata(w=TensorStorageMetadata(TensorProperties(torch.float32), sizes, [entry])))


def pickle_of_short_texts(path: Path) -> None:
    """30 MB of which each four bytes make a text, and each fifth a place in a table."""
    path.mkdir()
    (path / ".metadata").write_bytes(b"\x80\x04" + b"\x8c\x02ab\x94" * 6_000_000 + b".")


def pickle_of_references(path: Path) -> None:
    """20 MB of which each byte makes a place in a table."""
    path.mkdir()
    (path / ".metadata").write_bytes(b"\x80\x04N" + b"\x94" * 20_000_000 + b".")


def shared_chunks(path: Path) -> None:
    """36 KB: 600 tensors with one list of 600 chunks."""
    chunks = [chunk((each,), (1,)) for each in range(600)]
    write_metadata(path, metadata(**{f"t{each}": tensor((600,), chunks) for each in range(600)}))


def transform_of_itself(path: Path) -> None:
    """Printed, it would have 2^60 parentheses."""
    value: Any = ("zstd",)
    for _ in range(60):
        value = (value, value)
    made = metadata(w=tensor((1,), [chunk((0,), (1,))]))
    made.storage_data = stored("w", "__0_0.distcp", [value])
    write_metadata(path, made)


def paths_of_one_text(path: Path) -> None:
    """Joined, a path of 100,000 times one text of a megabyte is 100 GB."""
    made = metadata(w=tensor((1,), [chunk((0,), (1,))]))
    made.planner_data = {"w": ("x" * 1_000_000,) * 100_000}
    write_metadata(path, made)


def long_paths_to_storages(path: Path) -> None:
    """200,000 storages 90 keys deep: each has a name of 18,000 characters."""
    keys = (b"}" + b"X\xc8\0\0\0" + b"k" * 200) * 90
    begin, end = b"(X\7\0\0\0storageNX\6\0\0\0", b"X\3\0\0\0cpuK\1tQ"
    storages = b"".join(begin + b"%06d" % each + end for each in range(200_000))
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("archive/data.pkl", b"\x80\2" + keys + b"](" + storages + b"e" + b"s" * 90 + b".")
        file.writestr("archive/data/0", b"1")


def negative_storage(path: Path) -> None:
    """A file that is cut off, and whose walk from entry to entry would go back for ever."""
    content = b"\x80\x02(X\x07\x00\x00\x00storagectorch\nByteStorage\nX\x01\x00\x00\x000NJ\x9c\xff\xff\xfftQ."
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("a/data.pkl", content)
        file.writestr("a/data/0", b"1" * 1000)
    with open(path, "r+b") as raw:
        raw.truncate(600)


def gap_before_the_end(path: Path) -> None:
    """A terabyte between two end records."""
    torch.save({"w": torch.ones(3)}, path)
    data = path.read_bytes()
    locator = struct.pack("<4sIQI", b"PK\x06\x07", 0, data.rindex(b"PK\x06\x06"), 1)
    sparse(path, 1 << 40, data[:-42], locator + data[-22:])


def small_values(path: Path) -> None:
    """60 MB of JSON that take 2 GB."""
    path.mkdir()
    (path / "trainer_state.json").write_bytes(b"[" + b"[]," * 20_000_000 + b"[]]")


def nested_json(path: Path) -> None:
    path.mkdir()
    (path / "trainer_state.json").write_bytes(b"[" * 10_000_000)


def numbers_of_json(path: Path) -> None:
    """Numbers that are no numbers, and more digits than Python prints."""
    path.mkdir()
    header = {"a": {"dtype": "F32", "shape": [10**4200, 10**4200], "data_offsets": [0, 10**4299]}}
    text = json.dumps(header).encode()
    (path / "a.safetensors").write_bytes(len(text).to_bytes(8, "little") + text)
    (path / "trainer_state.json").write_text('{"global_step": 1e999}')
    (path / "integrity.json").write_text('{"algorithm": "sha256", "files": {"\\ud800": 5}}')
    (path / NAME).write_text(f'{{"self": "", "files": {{"a": [1e999, ""]}}, "step": {"9" * 4000}}}')


def manifest_of_any_step(path: Path) -> None:
    """A manifest that is as it was written, but its step is no number."""
    path.mkdir()
    (path / NAME).write_bytes(as_bytes(Manifest(["x"], "sha256", {})))  # type: ignore[arg-type]


def many_shards(path: Path) -> None:
    """An index of 300,000 tensors in as many shards, none of which is there."""
    path.mkdir()
    weights = {f"t{each}": f"m{each}.bin" for each in range(300_000)}
    (path / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": weights}))


def one_file_under_many_names(path: Path) -> None:
    path.mkdir()
    with zipfile.ZipFile(path / "0.pt", "w") as file:
        file.writestr("archive/data/0", b"1" * 10_000_000)
    for each in range(1, 400):
        (path / f"{each}.pt").hardlink_to(path / "0.pt")


def pipes_and_devices(path: Path) -> None:
    path.mkdir()
    for name in (".metadata", "trainer_state.json", NAME, "a.pt", "latest", os.fsdecode(b"\xff\xfe.pt")):
        os.mkfifo(path / name)
    (path / "zero").symlink_to("/dev/zero")
    (path / "self").symlink_to("self")


def pointer_of_other_digits(path: Path) -> None:
    path.mkdir()
    (path / "latest_checkpointed_iteration.txt").write_text("\u00b2")
    (path / "latest").write_text("a\0b" * 1000)


HOSTILE: dict[str, Callable[[Path], None]] = {
    each.__name__: each
    for each in (
        ranks_without_number,
        metadata_of_a_rank_without_number,
        sparse_index,
        sparse_metadata,
        sparse_manifest,
        sparse_tensor,
        nested_folders,
        sizes_of_500_bits,
        pickle_of_short_texts,
        pickle_of_references,
        shared_chunks,
        transform_of_itself,
        paths_of_one_text,
        small_values,
        nested_json,
        numbers_of_json,
        manifest_of_any_step,
        many_shards,
        one_file_under_many_names,
        pipes_and_devices,
        pointer_of_other_digits,
    )
}
HOSTILE_FILES: dict[str, Callable[[Path], None]] = {
    each.__name__: each for each in (long_paths_to_storages, negative_storage, gap_before_the_end)
}
