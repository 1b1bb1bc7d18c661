"""`rankwatch compare`: whether a run is worse than another one, with an exit status for CI."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict

from rankwatch.settings import SentenceParser
from rankwatch_cli.output import show, show_json
from rankwatch_cli.runs import named_run
from rankwatch_diagnosis.comparison import (
    Change,
    Comparison,
    Limited,
    Outcome,
    RunFigures,
    compare,
    read_figures,
)

REGRESSION_STATUS = 1
"""Exit status where a figure became worse by more than its limit."""
_PERCENT = re.compile(r"(\d{1,4}(?:\.\d{1,4})?)\s*%?", re.ASCII)
_HELP = {
    Limited.STEP_TIME: "the median step",
    Limited.P95_STEP_TIME: "the step that 95 %% are shorter than",
    Limited.THROUGHPUT: "any unit of work per second, such as tokens",
    Limited.SAVE_TIME: "the time for which a save blocks training",
    Limited.GPU_MEMORY: "the peak of the rank with the most",
    Limited.LOSS: "the mean over the last common steps",
}


def main(arguments: Sequence[str]) -> int:
    """Print the comparison; returns 0, or 1 for a regression. Raises UserError where a run cannot be read."""
    given = _parser().parse_args(arguments)
    limits = {each: limit for each in Limited if (limit := getattr(given, _flag(each, "_"))) is not None}
    before, after = (read_figures(named_run(each)) for each in (given.before, given.after))
    found = compare(before, after, limits)
    uncertain = [each for each in found.changes if each.outcome is Outcome.UNCERTAIN]
    failed = found.regressions or (given.strict and (uncertain or found.missing))
    if given.json:
        show_json(_as_json(found))
    else:
        show(*_lines(found))
    return REGRESSION_STATUS if failed else 0


def _parser() -> SentenceParser:
    parser = SentenceParser(
        prog="rankwatch compare",
        description="Say what became worse or better from one run to another: step time and its parts, "
        "throughput, saves, memory, loss. Exits with 1 if a figure became worse by more than its limit.",
    )
    name = "a run of this node, a directory with the black boxes of one run, or an evidence bundle"
    parser.add_argument("before", metavar="RUN_A", help=f"the run to compare with: {name}")
    parser.add_argument("after", metavar="RUN_B", help="the run that is judged")
    for each in Limited:
        help_text = f"limit for {_HELP[each]}, such as 5%%"
        parser.add_argument(f"--{_flag(each, '-')}", type=_share, metavar="PERCENT", help=help_text)
    parser.add_argument(
        "--strict",
        action="store_true",
        help="exit with 1 also where a figure with a limit is missing, or varies too much to be judged",
    )
    parser.add_argument("--json", action="store_true", help="print the comparison as one JSON object")
    return parser


def _flag(figure: Limited, joint: str) -> str:
    return f"max_{figure}_regression".replace("_", joint)


def _share(text: str) -> float:
    match = _PERCENT.fullmatch(text.strip())
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no percentage, expected one such as 5%")
    return float(match[1]) / 100


def _as_json(found: Comparison) -> dict[str, object]:
    changes = [{name: _json_value(value) for name, value in asdict(each).items()} for each in found.changes]
    return {
        "before": _run_as_json(found.before),
        "after": _run_as_json(found.after),
        "changes": changes,
        "unlike": found.unlike,
        "missing": found.missing,
        "regressions": [each.figure for each in found.regressions],
    }


def _run_as_json(run: RunFigures) -> dict[str, object]:
    steps = sorted(run.step_seconds)
    return {
        "run": run.run,
        "world_size": run.world_size,
        "ranks": run.ranks,
        "first_step": steps[0],
        "last_step": steps[-1],
        "steps": len(steps),
        "slowed_by": run.slowed_by,
        "notes": run.notes,
    }


def _json_value(value: object) -> object:
    """Put null for the upper end of an interval without one."""
    if isinstance(value, tuple):
        return [each if abs(each) < float("inf") else None for each in value]
    return value


def _lines(found: Comparison) -> Iterator[str]:
    for name, run in (("before", found.before), ("after", found.after)):
        notes = "".join(f"; {each}" for each in run.notes)
        yield f"{name:<6}  {run.run}: {run.ranks} ranks, {len(run.step_seconds)} steps{notes}"
        yield f"        {run.slowed_by}"
    yield from (f"unlike  {each}" for each in found.unlike)
    yield ""
    width = max(len(each.figure) for each in found.changes)
    for change in found.changes:
        values = f"{_value(change.before, change.unit):>12} {_value(change.after, change.unit):>12}"
        yield f"{change.figure:<{width}} {values}  {_judgement(change)}"
    for each in found.missing:
        yield f"{each.replace('_', ' ')} has a limit, but one of the runs does not show it"


def _judgement(change: Change) -> str:
    text = f"{abs(change.worsening):.1%} {'worse' if change.worsening > 0.0 else 'better'}"
    if change.interval is not None:
        low, high = change.interval
        upper = f"{high:+.1%}" if high < float("inf") else "any"
        text += f" ({low:+.1%} to {upper})"
    match change.outcome:
        case Outcome.SAME:
            return f"same: {text}"
        case Outcome.REGRESSION:
            return f"REGRESSION: {text}, the limit is {change.limit:.1%}"
        case Outcome.UNCERTAIN:
            return f"uncertain: {text}, the limit is {change.limit:.1%}"
    return text


def _value(value: float, unit: str) -> str:
    if unit == "seconds":
        return f"{value:.4g} s" if value >= 1.0 else f"{1e3 * value:.4g} ms"
    if unit == "bytes":
        return f"{value / 2**30:.4g} GiB"
    return f"{value:,.5g}"
