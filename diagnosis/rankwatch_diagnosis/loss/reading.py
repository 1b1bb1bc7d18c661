"""The steps of a file, plain or gzip: a table where its first line names step and loss, else a log.

A user's regular expression has a time limit for each line.
"""

from __future__ import annotations

import csv
import io
import re
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from types import FrameType
from typing import NamedTuple

from rankwatch_agent.runtime.errors import UserError
from rankwatch_diagnosis.opening import DAMAGED, open_bytes, unpacked

COLUMNS = ("loss", "grad_norm", "update_norm", "loss_scale")
"""Columns that a row may hold beside its step."""
_LARGEST_STEP = 2**53
"""A greater number in a file is no step: floats cannot count beyond it."""
_MISSING = frozenset({"", "none", "null", "na", "n/a", "-"})
_DELIMITERS = ",;\t"
MATCH_SECONDS = 5.0
"""Time of the processor on one line after which a match is given up, at the latest after twice as long. Lines
have at most 16 KiB, for which an ordinary pattern takes a small part of that; the length of the file does not
count."""
_SHOWN = 40
Extract = Callable[[str], dict[str, str]]
"""From a line to the texts found in it, by the name of the column; empty where it reports no step."""

_NUMBER = r"[-+]?(?:(?:\d+(?:\.\d*)?|\.\d+)(?:e[-+]?\d+)?|nan|inf(?:inity)?)(?!\w|\.\d)"
_TO = r"""["'\]]?\s*(?:[:=#|]\s*)?(?:["'\[(]\s*)?(?:tensor\()?"""
"""Text between a name and its number: `loss 3.4`, `loss: 3.4`, `"loss": 3.4`, `step [12/100]`. No two parts
of a pattern here may match the same text, or a line of blanks would take minutes."""
_STEP = re.compile(
    rf"(?:(?<![\w/])|(?<=train/))(?:global[ _]?step|iteration|iter|step)\b{_TO}(\d+)\b", re.IGNORECASE
)
_LOSS = re.compile(rf"(?<!\w)(?:([a-z]+)[ _/-])?loss\b{_TO}({_NUMBER})", re.IGNORECASE)
_OTHERS = {
    "grad_norm": re.compile(rf"(?<![a-z])grad(?:ient)?[ _-]?norm\b{_TO}({_NUMBER})", re.IGNORECASE),
    "update_norm": re.compile(rf"(?<![a-z])updates?[ _-]?norm\b{_TO}({_NUMBER})", re.IGNORECASE),
    "loss_scale": re.compile(rf"(?<![a-z])loss[ _-]?scale\b{_TO}({_NUMBER})", re.IGNORECASE),
}
_OTHER_LOSSES = frozenset(
    (
        *("val", "valid", "validation", "eval", "evaluation", "test", "dev", "out", "heldout"),
        *("aux", "auxiliary", "z", "mtp", "balancing", "balance"),
    )
)
"""Words before `loss` where it is not the loss of training."""
_ANSI = re.compile(r"\x1b\[[0-9;]*m")


class StepValues(NamedTuple):
    """One reported step; None where a value is missing. Values may be NaN or infinite."""

    step: int
    loss: float | None = None
    grad_norm: float | None = None
    update_norm: float | None = None
    loss_scale: float | None = None


@dataclass(kw_only=True)
class ReadCounts:
    """Counts of what a file held."""

    rows: int = 0
    """Rows that were judged."""
    losses: int = 0
    """Rows that held a loss."""
    skipped: int = 0
    """Rows without a step, without a number, with text where a number belongs, or too long."""
    repeated: int = 0
    """Rows of the step before them, as several ranks write into one log."""
    restarts: int = 0
    """Times the step went back: the run went on from a checkpoint."""
    truncated: bool = False
    """The compressed file ends in the middle."""


def to_step(text: str) -> int:
    """Return the number of a step, as `12` or `12.0`; raises ValueError."""
    number = float(text)
    if not 0 <= number <= _LARGEST_STEP or number != int(number):
        raise ValueError(f"{text!r} is no step")
    return int(number)


def to_value(text: str) -> float | None:
    """Return a number, NaN or infinite; None where there is none; raises ValueError for other text."""
    try:
        return float(text)
    except ValueError:
        if text.strip().lower() not in _MISSING:
            raise
        return None


def delimiter_of(header: str) -> str | None:
    """Return the delimiter, where the line is the header of a table with a step and a loss; else None."""
    for delimiter in _DELIMITERS:
        names = {name.lower() for name in _names(header, delimiter)}
        if {"step", "loss"} <= names:
            return delimiter
    return None


def likely_delimiter(header: str) -> str:
    """Return the delimiter that occurs most often."""
    return max(_DELIMITERS, key=header.count)


def read_table(
    header: str, lines: Iterable[str], counts: ReadCounts, *, delimiter: str, columns: Mapping[str, str]
) -> Iterator[StepValues]:
    """Yield the rows below the header; rows that hold no numbers are skipped and counted.

    columns: name of ours -> name in the file, for those that differ.
    Raises UserError where the header lacks a column.
    """
    places = _places(_names(header, delimiter), columns)
    step, *values = places
    width = max(place for place in places if place is not None) + 1
    for line in lines:
        if not line.strip():
            continue
        row: StepValues | None = None
        try:
            cells = _cells(line, delimiter)
            if len(cells) >= width and step is not None:
                found = [None if place is None else to_value(cells[place]) for place in values]
                if found.count(None) < len(found):
                    row = StepValues(to_step(cells[step]), *found)
        except (ValueError, csv.Error):
            row = None
        if row is None:
            counts.skipped += 1
        else:
            yield row


def _places(header: list[str], columns: Mapping[str, str]) -> list[int | None]:
    """Find each field of a StepValues in the header; None for what the table does not have."""
    places: list[int | None] = []
    lower = [name.lower() for name in header]
    for ours in ("step", *COLUMNS):
        theirs = columns.get(ours, ours)
        if theirs in header:
            places.append(header.index(theirs))
        elif theirs.lower() in lower:
            places.append(lower.index(theirs.lower()))
        elif ours in columns or ours in ("step", "loss"):
            raise UserError(
                f"the table has no column {theirs!r}; its columns are {_listed(header)}; "
                "name one with --column, as in --column loss=train/loss"
            )
        else:
            places.append(None)
    return places


def _listed(header: list[str]) -> str:
    shown = ", ".join(repr(name[:40]) for name in header[:12])
    return shown + (f" and {len(header) - 12} more" if len(header) > 12 else "")


def _names(header: str, delimiter: str) -> list[str]:
    return [cell.strip() for cell in _cells(header, delimiter)]


def _cells(line: str, delimiter: str) -> list[str]:
    # Each line by itself: a quotation mark that is never closed must not swallow the rest of the file.
    if '"' in line:
        return next(csv.reader([line.strip("\r\n").replace("\r", " ")], delimiter=delimiter), [])
    return line.split(delimiter)


def default_extract(line: str) -> dict[str, str]:
    """Find names and values in any order: `step 12 ... loss 3.4`, `iteration 12/ 500 | lm loss: 2.3E+00`."""
    if "\x1b" in line:
        line = _ANSI.sub("", line)
    step = _STEP.search(line)
    if step is None:
        return {}
    found = {name: match[1] for name, pattern in _OTHERS.items() if (match := pattern.search(line))}
    for match in _LOSS.finditer(line):
        if (match[1] or "").lower() not in _OTHER_LOSSES:
            found["loss"] = match[2]
            break
    return {"step": step[1], **found} if found else {}


def extract_by(pattern: str) -> Extract:
    """Extract what a regular expression with named groups finds; raises UserError where it cannot serve."""
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise UserError(f"--pattern is no regular expression: {error}") from error
    missing = [name for name in ("step", "loss") if name not in compiled.groupindex]
    if missing:
        raise UserError(
            f"--pattern has no group (?P<{missing[0]}>...); it needs step and loss, "
            f"and may have {', '.join(COLUMNS[1:])}"
        )
    wanted = [name for name in ("step", *COLUMNS) if name in compiled.groupindex]

    def extract(line: str) -> dict[str, str]:
        match = compiled.search(line)
        return {name: match[name] or "" for name in wanted} if match else {}

    return extract


def read_log(lines: Iterable[str], counts: ReadCounts, *, extract: Extract) -> Iterator[StepValues]:
    """Yield the rows; lines that report no step pass by, those with text for a number are counted."""
    for line in lines:
        found = extract(line)
        if not found:
            continue
        try:
            step = to_step(found.pop("step"))
            yield StepValues(step, **{name: to_value(text) for name, text in found.items()})
        except ValueError:
            counts.skipped += 1


@contextmanager
def bounded(extract: Extract, *, seconds: float = MATCH_SECONDS) -> Iterator[Extract]:
    """Give the block an `extract` that raises UserError on a line that takes longer. Main thread only."""
    watch = _Watch(extract, seconds)
    before = signal.signal(signal.SIGVTALRM, watch.tick)
    # Time of this process alone: neither a busy machine nor a slow pipe makes a line long.
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds, seconds)
    try:
        yield watch
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)
        signal.signal(signal.SIGVTALRM, before)


class _Watch:
    """Counts for the timer: a line that two ticks find is one too long. Costs no system call for a line."""

    def __init__(self, extract: Extract, seconds: float) -> None:
        self._extract = extract
        self._seconds = seconds
        self._line: str | None = None
        self._at_last_tick: str | None = None

    def __call__(self, line: str) -> dict[str, str]:
        self._line = line
        try:
            return self._extract(line)
        finally:
            self._line = self._at_last_tick = None

    def tick(self, number: int, frame: FrameType | None) -> None:
        """Handle the timer's signal."""
        if self._line is not None and self._line is self._at_last_tick:
            raise UserError(
                f"--pattern takes more than {self._seconds:g} s on the line {self._line[:_SHOWN].strip()!r}: "
                "it may repeat a repetition, as (a+)+ does; write it without"
            )
        self._at_last_tick = self._line


MAX_LINE_BYTES = 16384
"""A longer line is no row and no line of a log: it is skipped and counted."""
MAX_FRUITLESS_LINES = 2_000_000
"""After so many lines without a loss none is expected any more. They take some two seconds."""
_HEAD_BYTES = 8192
_TABLE_SUFFIXES = (".csv", ".tsv", ".csv.gz", ".tsv.gz")


def read_rows(
    path: Path, counts: ReadCounts, extract: Extract | None, columns: Mapping[str, str]
) -> Iterator[StepValues]:
    """Yield the steps of a file. extract: for the lines of a log; columns: as in `read_table`."""
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
    """Yield the lines of at most MAX_LINE_BYTES; a longer one is read away piece by piece, and counted."""
    whole = True
    while piece := source.readline(MAX_LINE_BYTES):
        ended = piece.endswith(b"\n")
        if whole and (ended or len(piece) < MAX_LINE_BYTES):
            yield piece
        elif whole:
            counts.skipped += 1
        whole = ended
