"""`rankwatch table`: the operations of a run as a table, straight from its black boxes."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from rankwatch.settings import SentenceParser
from rankwatch.untrusted.paths import create_output
from rankwatch_agent.runtime.errors import UserError
from rankwatch_cli.output import note
from rankwatch_cli.runs import boxes_of, named_run, runs_directory
from rankwatch_cli.step_window import HELP, parse_window
from rankwatch_diagnosis.operations.table import OperationTable
from rankwatch_diagnosis.operations.writing import FORMS, write_csv, write_table
from rankwatch_diagnosis.profiler_traces.reading import holds_traces, read_traces
from rankwatch_diagnosis.run.operation_table import table_of_run

_BOXES = "black boxes"


def main(arguments: Sequence[str]) -> int:
    """Write one table; returns 0. Raises UserError where no step is there, or the file cannot be written."""
    given = _parser().parse_args(arguments)
    window, form = parse_window(given.steps), form_of(given.output, "--output")
    directory = named_run(given.run, runs_directory(), announce=True)
    from_traces = not boxes_of(directory) and holds_traces(directory)
    table = read_traces(directory).table if from_traces else table_of_run(directory)
    source = "traces" if from_traces else _BOXES
    if len(table) == 0:
        raise UserError(f"{directory} holds no complete step yet")
    steps = window.of(int(table.step.min()), int(table.step.max()))
    chosen = table.take((table.step >= steps.start) & (table.step < steps.stop))
    if len(chosen) == 0:
        raise UserError(f"no step of {given.steps} is in the {source}, which hold steps {_span(table)}")
    write(chosen, given.output, form)
    note(_summary(table, chosen, steps, given.steps, source))
    return 0


def _parser() -> SentenceParser:
    parser = SentenceParser(
        prog="rankwatch table",
        description="Write the operations of a run as a table, straight from its black boxes or its\n"
        "profiler's traces: a row for each operation of each rank and step, as\n"
        "`rankwatch diagnose straggler` reads it.",
    )
    parser.add_argument(
        "run",
        nargs="?",
        metavar="RUN",
        help="name of a run of this node, as `rankwatch ls` lists it (default: the newest), or a directory "
        "with the black boxes of one run, live or dead, or an evidence bundle, or with the traces of "
        "PyTorch's profiler",
    )
    parser.add_argument(
        "--steps",
        default=":",
        metavar="A:B",
        help=HELP,
    )
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="FILE",
        help=f"write to FILE, as its name ends: {', '.join(FORMS)} (default: CSV to standard output)",
    )
    return parser


def form_of(output: Path | None, flag: str) -> str:
    """The format that a file's name asks for; empty for no file. Raises UserError for another name."""
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
    try:
        with os.fdopen(create_output(output), "wb") as file:
            write_table(table, file, form)
    except OSError as error:
        raise UserError(f"could not write {output}: {error.strerror or error}") from error


def _summary(table: OperationTable, chosen: OperationTable, steps: range, asked: str, source: str) -> str:
    """What was written, and what of the window is not there."""
    ranks = len(np.unique(chosen.rank))
    of_ranks = f"{len(chosen):,} operations of {ranks:,} rank{'' if ranks == 1 else 's'}"
    text = f"steps {_span(chosen)}: {of_ranks}"
    if steps.start < table.step.min() or steps.stop > table.step.max() + 1:
        text += (
            f"; the {source} hold steps {_span(table)}: the others of {asked} are overwritten, have not "
            "ended, or are the first of their process"
            if source == _BOXES
            else f"; the {source} of all ranks hold steps {_span(table)}"
        )
    return text


def _span(table: OperationTable) -> str:
    return f"{table.step.min()} to {table.step.max()}"
