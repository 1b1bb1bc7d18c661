"""The lines of a file, plain or gzip, in constant memory."""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from rankwatch_agent.runtime.errors import UserError
from rankwatch_diagnosis.loss.row import Intake
from rankwatch_diagnosis.opening import open_bytes

MAX_LINE_BYTES = 16384
"""A longer line is no row and no line of a log: it is skipped and counted."""
MAX_FRUITLESS_LINES = 10_000_000
"""After so many lines without a loss none is expected any more: a few MB of gzip can hold a billion."""
_HEAD_BYTES = 8192
_GZIP_MAGIC = b"\x1f\x8b"


def read_lines(path: Path, intake: Intake, *, most_fruitless: int = MAX_FRUITLESS_LINES) -> Iterator[str]:
    """Yield the lines; a compressed file that ends in the middle yields what there is.

    most_fruitless: lines that may pass before the first loss.
    Raises UserError where the file cannot be read, is empty or is binary, or where so many lines
    pass and `intake` counts no loss yet.
    """
    try:
        with open_bytes(path) as file:
            yield from _lines(path, file, intake, most_fruitless)
    except OSError as error:
        raise UserError(f"could not read {path}: {error.strerror or error}") from error


def _lines(path: Path, file: io.BufferedReader, intake: Intake, most_fruitless: int) -> Iterator[str]:
    compressed = file.peek(2)[:2] == _GZIP_MAGIC
    source: io.BufferedReader | gzip.GzipFile = gzip.GzipFile(fileobj=file) if compressed else file
    seen = False
    # closing(): the decompressor does not close the file it was given, and we do not leave it open.
    with closing(source):
        try:
            if b"\0" in source.peek(_HEAD_BYTES)[:_HEAD_BYTES]:
                raise UserError(f"{path} is binary or UTF-16, expected CSV or a log in UTF-8")
            for number, line in enumerate(_bounded(source, intake)):
                seen = True
                if number == most_fruitless and not intake.losses:
                    raise UserError(f"{path} holds no step with a loss in its first {number:,} lines")
                yield line.decode("utf-8-sig", errors="replace")
        except (EOFError, zlib.error, gzip.BadGzipFile):
            intake.truncated = True
    if not seen and not intake.truncated and not intake.skipped:
        raise UserError(f"{path} is empty")


def _bounded(source: io.BufferedReader | gzip.GzipFile, intake: Intake) -> Iterator[bytes]:
    """Lines of at most MAX_LINE_BYTES; the rest of a longer one is read away piece by piece."""
    whole = True
    while piece := source.readline(MAX_LINE_BYTES):
        ended = piece.endswith(b"\n")
        if whole and (ended or len(piece) < MAX_LINE_BYTES):
            yield piece
        elif whole:
            intake.skipped += 1
        whole = ended
