"""`rankwatch trace`: a run as a trace that Perfetto and chrome://tracing open."""

from __future__ import annotations

import gzip
import sys
from collections.abc import Iterable, Sequence
from io import TextIOWrapper
from pathlib import Path
from typing import Any, TextIO

from rankwatch.settings import SentenceParser
from rankwatch_agent.runtime.errors import UserError
from rankwatch_cli.options import FOLDER, add_run, add_steps, parse_window
from rankwatch_cli.output import as_json, note, open_output
from rankwatch_cli.runs import named_run
from rankwatch_diagnosis.chrome_trace import ChromeTrace, Run

_STDOUT = "-"


def main(arguments: Sequence[str]) -> int:
    """Write one trace; returns 0. Raises UserError where no step is there, or the file cannot be written."""
    given = _parser().parse_args(arguments)
    window = parse_window(given.steps)
    directory = named_run(given.run, announce=True)
    run = Run(directory)
    steps = None
    if given.steps != ":":
        held = run.steps
        if held is None:
            raise UserError(f"{directory} holds no complete step yet")
        steps = window.of(held.oldest, held.newest)
        if steps.start > held.newest or steps.stop <= held.oldest:
            there = f"{held.oldest} to {held.newest}"
            raise UserError(f"no step of {given.steps} is in the black boxes, which hold steps {there}")
    trace = run.trace(steps)
    _write(trace.events, given.chrome)
    note(_summary(trace, given.chrome))
    return 0


def _parser() -> SentenceParser:
    parser = SentenceParser(
        prog="rankwatch trace",
        description="Write a run as a trace in Chrome's Trace Event Format, straight from its black boxes:\n"
        "open it in https://ui.perfetto.dev or chrome://tracing.",
    )
    add_run(parser, f"or {FOLDER}")
    parser.add_argument(
        "--chrome",
        required=True,
        metavar="FILE",
        help="file to write, compressed if its name ends in .gz; - prints",
    )
    add_steps(parser)
    return parser


def _write(events: Iterable[dict[str, Any]], target: str) -> None:
    if target == _STDOUT:
        _write_to(sys.stdout, events)
        return
    with open_output(Path(target)) as output:
        packed = target.endswith(".gz")
        with gzip.open(output, "wt", compresslevel=3) if packed else TextIOWrapper(output) as file:
            _write_to(file, events)


def _write_to(file: TextIO, events: Iterable[dict[str, Any]]) -> None:
    """Write one event a line, so that nothing as large as the trace is in memory."""
    file.write('{"displayTimeUnit": "ms", "traceEvents": [')
    for number, event in enumerate(events):
        file.write(("\n" if number == 0 else ",\n") + as_json(event))
    file.write("\n]}\n")


def _summary(trace: ChromeTrace, target: str) -> str:
    ranks = f"{trace.ranks:,} rank{'' if trace.ranks == 1 else 's'}"
    steps = f"steps {trace.first_step} to {trace.last_step}" if trace.last_step >= 0 else "no step"
    text = f"{steps} of {ranks}: {len(trace.events):,} events"
    if trace.left_out:
        text += f"; the {trace.left_out:,} oldest are left out: choose steps by --steps"
    return text if target == _STDOUT else f"{text}; open {target} in https://ui.perfetto.dev"
