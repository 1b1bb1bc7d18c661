"""From a file, plain or gzip, to a verdict: a table where its first line names step and loss, else a log."""

from __future__ import annotations

import io
from collections.abc import Collection, Iterator, Mapping
from contextlib import nullcontext
from itertools import chain
from pathlib import Path

from rankwatch_agent.runtime.errors import UserError
from rankwatch_agent.training.loss import CONFIRM_STEPS
from rankwatch_diagnosis.loss.detection import LossVerdict, detect
from rankwatch_diagnosis.loss.formats import (
    MATCH_SECONDS,
    Extract,
    ReadCounts,
    StepValues,
    bounded,
    default_extract,
    delimiter_of,
    extract_by,
    likely_delimiter,
    read_log,
    read_table,
)
from rankwatch_diagnosis.opening import DAMAGED, open_bytes, unpacked

MAX_LINE_BYTES = 16384
"""A longer line is no row and no line of a log: it is skipped and counted."""
MAX_FRUITLESS_LINES = 2_000_000
"""After so many lines without a loss none is expected any more. They take some two seconds."""
_HEAD_BYTES = 8192
_TABLE_SUFFIXES = (".csv", ".tsv", ".csv.gz", ".tsv.gz")


def diagnose(
    path: Path,
    *,
    pattern: str | None = None,
    columns: Mapping[str, str] | None = None,
    persistence: int = CONFIRM_STEPS,
    new_levels: Collection[int] = (),
    plateau_steps: int = 0,
    match_seconds: float = MATCH_SECONDS,
) -> LossVerdict:
    """Judge the losses of a file.

    pattern: regular expression with the groups `step` and `loss`, for the lines of a log.
    columns: name of ours -> name in a table, for those that differ.
    persistence: values for which a loss that stands out must not fall back to be a divergence.
    new_levels: steps from which the loss may stand elsewhere, as with other data.
    plateau_steps: over which the loss must improve; 0 looks for no plateau.
    match_seconds: time of the processor that `pattern` may take on one line. In the main thread only.
    Raises UserError where the file cannot be read or holds no loss, or the pattern takes too long.
    """
    counts = ReadCounts()
    # A mistake in the pattern is reported before a large file is opened.
    limited = bounded(extract_by(pattern), seconds=match_seconds) if pattern is not None else nullcontext()
    with limited as extract:
        rows = _rows(path, counts, extract, columns or {})
        verdict = detect(
            rows, counts, persistence=persistence, new_levels=new_levels, plateau_steps=plateau_steps
        )
    if not counts.losses:
        raise UserError(_no_loss(path, counts, pattern))
    return verdict


def _rows(
    path: Path, counts: ReadCounts, extract: Extract | None, columns: Mapping[str, str]
) -> Iterator[StepValues]:
    if extract is not None:
        yield from read_log(read_lines(path, counts), counts, extract=extract)
        return
    lines = read_lines(path, counts)
    header = next((line for line in lines if line.strip()), "")
    delimiter = delimiter_of(header)
    if delimiter or columns or path.name.lower().endswith(_TABLE_SUFFIXES):
        delimiter = delimiter or likely_delimiter(header)
        yield from read_table(header, lines, counts, delimiter=delimiter, columns=columns)
    else:
        yield from read_log(chain([header], lines), counts, extract=default_extract)


def _no_loss(path: Path, counts: ReadCounts, pattern: str | None) -> str:
    text = f"{path} holds no step with a loss"
    if pattern is not None:
        text += " that --pattern finds"
    if counts.skipped:
        text += f"; {counts.skipped:,} rows were skipped"
    if counts.truncated:
        text += "; the compressed file is damaged or ends in the middle"
    if pattern is None and not counts.skipped:
        text += "; expected CSV with the columns step and loss, or a log, if need be with --pattern"
    return text


def read_lines(path: Path, counts: ReadCounts, *, most_fruitless: int = MAX_FRUITLESS_LINES) -> Iterator[str]:
    """Yield the lines; a compressed file that ends in the middle yields what there is.

    most_fruitless: lines that may pass before the first loss.
    Raises UserError where the file cannot be read, is empty or is binary, or where so many lines
    pass and `counts` counts no loss yet.
    """
    try:
        with open_bytes(path) as file:
            yield from _lines(path, file, counts, most_fruitless)
    except OSError as error:
        raise UserError(f"could not read {path}: {error.strerror or error}") from error


def _lines(path: Path, file: io.BufferedReader, counts: ReadCounts, most_fruitless: int) -> Iterator[str]:
    source = unpacked(file, path)
    seen = False
    try:
        if b"\0" in source.peek(_HEAD_BYTES)[:_HEAD_BYTES]:
            raise UserError(f"{path} is binary or UTF-16, expected CSV or a log in UTF-8")
        for number, line in enumerate(_bounded(source, counts)):
            seen = True
            if number == most_fruitless and not counts.losses:
                raise UserError(f"{path} holds no step with a loss in its first {number:,} lines")
            yield line.decode("utf-8-sig", errors="replace")
    except DAMAGED:
        counts.truncated = True
    if not seen and not counts.truncated and not counts.skipped:
        raise UserError(f"{path} is empty")


def _bounded(source: io.BufferedReader, counts: ReadCounts) -> Iterator[bytes]:
    """Lines of at most MAX_LINE_BYTES; the rest of a longer one is read away piece by piece."""
    whole = True
    while piece := source.readline(MAX_LINE_BYTES):
        ended = piece.endswith(b"\n")
        if whole and (ended or len(piece) < MAX_LINE_BYTES):
            yield piece
        elif whole:
            counts.skipped += 1
        whole = ended
