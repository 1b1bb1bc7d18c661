"""The `.metadata` of torch.distributed.checkpoint: which bytes lie where, read as data."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from rankwatch.checkpoint_files.pickles import (
    Call,
    Global,
    Pairs,
    PickleError,
    name_of,
    read_pickle,
    state_of,
)
from rankwatch.checkpoint_files.tensor_names import element_bytes, is_shape

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
    """Name of a tensor or "", and a sentence."""

    @cached_property
    def chunks(self) -> dict[tuple[str, tuple[int, ...] | None], Chunk]:
        """Every chunk by tensor and offsets; to be asked for when all ranks' metadata is merged."""
        return {
            (name, chunk.offsets): chunk for name, tensor in self.tensors.items() for chunk in tensor.chunks
        }


def read_metadata(data: bytes) -> DistributedMetadata:
    """The metadata in a pickle. Raises PickleError for what is none."""
    pickled = read_pickle(data)
    if not _is_a("Metadata", pickled.value):
        raise PickleError("the pickle holds no Metadata of torch.distributed.checkpoint")
    found = DistributedMetadata()
    if pickled.end != len(data):
        found.contradictions.append(("", f"{len(data) - pickled.end} bytes lie behind its pickle"))
    entries = state_of(pickled.value, "state_dict_metadata")
    stored = state_of(pickled.value, "storage_data")
    if not isinstance(entries, Pairs) or not isinstance(stored, Pairs):
        raise PickleError("the pickle has no state_dict_metadata and storage_data")
    for name, entry in entries:
        _add_entry(found, name, entry)
    for index, info in stored:
        _add_item(found, index, info)
    _compare_names(found, state_of(pickled.value, "planner_data"))
    _check_origin(found, pickled.value)
    return found


def _is_a(name: str, value: Any) -> bool:
    """True for an object of a class of the metadata that has no attribute but its own."""
    if not isinstance(value, Call) or name_of(value) != f"{_PACKAGE}{name}":
        return False
    keys = [key for key, _ in value.state] if isinstance(value.state, Pairs) else []
    return all(isinstance(key, str) and key in _ATTRIBUTES.get(name, ()) for key in keys)


def _check_origin(found: DistributedMetadata, value: Any) -> None:
    """The parts that say who saved it, and when: they must at least be what torch writes."""
    version, meta = state_of(value, "version"), state_of(value, "storage_meta")
    if version is not None and not (isinstance(version, str) and re.fullmatch(r"\d+\.\d+\.\d+", version)):
        found.contradictions.append(("", "its version is no version"))
    if meta is None:
        return
    path, save = state_of(meta, "checkpoint_id"), state_of(meta, "save_id")
    known_path = path is None or isinstance(path, str) or name_of(path) in _PATHS
    known_save = save is None or (isinstance(save, str) and _UUID.fullmatch(save))
    if not _is_a("StorageMeta", meta) or not known_path or not known_save:
        found.contradictions.append(("", "its storage_meta is not what torch writes"))


def _add_entry(found: DistributedMetadata, name: Any, entry: Any) -> None:
    if not isinstance(name, str):
        found.contradictions.append(("", "a key of its state dict is no text"))
    elif name in found.tensors or name in found.objects:
        found.contradictions.append((name, "it lists the name twice"))
    elif _is_a("BytesStorageMetadata", entry):
        found.objects.add(name)
    elif _is_a("TensorStorageMetadata", entry):
        _add_tensor(found, name, entry)
    else:
        found.contradictions.append((name, "it is neither a tensor nor bytes"))


def _add_tensor(found: DistributedMetadata, name: str, entry: Any) -> None:
    properties = state_of(entry, "properties")
    shape, chunks = _size(state_of(entry, "size")), state_of(entry, "chunks")
    dtype = _dtype(properties)
    if shape is None or dtype is None or not isinstance(chunks, list):
        found.contradictions.append((name, "its type, shape or chunks are unreadable"))
        return
    boxes = []
    for chunk in chunks:
        offsets, sizes = _size(state_of(chunk, "offsets")), _size(state_of(chunk, "sizes"))
        if not _is_a("ChunkStorageMetadata", chunk) or offsets is None or sizes is None:
            found.contradictions.append((name, "one of its chunks is unreadable"))
            return
        if not len(offsets) == len(sizes) == len(shape):
            found.contradictions.append((name, "one of its chunks is unreadable"))
            return
        boxes.append(Chunk(offsets, sizes))
    found.tensors[name] = TensorEntry(dtype, shape, tuple(boxes))


def _dtype(properties: Any) -> str | None:
    """`torch.float32`, by the state of TensorProperties: a tuple, or a dictionary in old versions."""
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
    """True if the other properties are what torch writes."""
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
        or not isinstance(name, str)
        or not isinstance(file, str)
        or type(offset) is not int
        or type(length) is not int
    ):
        found.contradictions.append(
            (name if isinstance(name, str) else "", "the place of its bytes is unreadable")
        )
        return
    if offset < 0 or length < 0:
        found.contradictions.append((name, f"its bytes lie at {offset} and are {length}"))
        return
    _check_hint(found, name, offsets, state_of(index, "index"))
    transforms = state_of(info, "transform_descriptors") or ()
    names = tuple(str(each)[:60] for each in transforms) if isinstance(transforms, (list, tuple)) else ("?",)
    found.items.append(StoredItem(name, offsets, file, offset, length, names))


def _is_place(info: Any) -> bool:
    """True for the class that torch writes, and for that of another storage writer."""
    kind = name_of(info)
    if not kind or not isinstance(info, Call) or not isinstance(info.state, Pairs):
        return False
    if kind == _PLACE:
        return all(key in _PLACE_ATTRIBUTES for key, _ in info.state if isinstance(key, str))
    return not kind.startswith(("torch.", "pathlib.")) and not kind.endswith("_StorageInfo")


def _check_hint(found: DistributedMetadata, name: str, offsets: tuple[int, ...] | None, hint: Any) -> None:
    """The index beside an offset is the position of the chunk in its tensor's list."""
    tensor = found.tensors.get(name)
    if tensor is None or type(hint) is not int or offsets is None:
        return
    if not 0 <= hint < len(tensor.chunks) or tensor.chunks[hint].offsets != offsets:
        found.contradictions.append((name, f"the chunk at {offsets} is not its chunk {hint}"))


def _compare_names(found: DistributedMetadata, planner_data: Any) -> None:
    """`planner_data` holds the path of keys behind each name."""
    if not isinstance(planner_data, Pairs):
        return
    paths = {name: path for name, path in planner_data if isinstance(name, str) and isinstance(path, tuple)}
    if not paths:
        return
    known = {*found.tensors, *found.objects}
    for name in sorted(known ^ set(paths)):
        found.contradictions.append((name, "its name is not in both lists of names"))
    for name in sorted(known & set(paths)):
        if name != ".".join(str(part) for part in paths[name] if isinstance(part, (str, int))):
            found.contradictions.append((name, "its name is not that of its path"))


def _size(value: Any) -> tuple[int, ...] | None:
    """A torch.Size, or a plain tuple of sizes."""
    if isinstance(value, Call) and name_of(value) == "torch.Size" and isinstance(value.arguments, tuple):
        value = value.arguments[0] if len(value.arguments) == 1 else None
    return tuple(value) if is_shape(tuple(value) if isinstance(value, list) else value) else None


def volume(sizes: tuple[int, ...]) -> int:
    """Number of elements."""
    product = 1
    for each in sizes:
        product *= each
    return product


def coverage_problem(tensor: TensorEntry) -> str:
    """Why the chunks are not exactly the tensor; empty if they are."""
    for chunk in tensor.chunks:
        ends = [offset + size for offset, size in zip(chunk.offsets, chunk.sizes, strict=True)]
        if any(end > size for end, size in zip(ends, tensor.shape, strict=True)):
            return f"its chunk at {chunk.offsets} reaches beyond its shape {tensor.shape}"
    covered = sum(volume(each.sizes) for each in tensor.chunks)
    if covered != volume(tensor.shape):
        return f"its chunks hold {covered} of the {volume(tensor.shape)} elements of its shape {tensor.shape}"
    for one, other in _near(tensor.chunks):
        return f"its chunks at {one.offsets} and {other.offsets} overlap"
    return ""


def _near(chunks: tuple[Chunk, ...]) -> Iterator[tuple[Chunk, Chunk]]:
    """Pairs that overlap, by a sweep along the dimension that the chunks differ in most."""
    filled = [each for each in chunks if volume(each.sizes)]
    if not filled or not filled[0].offsets:
        if len(filled) > 1:
            yield filled[0], filled[1]
        return
    axis = max(range(len(filled[0].offsets)), key=lambda each: len({chunk.offsets[each] for chunk in filled}))
    ordered = sorted(filled, key=lambda each: each.offsets[axis])
    active: list[Chunk] = []
    for chunk in ordered:
        active = [each for each in active if each.offsets[axis] + each.sizes[axis] > chunk.offsets[axis]]
        for other in active[:_MOST_COMPARED]:
            if _overlap(chunk, other):
                yield other, chunk
                return
        active.append(chunk)


_MOST_COMPARED = 4096


def _overlap(one: Chunk, other: Chunk) -> bool:
    return all(
        start < other_start + other_size and other_start < start + size
        for start, size, other_start, other_size in zip(
            one.offsets, one.sizes, other.offsets, other.sizes, strict=True
        )
    )
