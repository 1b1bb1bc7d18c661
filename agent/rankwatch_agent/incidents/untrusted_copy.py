"""Copies files from directories that others can write to, without following links or blocking."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rankwatch.conventions.states import EvidenceFault
from rankwatch.untrusted.folders import open_regular
from rankwatch_agent.incidents.bundle import CHUNK_BYTES, BundleFolder, EvidenceError


def copy_file(
    source: Path,
    folder: BundleFolder,
    name: str,
    *,
    owner: int,
    fault: EvidenceFault,
    max_bytes: int,
) -> None:
    """Copies a regular file in its present size; what a living writer appends meanwhile is left out.

    owner: user id that it must have. Neither the file nor its directory may be a link. Raises EvidenceError,
    with `fault` for a bad source.
    """
    with open_untrusted(source, owner, fault) as file:
        size = os.fstat(file).st_size
        if size > max_bytes:
            raise EvidenceError(fault, f"{source} has {size} bytes, more than {max_bytes}")
        folder.write(name, _chunks(file, size, source, fault))


@contextmanager
def open_untrusted(source: Path, owner: int, fault: EvidenceFault) -> Iterator[int]:
    """Opens a regular file of this user. Neither it nor its directory may be a link. Raises EvidenceError."""
    try:
        file = open_regular(source, owner=owner)
    except OSError as error:
        raise EvidenceError(fault, f"could not open {source}: {error.strerror}") from None
    try:
        yield file
    finally:
        os.close(file)


def _chunks(file: int, size: int, source: Path, fault: EvidenceFault) -> Iterator[bytes]:
    left = size
    while left > 0:
        try:
            chunk = os.read(file, min(left, CHUNK_BYTES))
        except OSError as error:
            raise EvidenceError(fault, f"could not read {source}: {error.strerror}") from None
        if not chunk:
            return  # it has become shorter
        left -= len(chunk)
        yield chunk
