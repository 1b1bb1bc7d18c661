"""Which files of a directory are dumps, and of which ranks."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from rankwatch_agent.runtime.errors import UserError
from rankwatch_diagnosis.hang.snapshot import MAX_RANKS

RANK = re.compile(r"(\d{1,7})(?:\.[A-Za-z][A-Za-z0-9]*)*$")
"""The number at the end of a name, before suffixes such as .json and .pickle."""


class DumpFiles(NamedTuple):
    """A file per rank."""

    paths: dict[int, Path]
    strange: frozenset[int]
    """Ranks whose file is called otherwise than most are: if it is no dump, it was never meant to be one."""


def dumps_in(directory: Path) -> DumpFiles:
    """The files whose names end in the number of a rank; raises UserError where there are none.

    Where two name one rank, as a log beside the dumps may, the one that is called as more of them counts.
    """
    named = [(path, found) for path in sorted(directory.iterdir()) if (found := RANK.search(path.name))]
    named = [(path, found) for path, found in named if not path.is_dir()]
    alike = Counter(_likeness(found) for _, found in named)
    kept: dict[int, tuple[Path, tuple[str, str]]] = {}
    for path, found in named:
        rank, likeness = int(found[1]), _likeness(found)
        if rank >= MAX_RANKS:
            raise UserError(f"{path.name} in {directory} names rank {rank}; expected one below {MAX_RANKS}")
        other = kept.get(rank)
        if other is not None and alike[other[1]] == alike[likeness]:
            raise UserError(f"{other[0].name} and {path.name} in {directory} are both dumps of rank {rank}")
        if other is None or alike[likeness] > alike[other[1]]:
            kept[rank] = (path, likeness)
    if not kept:
        raise UserError(f"{directory} holds no file whose name ends in a rank's number, such as _dump_3")
    most = max(alike.values())
    strange = (rank for rank, (_, likeness) in kept.items() if most > 1 and alike[likeness] == 1)
    return DumpFiles({rank: path for rank, (path, _) in kept.items()}, frozenset(strange))


def without_strangers(broken: Iterable[tuple[int, str]], files: DumpFiles) -> dict[int, str]:
    """The ranks whose dumps are broken, without files that are none."""
    return {rank: reason for rank, reason in broken if rank not in files.strange}


def _likeness(found: re.Match[str]) -> tuple[str, str]:
    """What a name has beside the number of the rank."""
    return found.string[: found.start()], found.string[found.end(1) :]
