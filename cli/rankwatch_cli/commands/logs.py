"""`rankwatch logs`: the newest lines that the ranks of a run have logged and printed."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from rankwatch.errors import BlackBoxError
from rankwatch.logs.lines import FILE_BYTES, PREVIOUS_SUFFIX, SLOTS, SUFFIX, Line, Source, read_lines_at
from rankwatch.members import members_text
from rankwatch.settings import SentenceParser
from rankwatch.untrusted.folders import Folder, read_owned
from rankwatch_agent.runtime.errors import UserError
from rankwatch_cli.options import add_run
from rankwatch_cli.output import as_json, note, show
from rankwatch_cli.runs import named_run

LOGS_FOLDER = "logs"
"""Of an evidence bundle."""
_COPIED = ".jsonl"
_MOST_FILES = 1 << 16
_MOST_LINES = 100_000
"""Of all ranks together: 100 MB."""
_MOST_COPY_BYTES = 8 * FILE_BYTES
"""Of a copy in a bundle: JSON escapes a control character by six."""
_COLOR = re.compile(r"\x1b\[[0-9;]*m")
"""Codes that programs print to colour a terminal."""
_LEVELS = ((21, "FATAL"), (17, "ERROR"), (13, "WARN"), (9, "INFO"), (5, "DEBUG"), (1, "TRACE"))
"""Least severity of OpenTelemetry -> its name."""


class _RankLine(NamedTuple):
    rank: int
    line: Line


def main(arguments: Sequence[str]) -> int:
    """Print the lines; returns 0. Raises UserError where there are none."""
    given = _parser().parse_args(arguments)
    if not 1 <= given.lines <= SLOTS:
        raise UserError(f"--lines is {given.lines}, expected 1 to {SLOTS}")
    directory = named_run(given.run, announce=True)
    files = _files(directory, PREVIOUS_SUFFIX if given.previous else SUFFIX)
    if given.rank is not None and given.rank not in files:
        raise UserError(f"{directory} holds no lines of rank {given.rank}, but of {members_text([*files])}")
    chosen = files if given.rank is None else {given.rank: files[given.rank]}
    most = min(given.lines, max(1, _MOST_LINES // len(chosen)))
    if most < given.lines:
        note(f"{len(chosen)} ranks: the newest {most} lines of each; --rank N shows more")
    found = [each for rank, file in chosen.items() for each in _read(rank, file)[-most:]]
    found.sort(key=lambda each: (each.line.time, each.rank, each.line.number))
    show(*map(_as_json if given.json else _as_text, found))
    return 0


def _parser() -> SentenceParser:
    parser = SentenceParser(
        prog="rankwatch logs",
        description=f"Print the newest lines, up to {SLOTS}, that each rank of a run on this node has\n"
        "logged or printed. They survive the process.",
    )
    add_run(parser, "its directory, or an evidence bundle")
    parser.add_argument("--rank", type=int, metavar="N", help="only this rank (default: all, by time)")
    parser.add_argument(
        "--lines", type=int, default=SLOTS, metavar="N", help=f"newest lines of each rank (default {SLOTS})"
    )
    parser.add_argument(
        "--previous",
        action="store_true",
        help="of the processes that had the ranks before, in an earlier attempt",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    return parser


def _files(directory: Path, suffix: str) -> dict[int, Path]:
    """Rank -> file with its lines, in a run's directory or a bundle. Raises UserError where none is there."""
    found: dict[int, Path] = {}
    try:
        with Folder.open(directory, follow=True) as opened:
            with suppress(OSError), opened.folder(LOGS_FOLDER) as copied:
                found = _ranks_in(copied, suffix + _COPIED)
            found = found or _ranks_in(opened, suffix)
    except OSError as error:
        raise UserError(f"could not read {directory}: {error.strerror or error}") from error
    if not found:
        earlier = " of an earlier attempt" if suffix == PREVIOUS_SUFFIX else ""
        raise UserError(f"{directory} holds no log lines{earlier}; RANKWATCH_LOG_LINES=0 turns them off")
    return dict(sorted(found.items()))


def _ranks_in(folder: Folder, ending: str) -> dict[int, Path]:
    names = (name for name in islice(folder.names(), _MOST_FILES) if name.endswith(ending))
    ranks = {name.removesuffix(ending): name for name in names}
    return {int(rank): folder.path / ranks[rank] for rank in ranks if rank.isdecimal() and len(rank) < 8}


def _read(rank: int, path: Path) -> list[_RankLine]:
    try:
        lines = [*_copied(path)] if path.suffix == _COPIED else read_lines_at(path)
    except BlackBoxError as error:
        raise UserError(str(error)) from error
    except OSError as error:
        raise UserError(f"could not read {path}: {error.strerror or error}") from error
    return [_RankLine(rank, line) for line in lines]


def _copied(path: Path) -> Iterator[Line]:
    """Yield the lines of a copy in a bundle. What makes no sense is left out."""
    for text in read_owned(path, path.lstat().st_uid, _MOST_COPY_BYTES).splitlines():
        try:
            entry = json.loads(text)
            source = Source[entry["source"].upper()]
            numbers = (int(entry["number"]), float(entry["time"]), int(entry["step"]), int(entry["severity"]))
            datetime.fromtimestamp(numbers[1], UTC)
            yield Line(*numbers, source, str(entry["text"]))
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, OSError, RecursionError):
            continue


def _as_text(each: _RankLine) -> str:
    line = each.line
    moment = datetime.fromtimestamp(line.time, UTC).strftime("%H:%M:%S.%f")[:-3]
    step = "" if line.step < 0 else f" step {line.step}"
    level = next((name for least, name in _LEVELS if line.severity >= least), line.source.name.lower())
    return f"{moment} rank {each.rank}{step} {level} {_COLOR.sub('', line.text)}"


def _as_json(each: _RankLine) -> str:
    line = each.line
    return as_json({"rank": each.rank} | line._asdict() | {"source": line.source.name.lower()})
