"""`newest`: the newest checkpoint in a folder that can be used, and why newer ones cannot."""

from __future__ import annotations

import contextlib
import heapq
import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from rankwatch.untrusted.folders import Folder
from rankwatch_checkpoints.layouts import TORCH_SUFFIXES, is_temporary, read_step, step_of
from rankwatch_checkpoints.reading import Pace, ReadError
from rankwatch_checkpoints.result import CheckpointError, CheckpointGoneError, Outcome, Verification
from rankwatch_checkpoints.tree import Tree
from rankwatch_checkpoints.verify import verify

_SUFFIXES = TORCH_SUFFIXES | {".safetensors"}
_MOST_LOOKED_INTO = 10_000
_LONGEST_REASON = 5000


class Candidate(NamedTuple):
    """A checkpoint by its name, not looked into yet."""

    step: int
    path: Path


class PassedOver(NamedTuple):
    """A newer checkpoint that cannot be used, and why in one line."""

    path: Path
    step: int
    reason: str


@dataclass(frozen=True)
class Newest:
    """The newest usable checkpoint, None if there is none, and what was passed over, the newest first."""

    found: Verification | None
    passed_over: tuple[PassedOver, ...]
    candidates: int
    """Checkpoints in the folder, looked into or not."""

    @property
    def path(self) -> Path | None:
        return self.found.path if self.found else None

    @property
    def step(self) -> int | None:
        return self.found.step if self.found else None


def candidates(folder: Path | str) -> list[Candidate]:
    """Return the checkpoints in a folder by their names, the highest step first; times of files do not count.

    Raises CheckpointError if the folder cannot be listed.
    """
    return _listed(Path(folder))[0]


def newest(
    folder: Path | str,
    *,
    bytes_per_second: float | None = None,
    progress: Callable[[int], None] | None = None,
) -> Newest:
    """Return the newest checkpoint in a folder that verifies. A trainer may call it before it resumes.

    A checkpoint that cannot be verified (`unverifiable`) is passed over too: nobody knows what it holds. So
    is one that nobody expected: whatever lies in the folder, this ends with an answer.
    Raises CheckpointError if the folder cannot be listed.
    """
    listed, count = _listed(Path(folder))
    passed: list[PassedOver] = []
    for each in listed:
        try:
            found = verify(each.path, bytes_per_second=bytes_per_second, progress=progress)
        except CheckpointGoneError:
            continue  # deleted since the folder was listed
        except CheckpointError as error:
            reason = str(error)
        except Exception as error:  # noqa: BLE001 - a training must start, whatever nobody has thought of
            reason = f"could not verify {each.path}: {type(error).__name__}: {error}"
        else:
            if found.outcome is Outcome.GOOD:
                found.step = each.step if found.step is None else found.step
                return Newest(found, tuple(passed), count)
            reason = reason_of(found)
        passed.append(PassedOver(each.path, each.step, reason[:_LONGEST_REASON]))
    return Newest(None, tuple(passed), count)


def _listed(base: Path) -> tuple[list[Candidate], int]:
    """Return the newest candidates, and how many there are. Raises CheckpointError."""
    count = 0

    def found(folder: Folder) -> Iterator[Candidate]:
        nonlocal count
        for name in folder.names():
            for each in _candidate(folder, name):
                count += 1
                yield each

    try:
        with Folder.open(base, follow=True) as folder:
            first = heapq.nlargest(_MOST_LOOKED_INTO, found(folder), key=_order)
    except FileNotFoundError:
        raise CheckpointGoneError(f"could not look for checkpoints in {base}: it is not there") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise CheckpointError(f"could not look for checkpoints in {base}: {reason}") from None
    return first, count


def _order(each: Candidate) -> tuple[int, bool, str]:
    return each.step, not is_temporary(each.path.name), each.path.name


def reason_of(found: Verification) -> str:
    """Return why a checkpoint is not good, in one line."""
    if found.problems:
        more = len(found.problems) - 1 + found.more_problems
        return f"{found.outcome}: {found.problems[0]}" + (f", and {more} more" if more else "")
    reasons = [str(each) for each in found.unchecked]
    return f"{found.outcome}: {reasons[0] if reasons else 'it holds nothing that is known'}"


def _candidate(folder: Folder, name: str) -> Iterator[Candidate]:
    path, is_folder = folder.path / name, _is_folder(folder, name)
    if not is_folder and path.suffix not in _SUFFIXES and not is_temporary(name):
        return
    step = step_of(name)
    if step is None and is_temporary(name):
        step = step_of(name.removesuffix(path.suffix).lstrip("."))
    if step is None and is_folder:
        with contextlib.suppress(OSError, ReadError), Tree(Folder.open(path, follow=True), Pace()) as tree:
            step = read_step(tree)
    if step is not None:
        yield Candidate(step, path)


def _is_folder(folder: Folder, name: str) -> bool:
    """Return True also for a link to one: a checkpoint can lie elsewhere."""
    try:
        return stat.S_ISDIR(os.stat(name, dir_fd=folder.fileno()).st_mode)
    except OSError:
        return False
