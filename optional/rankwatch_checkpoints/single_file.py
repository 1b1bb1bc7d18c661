"""One file of a checkpoint, verified by what it is.

`.safetensors` have no checksum: header, sizes and layout are verified, and only a manifest shows
flipped values.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from pathlib import PurePosixPath
from typing import Any

from rankwatch_checkpoints.layouts import TORCH_SUFFIXES
from rankwatch_checkpoints.reading import (
    MOST_JSON_BYTES,
    OpenFile,
    Region,
    ShortFileError,
    TooMuchError,
    parse_json,
)
from rankwatch_checkpoints.result import Damage, Verification
from rankwatch_checkpoints.tensor_names import LARGEST_SIZE, is_shape
from rankwatch_checkpoints.torch_zip import verify_torch_zip
from rankwatch_checkpoints.zip_layout import looks_like_zip

_LEGACY = (b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19",)
"""torch's magic number as a pickle: files of torch before 1.6, and of its old serialization."""
_LARGEST_HEADER = 100_000_000
"""Bytes: the limit of the safetensors library."""
_ELEMENT_BITS = {
    "F64": 64, "F32": 32, "F16": 16, "BF16": 16, "I64": 64, "I32": 32, "I16": 16, "I8": 8, "U64": 64,
    "U32": 32, "U16": 16, "U8": 8,
    "BOOL": 8, "C64": 64, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8,
    "F8_E5M2FNUZ": 8, "F6_E2M3": 6, "F6_E3M2": 6, "F4": 4,
}  # fmt: skip


def verify_file(file: OpenFile, shown: str, found: Verification) -> Iterable[str]:
    """Verify a file by its format, which `found.format` then names. Returns names of its tensors.

    Raises TooMuchError.
    """
    names: Iterable[str]
    try:
        names = _verify(file, shown, found)
    except ShortFileError as error:
        if not file.changed():
            found.problem(shown, Damage.TRUNCATED, str(error))
        names = set()
    if file.changed():
        found.problem(shown, Damage.UNFINISHED, "it was written to while it was read")
    return names


def _verify(file: OpenFile, shown: str, found: Verification) -> Iterable[str]:
    suffix = PurePosixPath(shown).suffix
    if not file.size:
        if suffix in TORCH_SUFFIXES | {".safetensors", ".distcp", ".json"}:
            found.problem(shown, Damage.TRUNCATED, "it is empty")
        return set()
    start = file.read(0, min(file.size, 16))
    if suffix == ".safetensors":
        found.format = found.format or "safetensors"
        return _verify_safetensors(file, shown, found)
    ends_as_zip = file.size >= 22 and file.read(file.size - 22, 4) == b"PK\x05\x06"
    if (
        looks_like_zip(start)
        or (file.size < 4 and start[:1] == b"P")
        or (suffix in TORCH_SUFFIXES and ends_as_zip)
    ):
        found.format = found.format or "torch"
        content = verify_torch_zip(Region(file), shown, found)
        return (name for storage in content.storages.values() for name in storage.names())
    if suffix in TORCH_SUFFIXES and not any(start):
        found.problem(shown, Damage.MISSING, "it begins with zeros: its content was never written")
    elif start.startswith(_LEGACY):
        found.format = found.format or "torch"
        found.not_checked(shown, "it is a pickle of torch's old format, which has no checksum")
    elif start[:1] == b"\x80" and suffix in TORCH_SUFFIXES | {".pkl", ".pickle"}:
        found.not_checked(shown, "it is a pickle, which has no checksum")
    elif suffix == ".json":
        _verify_json(file, shown, found)
    else:
        found.not_checked(shown, "its format is unknown")
    return set()


def _verify_json(file: OpenFile, shown: str, found: Verification) -> None:
    try:
        parse_json(file.read_all(MOST_JSON_BYTES))
    except TooMuchError as error:
        found.not_checked(shown, str(error))
        return
    except ValueError:
        found.problem(shown, Damage.MALFORMED, "it is no JSON")
        return
    found.not_checked(shown, "JSON has no checksum: it was parsed")


class _HeaderError(Exception):
    """The header is none; the message is half a sentence."""


def _verify_safetensors(file: OpenFile, shown: str, found: Verification) -> set[str]:
    """Verify one file; returns the names of its tensors. Raises TooMuchError."""
    try:
        start, header = _read_header(file)
    except _HeaderError as error:
        damage = Damage.TRUNCATED if "breaks off" in str(error) else Damage.MALFORMED
        found.problem(shown, damage, str(error))
        return set()
    found.verified_bytes += start
    tensors = {name: entry for name, entry in header.items() if name != "__metadata__"}
    places = []
    for name, entry in tensors.items():
        place = _place(name, entry, shown, found)
        if place is not None:
            places.append((*place, name))
    end = _check_layout(sorted(places), file.size - start, shown, found)
    if file.size - start > end:
        found.problem(shown, Damage.EXTRA, f"{file.size - start - end} bytes lie behind its last tensor")
    found.tensors += len(tensors)
    hole = file.first_hole(start)
    holes = f", and it reads as zeros from byte {hole}, which was never written" if hole is not None else ""
    found.not_checked(shown, f"safetensors have no checksum: header, sizes and layout were verified{holes}")
    return set(tensors)


def _read_header(file: OpenFile) -> tuple[int, dict[str, Any]]:
    if file.size < 8:
        raise _HeaderError(f"it breaks off at byte {file.size}, before its header")
    length = int.from_bytes(file.read(0, 8), "little")
    if length > _LARGEST_HEADER:
        raise _HeaderError(f"its header claims {length} bytes, more than safetensors allows")
    if 8 + length > file.size:
        raise _HeaderError(f"it breaks off at byte {file.size}, in its header of {length} bytes")
    try:
        header = parse_json(file.read(8, length), _unique)
    except ValueError:
        raise _HeaderError("its header is no JSON object with distinct keys") from None
    if not isinstance(header, dict):
        raise _HeaderError("its header is no JSON object with distinct keys")
    return 8 + length, header


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key repeats")
    return found


def _place(name: str, entry: Any, shown: str, found: Verification) -> tuple[int, int] | None:
    """Begin and end of a tensor's bytes; None after a problem."""
    match entry:
        case {"dtype": str(dtype), "shape": list(shape), "data_offsets": [int(begin), int(end)]} if (
            is_shape(tuple(shape)) and max(begin, end) <= LARGEST_SIZE
        ):
            pass
        case _:
            found.problem(shown, Damage.MALFORMED, "its part of the header is unreadable", name)
            return None
    if not 0 <= begin <= end:
        found.problem(shown, Damage.MALFORMED, f"its bytes go from {begin} to {end}", name)
        return None
    bits = _ELEMENT_BITS.get(dtype)
    if bits is None:
        found.problem(shown, Damage.MALFORMED, f"its type {dtype[:20]!r} is unknown", name)
        return begin, end
    bits *= math.prod(shape)
    if bits != 8 * (end - begin):
        detail = f"{dtype} x {shape} is {(bits + 7) // 8} bytes, but its place has {end - begin}"
        found.problem(shown, Damage.SIZE, detail, name)
    return begin, end


def _check_layout(places: list[tuple[int, int, str]], size: int, shown: str, found: Verification) -> int:
    """Report overlaps, gaps and the end of the file; returns where the last tensor ends."""
    last = 0
    for begin, end, name in places:
        if begin < last:
            found.problem(shown, Damage.MALFORMED, f"its bytes at {begin} overlap those of another", name)
        elif begin > last:
            found.problem(shown, Damage.MALFORMED, f"{begin - last} bytes before it belong to nothing", name)
        if end > size:
            detail = f"the file has {size} bytes for tensors, where {begin} to {end} hold it"
            found.problem(shown, Damage.TRUNCATED, detail, name)
        last = max(last, end)
    return last


def verify_index(index: bytes, shown: str, tensors: dict[str, set[str]], found: Verification) -> None:
    """Hold `model.safetensors.index.json` against the shards; `tensors` by name of the shard."""
    try:
        weights = parse_json(index)["weight_map"]
        listed = sorted(weights.items())
        whole = all(isinstance(file, str) for _, file in listed)
    except (ValueError, KeyError, TypeError, AttributeError):
        whole = False
    if not whole:
        found.problem(shown, Damage.MALFORMED, "it is no index of shards")
        return
    missing: dict[str, list[str]] = defaultdict(list)
    for name, file in listed:
        if file not in tensors:
            missing[file].append(name)
        elif name not in tensors[file]:
            found.problem(file, Damage.MISSING, f"{shown} expects it there", name)
    for file, names in sorted(missing.items()):
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        found.problem(file, Damage.MISSING, f"{shown} expects it, with {names[0]}{more}", names[0])
