"""The manifest of a checkpoint: size and digest of every file, taken while the files were written.

A rank writes its files through `ManifestWriter.open`, which hashes what passes, so nothing is read twice; its
part of the manifest lies beside them when it closes. When all ranks are done, one calls `merge`: the manifest
appears last, by a rename, so a checkpoint without one is not finished. The trainer brings the ranks together;
this module calls no collective.

    with ManifestWriter(folder, step=100, rank=rank) as manifest:
        with manifest.open(f"model-{rank}.pt") as file:
            torch.save(model.state_dict(), file)
    dist.barrier()
    if rank == 0:
        merge(folder, world_size)
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import Any, NamedTuple

from rankwatch.untrusted.paths import write_at_once
from rankwatch_checkpoints.reading import parse_json
from rankwatch_checkpoints.result import CheckpointError

NAME = "rankwatch-manifest.json"
_PART = re.compile(r"rankwatch-manifest\.rank-(\d+)\.json")
_FORMAT = "rankwatch checkpoint manifest 1"
_LARGEST_SIZE = (1 << 63) - 1
ALGORITHMS = ("sha256", "sha512", "blake2b", "sha1", "md5")
"""Algorithms that a manifest may be made with; the last two only because Megatron's may."""


class FileDigest(NamedTuple):
    """What a file must be. `bytes` is None in the manifest of another tool that does not say."""

    bytes: int | None
    digest: str


class Manifest(NamedTuple):
    """Content of a manifest; `files` by their path in the checkpoint."""

    step: int | None
    algorithm: str
    files: Mapping[str, FileDigest]


def digest_of(content: bytes, algorithm: str = "sha256") -> FileDigest:
    """Size and digest of a content as it is in memory, before a disk has touched it."""
    return FileDigest(len(content), hashlib.new(algorithm, content, usedforsecurity=False).hexdigest())


class HashingFile(io.RawIOBase):
    """A file opened for writing from start to end, hashed on the way. `torch.save` takes it as its file."""

    def __init__(self, path: Path, algorithm: str = "sha256") -> None:
        super().__init__()
        self._file = open(path, "wb")  # noqa: SIM115 - close() closes it
        self._digest = hashlib.new(algorithm, usedforsecurity=False)
        self._bytes = 0

    def writable(self) -> bool:
        return True

    def write(self, content: Any) -> int:
        self._file.write(content)
        self._digest.update(content)
        count = memoryview(content).nbytes
        self._bytes += count
        return count

    def tell(self) -> int:
        return self._bytes

    def flush(self) -> None:
        if not self._file.closed:
            self._file.flush()

    def close(self) -> None:
        """Flush and wait until the disk holds the content."""
        if not self._file.closed:
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
        super().close()

    def result(self) -> FileDigest:
        """Size and digest of what was written."""
        return FileDigest(self._bytes, self._digest.hexdigest())


class ManifestWriter:
    """The part of one rank; as a context manager it writes the part if no exception leaves the block."""

    def __init__(self, folder: Path, *, step: int, rank: int = 0, algorithm: str = "sha256") -> None:
        self._folder = folder
        self._step = step
        self._rank = rank
        self._algorithm = algorithm
        self._open: dict[str, HashingFile] = {}
        self._files: dict[str, FileDigest] = {}

    def open(self, name: str) -> HashingFile:
        """Return a file of the checkpoint, to be written from start to end and closed."""
        path = self._folder / _require_inside(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        self._open[name] = HashingFile(path, self._algorithm)
        return self._open[name]

    def add(self, name: str, digest: FileDigest) -> None:
        """Note a file that was written in another way."""
        self._files[_require_inside(name)] = digest

    def finish(self) -> None:
        """Close the files and write the part."""
        for name, file in self._open.items():
            file.close()
            self._files[name] = file.result()
        content = as_bytes(Manifest(self._step, self._algorithm, self._files))
        write_at_once(self._folder / f"rankwatch-manifest.rank-{self._rank:05d}.json", content, lasting=True)

    def __enter__(self) -> ManifestWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.finish()
        for file in self._open.values():
            file.close()


def merge(folder: Path, world_size: int) -> Manifest:
    """Write the manifest from the parts of all ranks, last of all, and remove the parts.

    Raises CheckpointError if a part is missing, of another step, or lists a file of another rank.
    """
    parts = {int(match[1]): path for path in folder.iterdir() if (match := _PART.fullmatch(path.name))}
    missing = sorted(set(range(world_size)) - set(parts))
    if missing:
        shown = ", ".join(map(str, missing[:10]))
        raise CheckpointError(
            f"could not merge the manifests in {folder}: rank {shown} has not written its part"
        )
    files: dict[str, FileDigest] = {}
    kinds = set()
    for rank in range(world_size):
        part = parse(parts[rank].read_bytes(), parts[rank])
        kinds.add((part.step, part.algorithm))
        twice = sorted(files.keys() & part.files)
        if twice:
            raise CheckpointError(f"could not merge the manifests in {folder}: two ranks wrote {twice[0]}")
        files.update(part.files)
    if len(kinds) != 1:
        raise CheckpointError(
            f"could not merge the manifests in {folder}: the ranks' parts are of several steps"
        )
    step, algorithm = kinds.pop()
    merged = Manifest(step, algorithm, files)
    write_at_once(folder / NAME, as_bytes(merged), lasting=True)
    for path in parts.values():
        path.unlink(missing_ok=True)
    return merged


def as_bytes(manifest: Manifest) -> bytes:
    """Return the manifest as its file, with a digest of itself, so that no flipped bit in it stays unseen."""
    body = {
        "format": _FORMAT,
        "step": manifest.step,
        "algorithm": manifest.algorithm,
        "files": {name: list(manifest.files[name]) for name in sorted(manifest.files)},
    }
    return json.dumps({**body, "self": _self_digest(body)}, indent=1).encode() + b"\n"


def parse(data: bytes, path: Path) -> Manifest:
    """Return the manifest in a file's content. Raises CheckpointError unless it is as it was written.

    Raises TooMuchError for one that lists more files than are read.
    """
    try:
        body = parse_json(data)
        own = body.pop("self")
        files = {
            _require_inside(name): FileDigest(_require_size(size), str(hexed))
            for name, (size, hexed) in body["files"].items()
        }
        manifest = Manifest(_require_size(body["step"]), body["algorithm"], files)
        whole = body["format"] == _FORMAT and own == _self_digest(body) and data == as_bytes(manifest)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise CheckpointError(f"could not use {path}: it is no manifest of a checkpoint") from None
    if not whole or manifest.algorithm not in ALGORITHMS:
        raise CheckpointError(f"could not use {path}: it differs from what was written")
    return manifest


def parse_megatron(data: bytes, path: Path) -> Manifest:
    """Parse Megatron's `integrity.json`. Raises CheckpointError if it is none, and TooMuchError."""
    try:
        body = parse_json(data)
        algorithm = str(body["algorithm"])
        files = {
            _require_inside(name): FileDigest(None, str(hexed).lower())
            for name, hexed in body["files"].items()
        }
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise CheckpointError(f"could not use {path}: it is no integrity.json of Megatron") from None
    if algorithm not in ALGORITHMS:
        raise CheckpointError(f"could not use {path}: its algorithm {algorithm[:40]!r} is unknown")
    return Manifest(None, algorithm, files)


def parts_in(names: list[str]) -> list[str]:
    """Return the names of parts that no rank has merged yet."""
    return [name for name in names if _PART.fullmatch(name)]


def _self_digest(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def _require_inside(name: str) -> str:
    path = PurePosixPath(name)
    if not name or path.is_absolute() or ".." in path.parts or "\0" in name:
        raise CheckpointError(
            f"could not use the name {name!r:.200} in a manifest: it leads out of the checkpoint"
        )
    return name


def _require_size(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= _LARGEST_SIZE:
        raise ValueError("it is no size, and no step")
    return value
