"""What lies in a run's directory: black boxes, sockets of flight recorders, dumps, or an evidence bundle."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping, Set
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from rankwatch.blackbox.layout import SUFFIX
from rankwatch.conventions.states import RankState
from rankwatch.lifecycle import CRASHED_SUFFIX
from rankwatch.sweep import SUFFIXES_BESIDE
from rankwatch.untrusted.folders import Folder, read_regular
from rankwatch_agent.runtime.errors import UserError
from rankwatch_agent.sources.rank_process import ProcessFacts
from rankwatch_agent.training.life.failures import Failure, crash_in

BOXES_FOLDER = "blackboxes"
DUMPS_FOLDER = "flight_recorder"
"""Folders of an evidence bundle; a simulated hang has the second one, too."""
MOST_FILES = 1 << 16
"""Of one folder that are looked at."""
_RANK = re.compile(r"(\d{1,7})(?:\.[A-Za-z][A-Za-z0-9]*)*$")
_OTHERS = (SUFFIX, *SUFFIXES_BESIDE)


@dataclass(frozen=True, kw_only=True)
class RunFolder:
    """Where the files of one run lie."""

    boxes: tuple[Path, ...]
    dumps: dict[int, Path] = field(default_factory=dict)
    """Rank -> file with a flight recorder."""
    bundle: Path | None = None
    """Evidence bundle, where it is one."""


def find_run(directory: Path) -> RunFolder:
    """Return the one run in a directory: its own, one above it, or a bundle. Raises UserError."""
    try:
        if not directory.is_dir():
            raise UserError(f"{directory} is no directory")
        copied = _is_folder(directory / BOXES_FOLDER)
        run = _run_folder(directory / BOXES_FOLDER if copied else directory)
        folders = {run, run / DUMPS_FOLDER, run.parent / DUMPS_FOLDER, directory, directory / DUMPS_FOLDER}
        owners = {run.stat().st_uid, os.geteuid(), 0}
        bundle = directory if copied else None
        return RunFolder(
            boxes=tuple(_boxes_in(run)),
            dumps=_dumps_in(folders, named=directory, owners=owners),
            bundle=bundle,
        )
    except OSError as error:
        raise UserError(f"could not read {directory}: {error.strerror or error}") from error


def _run_folder(directory: Path) -> Path:
    if any(True for _ in _boxes_in(directory)):
        return directory
    found = [each for each in _listed(directory) if _is_folder(each) and any(True for _ in _boxes_in(each))]
    if not found:
        raise UserError(f"{directory} holds no black box (RANK{SUFFIX}), and neither does a folder in it")
    if len(found) > 1:
        names = ", ".join(each.name for each in sorted(found)[:8])
        raise UserError(f"{directory} holds {len(found)} runs ({names}): give the directory of one")
    return found[0]


def _boxes_in(directory: Path) -> Iterator[Path]:
    return (each for each in _listed(directory) if each.suffix == SUFFIX and not each.name.startswith("."))


def _dumps_in(folders: Iterable[Path], *, named: Path, owners: Set[int]) -> dict[int, Path]:
    """Return the newest dump of each rank: names end in the rank's number, as in `diagnose hang`.

    named: the folder that a person has named, which alone may be a link.
    owners: whose folders and files count. Beside the folder of a run anybody may make one.
    """
    found: dict[int, tuple[float, Path]] = {}
    for folder in folders:
        with suppress(OSError), Folder.open(folder, follow=folder == named) as opened:
            if opened.owner not in owners:
                continue
            for name in islice(opened.names(), MOST_FILES):
                match = _RANK.search(name)
                if match is None or Path(name).suffix in _OTHERS or name.startswith("."):
                    continue
                facts = opened.status_of(name)
                rank = int(match[1])
                if not stat.S_ISREG(facts.st_mode) or facts.st_uid not in owners:
                    continue
                if rank not in found or found[rank][0] < facts.st_mtime:
                    found[rank] = (facts.st_mtime, folder / name)
    return {rank: path for rank, (_, path) in found.items()}


def _is_folder(path: Path) -> bool:
    """Say whether it is a folder, not a link to one: a run's directory belongs to the training user."""
    try:
        return stat.S_ISDIR(path.lstat().st_mode)
    except FileNotFoundError:
        return False


def _listed(directory: Path) -> list[Path]:
    return sorted(islice(directory.iterdir(), MOST_FILES))


_RANKS_FILE = "ranks.json"
_STACKS_FOLDER = "stacks"
_CRASHED = re.compile(rf"(\d{{1,7}}){re.escape(CRASHED_SUFFIX)}\.txt")
_MOST_RANKS_BYTES = 16 << 20
_MOST_RANKS = 1 << 17


@dataclass(frozen=True, kw_only=True)
class CopiedRanks:
    """What a bundle says about the ranks of its copied boxes; nothing where it makes no sense."""

    moment: float | None = None
    """When the agent last read the boxes, monotonic."""
    states: Mapping[int, RankState] = field(default_factory=dict)
    processes: Mapping[int, ProcessFacts] = field(default_factory=dict)
    crashes: Mapping[int, Failure] = field(default_factory=dict)
    """By rank."""
    silent: frozenset[int] = frozenset()
    """Ranks whose flight recorder took the question and gave no answer."""


def read_copied_ranks(bundle: Path) -> CopiedRanks:
    """Return what the files of a bundle say; whatever they hold is no error."""
    document = _ranks_document(bundle / _RANKS_FILE)
    moment = document.get("moment_monotonic_seconds")
    if not isinstance(moment, int | float) or not 0.0 < moment < 1e10:
        moment = None
    given = document.get("ranks")
    ranks = {
        each["rank"]: each
        for each in (given[:_MOST_RANKS] if isinstance(given, list) else ())
        if isinstance(each, dict) and isinstance(each.get("rank"), int)
    }
    by_text = {state.value: state for state in RankState}
    states = {rank: by_text.get(str(each.get("state"))) for rank, each in ranks.items()}
    processes = {rank: _process(each.get("process")) for rank, each in ranks.items()}
    return CopiedRanks(
        moment=moment,
        states={rank: state for rank, state in states.items() if state is not None},
        processes={rank: facts for rank, facts in processes.items() if facts is not None},
        crashes=_crashes(bundle / _STACKS_FOLDER),
        silent=frozenset(rank for rank, each in ranks.items() if each.get("flight_recorder_silent") is True),
    )


def _ranks_document(path: Path) -> dict[str, Any]:
    import msgspec  # only here: the boxes of a run are read without it

    try:
        document = msgspec.json.decode(read_regular(path, _MOST_RANKS_BYTES))
    except (OSError, msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return {}
    return document if isinstance(document, dict) else {}


def _crashes(folder: Path) -> dict[int, Failure]:
    """Return the crashes that the copied stacks show."""
    found = {}
    for path in _listed(folder) if _is_folder(folder) else ():
        match = _CRASHED.fullmatch(path.name)
        crash = None if match is None else crash_in(path)
        if match is not None and crash is not None:
            found[int(match[1])] = crash
    return found


def _process(given: object) -> ProcessFacts | None:
    import msgspec  # as above

    try:
        return msgspec.convert(given, ProcessFacts)
    except msgspec.ValidationError:
        return None
