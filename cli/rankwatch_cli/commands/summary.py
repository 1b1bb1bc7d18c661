"""`rankwatch summary`: what a run did, in a few lines. Rank 0 prints the same when its process exits."""

from __future__ import annotations

from collections.abc import Sequence

from rankwatch.settings import SentenceParser
from rankwatch.untrusted.text import last_argument
from rankwatch_cli.options import add_run
from rankwatch_cli.output import show
from rankwatch_cli.runs import named_run, runs_directory
from rankwatch_diagnosis.run.summary import summary_lines


def main(arguments: Sequence[str]) -> int:
    """Print the card of one run; returns 0. Raises UserError where there is none."""
    parser = SentenceParser(
        prog="rankwatch summary",
        description="Print what a run did: steps, time by phase, throughput, worst rank, stalls.",
    )
    add_run(parser, "or its directory")
    given = parser.parse_args(arguments)
    directory = named_run(given.run)
    name = directory.name if directory.parent == runs_directory() else str(directory)
    show(*summary_lines(directory), f"  {'next':<12} rankwatch diagnose run {last_argument(name)}")
    return 0
