"""`rankwatch diagnose trace DIR`: which rank, which cause, from the traces of PyTorch's profiler."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from rankwatch.settings import SentenceParser
from rankwatch_agent.runtime.errors import UserError

if TYPE_CHECKING:
    from rankwatch_diagnosis.straggler.engine import Examination
    from rankwatch_profiler_traces.reading import TraceTable

HELP = "which rank or cause slows a run down, from traces of PyTorch's profiler"
EXTRA = "diagnosis"


def main(arguments: Sequence[str]) -> int:
    """Diagnose the traces of one run; returns 0. Raises UserError where they give no table."""
    from rankwatch_cli.commands.diagnose.straggler import add_output_flags, print_verdict, with_by_rank
    from rankwatch_cli.commands.table import form_of, write
    from rankwatch_profiler_traces.reading import read_traces

    parser = SentenceParser(
        prog="rankwatch diagnose trace",
        description="Name the rank, stage or cause that slows a run down, from the traces that PyTorch's\n"
        "profiler wrote, one or more per rank.",
        epilog="Traces are read in small parts, on all cores: six of 500 MB take some 300 MiB of memory.",
    )
    parser.add_argument(
        "table",
        metavar="DIR",
        help="a directory of traces (.json, also .json.gz), as tensorboard_trace_handler and "
        "export_chrome_trace write them",
    )
    add_output_flags(parser)
    parser.add_argument(
        "--table",
        dest="output",
        type=Path,
        metavar="FILE",
        help="write the table of operations too, as `rankwatch table` does",
    )
    given = with_by_rank(parser.parse_args(arguments))
    form = form_of(given.output, "--table")
    directory = Path(given.table)
    if not directory.is_dir():
        raise UserError(f"{directory} is no directory of traces")
    traces = read_traces(directory)
    if given.output is not None:
        write(traces.table, given.output, form)
    return print_verdict(_examine(traces), given, subject=directory.resolve().name)


def _examine(traces: TraceTable) -> Examination:
    """Examine them by the engine, with what the traces show and do not show as evidence."""
    from rankwatch_diagnosis.straggler.engine import Examination, examine

    found, case = examine(traces.table)
    evidence = {
        **found.evidence,
        "traces": traces.facts,
        "collectives": traces.collectives,
        **({"not_shown": list(traces.notes)} if traces.notes else {}),
        **({"skipped_rows": traces.skipped} if traces.skipped else {}),
    }
    return Examination(replace(found, evidence=evidence), case)
