"""The `.metadata` of torch.distributed.checkpoint: which bytes lie where, read as data."""

from __future__ import annotations

import math
import os
import re
from collections import defaultdict
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from hashlib import blake2b
from typing import Any, NamedTuple, TypeGuard

from rankwatch_checkpoints.pickles import (
    Call,
    Global,
    Pairs,
    PickleError,
    name_of,
    read_pickle,
    state_of,
)
from rankwatch_checkpoints.reading import TooMuchError
from rankwatch_checkpoints.result import MOST_PROBLEMS
from rankwatch_checkpoints.tensor_names import LARGEST_SIZE, MOST_DIMENSIONS, element_bytes, is_shape

_PACKAGE = "torch.distributed.checkpoint.metadata."
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_ATTRIBUTES = {
    "Metadata": ("state_dict_metadata", "planner_data", "storage_data", "storage_meta", "version"),
    "TensorStorageMetadata": ("properties", "size", "chunks"),
    "ChunkStorageMetadata": ("offsets", "sizes"),
    "MetadataIndex": ("fqn", "offset", "index"),
    "StorageMeta": ("checkpoint_id", "save_id", "load_id", "modules"),
}
_PATHS = tuple(f"pathlib.{module}{kind}Path" for module in ("", "_local.") for kind in ("Posix", "Windows"))
_PLACE = "torch.distributed.checkpoint.filesystem._StorageInfo"
_PLACE_ATTRIBUTES = ("relative_path", "offset", "length", "transform_descriptors")
MOST_PIECES = 3_000_000
"""Tensors, chunks and stored items of the metadata of all ranks. One takes about 400 bytes."""
_LEAST_PIECE_BYTES = 8
"""Of a chunk in a pickle. torch writes about 50."""
_LONGEST_NAME = 4096
"""Characters of a tensor or file, which are compared with others."""
_MOST_TRANSFORMS = 100
_PRIME = (1 << 61) - 1


class Chunk(NamedTuple):
    """A box of a tensor."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]


class TensorEntry(NamedTuple):
    """A tensor of the state dict."""

    dtype: str
    shape: tuple[int, ...]
    chunks: tuple[Chunk, ...]


class StoredItem(NamedTuple):
    """Bytes of one chunk, or of one object that is no tensor."""

    tensor: str
    offsets: tuple[int, ...] | None
    """Of the chunk in the tensor; None for an object."""
    file: str
    offset: int
    length: int
    transforms: tuple[str, ...]
    """Names of what the bytes went through, such as zstd."""


@dataclass
class DistributedMetadata:
    """What `.metadata` says, and in what it contradicts itself."""

    tensors: dict[str, TensorEntry] = field(default_factory=dict)
    objects: set[str] = field(default_factory=set)
    items: list[StoredItem] = field(default_factory=list)
    contradictions: list[tuple[str, str]] = field(default_factory=list)
    """Name of a tensor or "", and a sentence; at most MOST_PROBLEMS."""
    more_contradictions: int = 0

    def contradict(self, name: str, detail: str) -> None:
        """Note a contradiction; beyond MOST_PROBLEMS they are only counted."""
        if len(self.contradictions) < MOST_PROBLEMS:
            self.contradictions.append((name, detail))
        else:
            self.more_contradictions += 1

    @property
    def pieces(self) -> int:
        """What it holds, each of which takes memory."""
        chunks = sum(len(each.chunks) for each in self.tensors.values())
        return len(self.tensors) + len(self.objects) + len(self.items) + chunks

    def chunk_of(self, item: StoredItem) -> Chunk | None:
        """Return the chunk whose bytes these are; to be asked for when all ranks' metadata is merged."""
        return self._chunks.get(item.tensor, {}).get(item.offsets)

    @cached_property
    def _chunks(self) -> dict[str, dict[tuple[int, ...] | None, Chunk]]:
        return {name: {each.offsets: each for each in tensor.chunks} for name, tensor in self.tensors.items()}


def read_metadata(data: bytes) -> DistributedMetadata:
    """Return the metadata in a pickle. Raises PickleError for what is none, and TooMuchError."""
    pickled = read_pickle(data)
    if not _is_a("Metadata", pickled.value):
        raise PickleError("the pickle holds no Metadata of torch.distributed.checkpoint")
    found = DistributedMetadata()
    if pickled.end != len(data):
        found.contradict("", f"{len(data) - pickled.end} bytes lie behind its pickle")
    entries = state_of(pickled.value, "state_dict_metadata")
    stored = state_of(pickled.value, "storage_data")
    if not isinstance(entries, Pairs) or not isinstance(stored, Pairs):
        raise PickleError("the pickle has no state_dict_metadata and storage_data")
    most_chunks = len(data) // _LEAST_PIECE_BYTES
    for name, entry in entries:
        most_chunks = _add_entry(found, name, entry, most_chunks)
    for index, info in stored:
        _add_item(found, index, info)
    _compare_names(found, state_of(pickled.value, "planner_data"))
    _check_origin(found, pickled.value)
    return found


def _is_a(name: str, value: Any) -> bool:
    """Return True for an object of a class of the metadata that has no attribute but its own."""
    if not isinstance(value, Call) or name_of(value) != f"{_PACKAGE}{name}":
        return False
    state, known = value.state, _ATTRIBUTES.get(name, ())
    if not isinstance(state, Pairs):
        return True
    return len(state) <= len(known) and all(isinstance(key, str) and key in known for key, _ in state)


def _check_origin(found: DistributedMetadata, value: Any) -> None:
    """Check the parts that say who saved it, and when: they must at least be what torch writes."""
    version, meta = state_of(value, "version"), state_of(value, "storage_meta")
    if version is not None and not (isinstance(version, str) and re.fullmatch(r"\d+\.\d+\.\d+", version)):
        found.contradict("", "its version is no version")
    if meta is None:
        return
    path, save = state_of(meta, "checkpoint_id"), state_of(meta, "save_id")
    known_path = path is None or isinstance(path, str) or name_of(path) in _PATHS
    known_save = save is None or (isinstance(save, str) and _UUID.fullmatch(save))
    if not _is_a("StorageMeta", meta) or not known_path or not known_save:
        found.contradict("", "its storage_meta is not what torch writes")


def _add_entry(found: DistributedMetadata, name: Any, entry: Any, most_chunks: int) -> int:
    """Add what lies under a name; returns how many chunks others may have.

    A pickle can name one list of chunks over and over. Raises TooMuchError if they are more than its bytes.
    """
    if not isinstance(name, str) or len(name) > _LONGEST_NAME:
        found.contradict("", "a key of its state dict is no text, or too long")
    elif name in found.tensors or name in found.objects:
        found.contradict(name, "it lists the name twice")
    elif _is_a("BytesStorageMetadata", entry):
        found.objects.add(name)
    elif _is_a("TensorStorageMetadata", entry):
        chunks = state_of(entry, "chunks")
        most_chunks -= len(chunks) if isinstance(chunks, list) else 0
        if most_chunks < 0:
            raise TooMuchError("its tensors share lists of chunks that are longer than itself")
        _add_tensor(found, name, entry, chunks)
    else:
        found.contradict(name, "it is neither a tensor nor bytes")
    return most_chunks


def _add_tensor(found: DistributedMetadata, name: str, entry: Any, chunks: Any) -> None:
    shape, dtype = _size(state_of(entry, "size")), _dtype(state_of(entry, "properties"))
    if shape is None or dtype is None or not isinstance(chunks, list):
        found.contradict(name, "its type, shape or chunks are unreadable")
        return
    boxes = []
    sizes_of: dict[tuple[int, ...], tuple[int, ...]] = {}  # most chunks have the same
    for chunk in chunks:
        offsets, sizes = _size(state_of(chunk, "offsets")), _size(state_of(chunk, "sizes"))
        if not _is_a("ChunkStorageMetadata", chunk) or offsets is None or sizes is None:
            found.contradict(name, "one of its chunks is unreadable")
            return
        if not len(offsets) == len(sizes) == len(shape):
            found.contradict(name, "one of its chunks is unreadable")
            return
        boxes.append(Chunk(offsets, sizes_of.setdefault(sizes, sizes)))
    found.tensors[name] = TensorEntry(dtype, shape, tuple(boxes))


def _dtype(properties: Any) -> str | None:
    """Return `torch.float32` by the state of TensorProperties: a tuple, or a dictionary in old versions."""
    if not isinstance(properties, Call) or name_of(properties) != f"{_PACKAGE}TensorProperties":
        return None
    state = properties.state
    first = (
        state.named("dtype")
        if isinstance(state, Pairs)
        else state[0]
        if isinstance(state, tuple) and state
        else 0
    )
    if not isinstance(first, Global) or not _are_plain(state):
        return None
    return name_of(first) if first.module == "torch" and element_bytes(first.name) else None


def _are_plain(state: Any) -> bool:
    """Return True if the other properties are what torch writes."""
    if not isinstance(state, tuple) or len(state) != 5:
        return not isinstance(state, tuple)
    _, layout, needs_gradient, memory_format, pinned = state
    if not isinstance(layout, Call) or not isinstance(memory_format, Call):
        return False
    known = name_of(layout) == "torch.serialization._get_layout" and layout.arguments in (
        ("torch.strided",),
        ("torch.sparse_coo",),
        ("torch.jagged",),
        ("torch.sparse_csr",),
    )
    encoded = name_of(memory_format) == f"{_PACKAGE}_MEM_FORMAT_ENCODING" and memory_format.arguments in (
        (0,),
        (1,),
        (2,),
    )
    return known and encoded and isinstance(needs_gradient, bool) and isinstance(pinned, bool)


def _add_item(found: DistributedMetadata, index: Any, info: Any) -> None:
    name, offsets = state_of(index, "fqn"), _size(state_of(index, "offset"))
    file, offset, length = (state_of(info, key) for key in ("relative_path", "offset", "length"))
    if (
        not _is_a("MetadataIndex", index)
        or not _is_place(info)
        or not _is_name(name)
        or not _is_name(file)
        or type(offset) is not int
        or type(length) is not int
    ):
        found.contradict(name if isinstance(name, str) else "", "the place of its bytes is unreadable")
        return
    if not 0 <= offset <= LARGEST_SIZE or not 0 <= length <= LARGEST_SIZE:
        found.contradict(name, f"its bytes lie at {offset} and are {length}")
        return
    _check_hint(found, name, offsets, state_of(index, "index"))
    transforms = _transforms(state_of(info, "transform_descriptors"))
    found.items.append(StoredItem(name, offsets, file, offset, length, transforms))


def _is_name(value: Any) -> TypeGuard[str]:
    return isinstance(value, str) and len(value) <= _LONGEST_NAME


def _transforms(value: Any) -> tuple[str, ...]:
    if not value:
        return ()
    if not isinstance(value, (list, tuple)) or len(value) > _MOST_TRANSFORMS:
        return ("?",)
    return tuple(each[:60] if isinstance(each, str) else "?" for each in value)


def _is_place(info: Any) -> bool:
    """Return True for the class that torch writes, and for that of another storage writer."""
    kind = name_of(info)
    if not kind or not isinstance(info, Call) or not isinstance(info.state, Pairs):
        return False
    if kind == _PLACE:
        return all(key in _PLACE_ATTRIBUTES for key, _ in info.state if isinstance(key, str))
    return not kind.startswith(("torch.", "pathlib.")) and not kind.endswith("_StorageInfo")


def _check_hint(found: DistributedMetadata, name: str, offsets: tuple[int, ...] | None, hint: Any) -> None:
    """Check that the index beside an offset is the position of the chunk in its tensor's list."""
    tensor = found.tensors.get(name)
    if tensor is None or type(hint) is not int or offsets is None:
        return
    if not 0 <= hint < len(tensor.chunks) or tensor.chunks[hint].offsets != offsets:
        found.contradict(name, f"the chunk at {offsets} is not its chunk {hint}")


def _compare_names(found: DistributedMetadata, planner_data: Any) -> None:
    """Compare the names with `planner_data`, which holds the path of keys behind each name."""
    if not isinstance(planner_data, Pairs):
        return
    paths = {name: path for name, path in planner_data if isinstance(name, str) and isinstance(path, tuple)}
    if not paths:
        return
    known = {*found.tensors, *found.objects}
    for name in sorted(known ^ set(paths)):
        found.contradict(name, "its name is not in both lists of names")
    for name in sorted(known & set(paths)):
        if not _is_path_of(name, paths[name]):
            found.contradict(name, "its name is not that of its path")


def _is_path_of(name: str, path: tuple[Any, ...]) -> bool:
    """Return True if the keys make up the name. A pickle can name one long key or path over and over."""
    if len(path) > len(name) + 1:
        return False
    parts = [str(part) for part in path if isinstance(part, (str, int))]
    return sum(map(len, parts)) <= len(name) and name == ".".join(parts)


def _size(value: Any) -> tuple[int, ...] | None:
    """Return a torch.Size, or a plain tuple of sizes."""
    if isinstance(value, Call) and name_of(value) == "torch.Size" and isinstance(value.arguments, tuple):
        value = value.arguments[0] if len(value.arguments) == 1 else None
    if isinstance(value, list) and len(value) <= MOST_DIMENSIONS:
        value = tuple(value)
    return value if is_shape(value) else None


def coverage_problem(tensor: TensorEntry) -> str:
    """Return why the chunks are not exactly the tensor; empty if they are."""
    for chunk in tensor.chunks:
        ends = (offset + size for offset, size in zip(chunk.offsets, chunk.sizes, strict=True))
        if any(end > size for end, size in zip(ends, tensor.shape, strict=True)):
            return f"its chunk at {chunk.offsets} reaches beyond its shape {tensor.shape}"
    covered, elements = sum(math.prod(each.sizes) for each in tensor.chunks), math.prod(tensor.shape)
    if covered != elements:
        return f"its chunks hold {covered} of the {elements} elements of its shape {tensor.shape}"
    if len(tensor.chunks) > 1 and not _fill_once(tensor):
        return f"its chunks overlap, and leave a part of its shape {tensor.shape} to none"
    return ""


def _fill_once(tensor: TensorEntry) -> bool:
    """Return True if each element lies in one chunk, in time that grows with the chunks alone.

    Each coordinate in each dimension gets a random weight, and a box the product over its dimensions of the
    weight of its begin less that of its end. As polynomials in the weights, the chunks' sum and the shape's
    product are equal only if both have the same corners with the same signs, so if the chunks cover each
    element of the shape once. For weights that nobody knows beforehand, unequal polynomials have the same
    value in one of 2^55 cases at most (Schwartz and Zippel: the degree by the number of weights).
    """
    key = os.urandom(16)

    @lru_cache(maxsize=1 << 16)
    def weight(dimension: int, at: int) -> int:
        return int.from_bytes(blake2b(b"%d,%d" % (dimension, at), digest_size=8, key=key).digest()) % _PRIME

    def product(offsets: tuple[int, ...], sizes: tuple[int, ...]) -> int:
        result = 1
        for dimension, (begin, size) in enumerate(zip(offsets, sizes, strict=True)):
            result = result * (weight(dimension, begin) - weight(dimension, begin + size)) % _PRIME
        return result

    whole = product((0,) * len(tensor.shape), tensor.shape)
    return (sum(product(*each) for each in tensor.chunks) - whole) % _PRIME == 0


def merge(ranks: list[DistributedMetadata]) -> DistributedMetadata:
    """Return what all ranks have written, as if one had. Replicas of a chunk count once."""
    if len(ranks) == 1:
        return ranks[0]
    merged = DistributedMetadata()
    chunks: dict[str, dict[Chunk, None]] = defaultdict(dict)
    for one in ranks:
        for name, tensor in one.tensors.items():
            merged.tensors[name] = tensor
            chunks[name].update(dict.fromkeys(tensor.chunks))
        merged.objects |= one.objects
        merged.items += one.items
        for name, detail in one.contradictions:
            merged.contradict(name, detail)
        merged.more_contradictions += one.more_contradictions
    for name, tensor in merged.tensors.items():
        merged.tensors[name] = tensor._replace(chunks=tuple(chunks[name]))
    return merged
