"""Prints a result as a Markdown table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from .result import Result

_HEAD = ("what", "measured", "spread", "target", "result")
_VERDICTS = {True: "met", False: "MISSED", None: ""}


def as_markdown(result: Result) -> str:
    """Title, table and notes."""
    lines = [(*row[:4], _VERDICTS[row.met]) for row in result.rows]
    notes = "".join(f"- {note}\n" for note in result.notes)
    return f"## {result.title}\n\n{_table((_HEAD, *lines))}\n{notes}"


def _table(lines: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    head, *body = (_line(line, widths) for line in lines)
    rule = _line(("-" * width for width in widths), widths)
    return "".join((head, rule, *body))


def _line(cells: Iterable[str], widths: Sequence[int]) -> str:
    padded = (f"{cell:<{width}}" for cell, width in zip(cells, widths, strict=True))
    return f"| {' | '.join(padded)} |\n"
