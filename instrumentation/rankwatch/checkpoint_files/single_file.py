"""One file of a checkpoint, verified by what it is."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import PurePosixPath

from rankwatch.checkpoint_files.names import TORCH_SUFFIXES
from rankwatch.checkpoint_files.reading import (
    MOST_JSON_BYTES,
    OpenFile,
    Region,
    ShortFileError,
    TooMuchError,
    parse_json,
)
from rankwatch.checkpoint_files.result import Damage, Verification
from rankwatch.checkpoint_files.safetensors import verify_safetensors
from rankwatch.checkpoint_files.torch_zip import verify_torch_zip
from rankwatch.checkpoint_files.zip_layout import looks_like_zip

_LEGACY = (b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19",)
"""torch's magic number as a pickle: files of torch before 1.6, and of its old serialization."""


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
        return verify_safetensors(file, shown, found)
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
