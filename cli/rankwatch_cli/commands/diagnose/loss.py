"""`rankwatch diagnose loss`: at which steps a loss diverged, spiked or became NaN."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rankwatch.settings import SentenceParser
from rankwatch_agent.runtime.errors import UserError
from rankwatch_agent.training.learning.loss import CONFIRM_STEPS
from rankwatch_cli.output import show_json, show_verdict
from rankwatch_cli.runs import boxes_of, named_run, runs_directory
from rankwatch_diagnosis.loss.detection import LossVerdict, as_json, colour_of, diagnose, lines
from rankwatch_diagnosis.loss.reading import COLUMNS
from rankwatch_diagnosis.run.boxes import read_boxes
from rankwatch_diagnosis.run.folder import find_run
from rankwatch_diagnosis.run.losses import judge_loss


def main(arguments: Sequence[str]) -> int:
    """Print the anomalies of a file; returns 0 whatever they are. Raises UserError where it holds no loss."""
    given = _parser().parse_args(arguments)
    if given.persistence < 1:
        raise UserError(f"--persistence is {given.persistence}, expected a whole number >= 1")
    if given.plateau < 0:
        raise UserError(f"--plateau is {given.plateau}, expected a whole number >= 0")
    if given.pattern is not None and given.column:
        raise UserError("--column goes with a table, --pattern with a log: give one of them")
    path = named_run(given.file, runs_directory(), announce=True)
    if boxes_of(path):
        verdict = _of_run(path, given.plateau)
    else:
        verdict = diagnose(
            path,
            pattern=given.pattern,
            columns=dict(map(_column, given.column)),
            persistence=given.persistence,
            new_levels=given.new_level,
            plateau_steps=given.plateau,
        )
    if given.json:
        show_json(as_json(verdict))
    else:
        show_verdict(*lines(verdict), colour=colour_of(verdict))
    return 0


def _of_run(directory: Path, plateau_steps: int) -> LossVerdict:
    paths = find_run(directory).boxes
    found = judge_loss(
        read_boxes(paths, copied=None),
        dict.fromkeys(path.parent for path in paths),
        plateau_steps=plateau_steps,
    )
    if found is None:
        raise UserError(f"no rank in {directory} reports a loss")
    return found[1]


def _column(text: str) -> tuple[str, str]:
    ours, equals, theirs = text.partition("=")
    known = ("step", *COLUMNS)
    if ours not in known or not equals or not theirs:
        raise UserError(f"--column is {text!r}, expected NAME=COLUMN with NAME one of {', '.join(known)}")
    return ours, theirs


def _parser() -> SentenceParser:
    parser = SentenceParser(
        prog="rankwatch diagnose loss",
        description="Name the steps at which a loss diverged, spiked or became NaN; gzip is read too.",
    )
    parser.add_argument(
        "file",
        nargs="?",
        metavar="FILE",
        help="a run of this node by its name (default: the newest), a CSV file with the columns "
        f"step, loss and, if any, {', '.join(COLUMNS[1:])}; or a trainer's log",
    )
    parser.add_argument(
        "--pattern",
        metavar="REGEX",
        help="regular expression for the lines of a log, with the named groups step and loss, as in "
        "'it (?P<step>\\d+) l=(?P<loss>\\S+)'; default: `step 12 ... loss 3.4` and its like",
    )
    parser.add_argument(
        "--column",
        action="append",
        default=[],
        metavar="NAME=COLUMN",
        help="what a column of the table is called, as in loss=train/loss; may be repeated",
    )
    parser.add_argument(
        "--persistence",
        type=int,
        default=CONFIRM_STEPS,
        metavar="STEPS",
        help="reported steps for which a loss that stands out must not fall back to diverge (default "
        f"{CONFIRM_STEPS}); the agent's alert waits 300 s besides",
    )
    parser.add_argument(
        "--new-level",
        type=int,
        action="append",
        default=[],
        metavar="STEP",
        help="a step from which the loss may stand elsewhere: other data, another learning rate; may be "
        "repeated",
    )
    parser.add_argument(
        "--plateau",
        type=int,
        default=0,
        metavar="STEPS",
        help="steps over which the loss must improve, about a fifth of the run (default 0: not looked for)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser
