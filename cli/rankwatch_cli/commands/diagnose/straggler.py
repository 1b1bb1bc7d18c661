"""`rankwatch diagnose straggler TABLE`: which rank, which cause, what it cost."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from rankwatch.settings import SentenceParser
from rankwatch_agent.runtime.errors import UserError
from rankwatch_cli.commands.diagnose.rank_table import rank_lines
from rankwatch_cli.output import note, show, show_json, show_verdict
from rankwatch_cli.runs import named_run, runs_directory
from rankwatch_diagnosis.json_value import json_value
from rankwatch_diagnosis.operations.reading import read_operations
from rankwatch_diagnosis.run.operation_table import table_of_run
from rankwatch_diagnosis.run.report import event_lines
from rankwatch_diagnosis.straggler.by_rank import ByRank, look_by_rank
from rankwatch_diagnosis.straggler.engine import Examination, examine
from rankwatch_diagnosis.straggler.report import (
    cause_lines,
    cost_sentence,
    fixed_line,
    sentence,
    unjudged_lines,
    whom,
)
from rankwatch_diagnosis.straggler.verdict import Verdict, as_json

_RANKS_SHOWN = 16
"""In the table of --by-rank."""
_MOST_RANKS_SHOWN = 1_000_000
_MOST_LINES = 8
"""Of one list in the evidence."""


def main(arguments: Sequence[str]) -> int:
    """Diagnose one table; returns 0. Raises UserError where the file cannot be used."""
    given = with_by_rank(_parser().parse_args(arguments))
    path = named_run(given.table, runs_directory(), announce=True)
    return print_verdict(_examine(path), given, subject=path.name)


def print_verdict(examined: Examination, given: Namespace, *, subject: str) -> int:
    """Print a verdict as the flags ask; returns 0. Raises UserError where the page cannot be written.

    subject: what was diagnosed, for the page.
    """
    found, case = examined
    wanted = case is not None and (given.by_rank or given.html is not None)
    by_rank = look_by_rank(case, found) if case is not None and wanted else None
    if given.html is not None:
        _write_page(examined, by_rank, subject, given.html)
    verdict = as_json(found)
    if given.json:
        ranks = [] if by_rank is None else [json_value(vars(each)) for each in by_rank.rows]
        show_json(verdict | ({"by_rank": ranks} if given.by_rank else {}))
        return 0
    show_verdict(*_lines(found, verdict))
    if given.by_rank and by_rank is not None:
        show("", *rank_lines(by_rank, given.by_rank))
    return 0


def _parser() -> SentenceParser:
    parser = SentenceParser(
        prog="rankwatch diagnose straggler",
        description="Name the rank, stage or cause that slows a run down, and what it cost.",
        epilog=(
            "columns: step, rank, operation, kind (compute, communication, data_loading, other),\n"
            "start_seconds, duration_seconds; optionally stage, replica (ranks with one replica work\n"
            "on the same microbatches), microbatch, group (process group), work (units of work)."
        ),
    )
    parser.add_argument(
        "table",
        nargs="?",
        metavar="TABLE",
        help="CSV (also .gz), JSONL or Parquet, or a run of this node by its name (default: the newest)",
    )
    add_output_flags(parser)
    return parser


def add_output_flags(parser: SentenceParser) -> None:
    """Add the flags of every command that prints a verdict of the straggler engine."""
    parser.add_argument("--json", action="store_true", help="print the verdict as one JSON object")
    parser.add_argument(
        "--by-rank",
        nargs="?",
        const=str(_RANKS_SHOWN),
        metavar="N",
        help="print every rank beside its peers, too: its residual, where its time goes, and what it costs; "
        f"of more than N ranks those at both ends (default {_RANKS_SHOWN}; --json has all)",
    )
    parser.add_argument(
        "--html",
        type=Path,
        metavar="FILE",
        help="write a page to look at: a heat map of ranks and steps, the critical path of the worst step, "
        "the causes with their costs; it is one file and loads nothing",
    )


def _examine(path: Path) -> Examination:
    """Examine a run's directory or a file."""
    if path.is_dir():
        return examine(table_of_run(path))
    reading = read_operations(path)
    found, case = examine(reading.table)
    if reading.skipped:
        found = replace(found, evidence={**found.evidence, "skipped_rows": reading.skipped})
    return Examination(found, case)


def _write_page(examined: Examination, by_rank: ByRank | None, subject: str, file: Path) -> None:
    # Only here: nothing else needs the template library.
    from rankwatch_diagnosis.straggler.page import page

    try:
        file.write_text(page(examined, by_rank, subject), encoding="utf-8")
    except OSError as error:
        raise UserError(f"could not write {file}: {error.strerror or error}") from error
    note(f"page: {file}")


def with_by_rank(given: Namespace) -> Namespace:
    """Return the flags with how many ranks to show (0: none). TABLE may follow a --by-rank without one.

    Raises UserError.
    """
    text = given.by_rank
    if text is not None and not text.isdecimal() and given.table is None:
        given.table, text = text, str(_RANKS_SHOWN)
    if text is not None and not (text.isdecimal() and 0 < int(text) <= _MOST_RANKS_SHOWN):
        raise UserError(f"--by-rank is {text!r}, expected how many ranks to show, such as {_RANKS_SHOWN}")
    given.by_rank = 0 if text is None else int(text)
    return given


def _lines(found: Verdict, verdict: Mapping[str, object]) -> Iterator[str]:
    named = whom(found)
    yield f"{found.cause.value}: {f'{named}: ' if named else ''}{sentence(found)}"
    yield from filter(None, [cost_sentence(found)])
    yield from event_lines(found)
    yield from filter(None, [fixed_line(found)])
    for part in (cause_lines(found), unjudged_lines(found)):
        yield from ["", *part] if part else []
    yield ""
    evidence = verdict["evidence"]
    assert isinstance(evidence, Mapping)
    for name, value in evidence.items():
        yield from _evidence(name, value)


def _evidence(name: str, value: object) -> Iterator[str]:
    if isinstance(value, list) and value and isinstance(value[0], Mapping):
        yield f"{name}:"
        for each in value[:_MOST_LINES]:
            yield "  " + _items(each)
        if len(value) > _MOST_LINES:
            yield f"  and {len(value) - _MOST_LINES} more"
    elif isinstance(value, list) and value and isinstance(value[0], str):
        yield f"{name}:"
        yield from (f"  {each}" for each in value)
    elif isinstance(value, Mapping):
        yield f"{name}: " + _items(value)
    else:
        yield f"{name}: {_short(value)}"


def _items(values: Mapping[str, object]) -> str:
    """Return what has a value; an empty list or None would only be noise."""
    return ", ".join(f"{key} {_short(item)}" for key, item in values.items() if item not in (None, []))


def _short(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
