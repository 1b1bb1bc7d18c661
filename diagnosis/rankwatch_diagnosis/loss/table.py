"""Rows of a CSV file with the columns `step` and `loss`."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Mapping

from rankwatch_agent.runtime.errors import UserError
from rankwatch_diagnosis.loss.row import COLUMNS, Intake, Row, to_step, to_value

_DELIMITERS = ",;\t"


def delimiter_of(header: str) -> str | None:
    """The delimiter, where the line is the header of a table with a step and a loss; else None."""
    for delimiter in _DELIMITERS:
        names = {name.lower() for name in _names(header, delimiter)}
        if {"step", "loss"} <= names:
            return delimiter
    return None


def likely_delimiter(header: str) -> str:
    """The delimiter that occurs most often."""
    return max(_DELIMITERS, key=header.count)


def read_table(
    header: str, lines: Iterable[str], intake: Intake, *, delimiter: str, columns: Mapping[str, str]
) -> Iterator[Row]:
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
        try:
            cells = _cells(line, delimiter)
            row = _row(cells, step, values) if len(cells) >= width else None
        except (ValueError, csv.Error):
            row = None
        if row is None:
            intake.skipped += 1
        else:
            yield row


def _places(header: list[str], columns: Mapping[str, str]) -> list[int | None]:
    """Where each field of a Row is found; None for what the table does not have."""
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


def _row(cells: list[str], step: int | None, places: list[int | None]) -> Row | None:
    values = [None if place is None else to_value(cells[place]) for place in places]
    if step is None or values.count(None) == len(values):
        return None
    return Row(to_step(cells[step]), *values)


def _names(header: str, delimiter: str) -> list[str]:
    return [cell.strip() for cell in _cells(header, delimiter)]


def _cells(line: str, delimiter: str) -> list[str]:
    # Each line by itself: a quotation mark that is never closed must not swallow the rest of the file.
    if '"' in line:
        return next(csv.reader([line.strip("\r\n").replace("\r", " ")], delimiter=delimiter), [])
    return line.split(delimiter)
