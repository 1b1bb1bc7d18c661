"""`rankwatch checkpoint`: is a checkpoint what was written, and which is the newest that can be used."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from rankwatch.settings import SentenceParser
from rankwatch_agent.runtime.errors import UserError
from rankwatch_checkpoints import (
    CheckpointError,
    CheckpointGoneError,
    Newest,
    Outcome,
    Verification,
    newest,
    verify,
)
from rankwatch_cli.output import progress, show, show_json

HELP = "verify a checkpoint on disk, or find the newest one that can be used"
_STATUS = {Outcome.GOOD: 0, Outcome.DAMAGED: 1, Outcome.INCOMPLETE: 1, Outcome.UNVERIFIABLE: 2}
_SHOWN = 50
"""Lines of problems and of what was not checked; `--json` has them all."""


def main(arguments: Sequence[str]) -> int:
    """Verify a checkpoint or find the newest; returns 0, 1 for a bad one, 2 for one nobody can judge."""
    parser = SentenceParser(
        prog="rankwatch checkpoint",
        description="Verify checkpoints. No pickle is executed, no link followed out of them.",
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    one = commands.add_parser(
        "verify",
        help="say if a checkpoint is what was written: 0 good, 1 damaged or incomplete, 2 cannot be judged",
        description="Say if a checkpoint is what was written, and name the file and the tensor that is not.",
    )
    one.add_argument("path", type=Path, metavar="PATH", help="a file or a folder")
    many = commands.add_parser(
        "newest",
        help="name the newest checkpoint that can be used, and why newer ones cannot",
        description="Name the newest checkpoint, by step, that verifies, and why newer ones do not.",
    )
    many.add_argument("path", type=Path, metavar="DIR", help="a folder of checkpoints")
    for each in (one, many):
        each.add_argument("--json", action="store_true", help="print one JSON object")
        each.add_argument(
            "--bytes-per-second", type=_rate, metavar="N", help="read no faster; 200M and 1.5G are understood"
        )
    given = parser.parse_args(arguments)
    shown = _progress if sys.stderr.isatty() and not given.json else None
    try:
        if given.command == "verify":
            return _verify(given, shown)
        return _newest(given, shown)
    except (CheckpointError, CheckpointGoneError) as error:
        raise UserError(str(error)) from None


def _verify(given: argparse.Namespace, progress: Callable[[int], None] | None) -> int:
    found = verify(given.path, bytes_per_second=given.bytes_per_second, progress=progress)
    if given.json:
        show_json(found.as_json())
    else:
        show(*describe(found))
    return _STATUS[found.outcome]


def _newest(given: argparse.Namespace, progress: Callable[[int], None] | None) -> int:
    result = newest(given.path, bytes_per_second=given.bytes_per_second, progress=progress)
    if not result.candidates:
        raise UserError(f"could not find a checkpoint in {given.path}: no name in it says a step")
    if given.json:
        show_json(_newest_as_json(result))
    else:
        show(*_newest_lines(result, given.path))
    return 0 if result.found else 1


def describe(found: Verification) -> list[str]:
    """Return the result in lines, the outcome first."""
    step = f", step {found.step}" if found.step is not None else ""
    size = f"{found.files} files, {_size(found.bytes)}" if found.files != 1 else _size(found.bytes)
    lines = [f"{found.outcome}: {found.path} ({found.format or 'unknown format'}{step}, {size})"]
    if found.outcome is Outcome.GOOD:
        by_name = f", {found.tensors} tensors and objects by name" if found.tensors else ""
        lines.append(f"  {_size(found.verified_bytes)} of {_size(found.bytes)} by checksum{by_name}")
    lines += [f"  {each}" for each in found.problems[:_SHOWN]]
    hidden = max(0, len(found.problems) - _SHOWN) + found.more_problems
    lines += [f"  and {hidden} more problems"] if hidden else []
    lines += [f"  not checked: {each}" for each in found.unchecked[:_SHOWN]]
    hidden = max(0, len(found.unchecked) - _SHOWN) + found.more_unchecked
    return lines + ([f"  and {hidden} more that were not checked"] if hidden else [])


def _newest_lines(result: Newest, folder: Path) -> list[str]:
    if result.found is None:
        lines = [f"none of the {result.candidates} checkpoints in {folder} can be used"]
    else:
        lines = describe(result.found)[:1]
    return lines + [f"  passed over {each.path.name}: {each.reason}" for each in result.passed_over]


def _newest_as_json(result: Newest) -> dict[str, object]:
    return {
        "newest": result.found.as_json() if result.found else None,
        "passed_over": [
            {"path": str(each.path), "step": each.step, "reason": each.reason} for each in result.passed_over
        ],
        "candidates": result.candidates,
    }


def _rate(text: str) -> float:
    units = {"k": 1e3, "M": 1e6, "G": 1e9}
    try:
        value = float(text[:-1]) * units[text[-1]] if text[-1:] in units else float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1e15:
        raise argparse.ArgumentTypeError(f"{text!r} is no rate, expected bytes such as 200M")
    return value


def _size(count: int) -> str:
    for size, unit in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} bytes"


def _progress(count: int) -> None:
    progress(f"{_size(count)} read")
