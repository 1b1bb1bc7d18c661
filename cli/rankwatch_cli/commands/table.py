"""`rankwatch table`: the operations of a run as a table, straight from its black boxes."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from rankwatch.settings import SentenceParser
from rankwatch_agent.runtime.errors import UserError
from rankwatch_cli.options import FOLDER, add_run, add_steps, parse_window
from rankwatch_cli.output import note, open_output
from rankwatch_cli.runs import named_run
from rankwatch_diagnosis.operations.table import OperationTable
from rankwatch_diagnosis.operations.writing import FORMS, write_csv, write_table
from rankwatch_diagnosis.run.operation_table import table_of_run


def main(arguments: Sequence[str]) -> int:
    """Write one table; returns 0. Raises UserError where no step is there, or the file cannot be written."""
    given = _parser().parse_args(arguments)
    window, form = parse_window(given.steps), form_of(given.output, "--output")
    directory = named_run(given.run, announce=True)
    table = table_of_run(directory)
    if len(table) == 0:
        raise UserError(f"{directory} holds no complete step yet")
    steps = window.of(int(table.step.min()), int(table.step.max()))
    chosen = table.take((table.step >= steps.start) & (table.step < steps.stop))
    if len(chosen) == 0:
        raise UserError(f"no step of {given.steps} is in the black boxes, which hold steps {_span(table)}")
    write(chosen, given.output, form)
    note(_summary(table, chosen, steps, given.steps))
    return 0


def _parser() -> SentenceParser:
    parser = SentenceParser(
        prog="rankwatch table",
        description="Write the operations of a run as a table, straight from its black boxes: a\n"
        "row for each operation of each rank and step, as `rankwatch diagnose straggler` reads it.",
    )
    add_run(parser, f"or {FOLDER}")
    add_steps(parser)
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="FILE",
        help=f"write to FILE, as its name ends: {', '.join(FORMS)} (default: CSV to standard output)",
    )
    return parser


def form_of(output: Path | None, flag: str) -> str:
    """Return the format that a file's name asks for; empty for no file. Raises UserError for another name."""
    if output is None:
        return ""
    for form in FORMS:
        if output.name.lower().endswith(f".{form}"):
            return form
    endings = ", ".join(f".{form}" for form in FORMS)
    raise UserError(f"{flag} is {str(output)!r}, expected a name that ends in one of {endings}")


def write(table: OperationTable, output: Path | None, form: str) -> None:
    """Write a table to a file, or as CSV to standard output. Raises UserError where it cannot be written."""
    if output is None:
        write_csv(table, sys.stdout.buffer)
        return
    with open_output(output) as file:
        write_table(table, file, form)


def _summary(table: OperationTable, chosen: OperationTable, steps: range, asked: str) -> str:
    """Return what was written, and what of the window is not there."""
    ranks = len(np.unique(chosen.rank))
    of_ranks = f"{len(chosen):,} operations of {ranks:,} rank{'' if ranks == 1 else 's'}"
    text = f"steps {_span(chosen)}: {of_ranks}"
    if steps.start < table.step.min() or steps.stop > table.step.max() + 1:
        text += (
            f"; the black boxes hold steps {_span(table)}: the others of {asked} are overwritten, have not "
            "ended, or are the first of their process"
        )
    return text


def _span(table: OperationTable) -> str:
    return f"{table.step.min()} to {table.step.max()}"
