"""`newest`: the newest checkpoint in a folder that can be used, and why newer ones cannot."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from rankwatch.checkpoint_files.layouts import TRAINER_STATE, read_json
from rankwatch.checkpoint_files.names import TORCH_SUFFIXES, is_temporary, step_of
from rankwatch.checkpoint_files.reading import Pace
from rankwatch.checkpoint_files.result import CheckpointError, CheckpointGoneError, Outcome, Verification
from rankwatch.checkpoint_files.verify import verify

_SUFFIXES = TORCH_SUFFIXES | {".safetensors"}


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
    """The checkpoints in a folder by their names, the highest step first; times of files do not count.

    Raises CheckpointError if the folder cannot be listed.
    """
    base = Path(folder)
    try:
        entries = sorted(os.scandir(base), key=lambda each: each.name)
    except FileNotFoundError:
        raise CheckpointGoneError(f"could not look for checkpoints in {base}: it is not there") from None
    except OSError as error:
        raise CheckpointError(f"could not look for checkpoints in {base}: {error.strerror}") from None
    found = [each for entry in entries for each in _candidate(Path(entry.path), entry.is_dir())]
    return sorted(found, key=lambda each: (each.step, not is_temporary(each.path.name)), reverse=True)


def newest(
    folder: Path | str,
    *,
    bytes_per_second: float | None = None,
    progress: Callable[[int], None] | None = None,
) -> Newest:
    """The newest checkpoint in a folder that verifies. A trainer may call it before it resumes.

    A checkpoint that cannot be verified (`unverifiable`) is passed over too: nobody knows what it holds.
    Raises CheckpointError if the folder cannot be listed.
    """
    listed = candidates(folder)
    passed: list[PassedOver] = []
    for each in listed:
        try:
            found = verify(each.path, bytes_per_second=bytes_per_second, progress=progress)
        except CheckpointGoneError:
            continue  # deleted since the folder was listed
        except CheckpointError as error:
            passed.append(PassedOver(each.path, each.step, str(error)))
            continue
        if found.outcome is Outcome.GOOD:
            found.step = each.step if found.step is None else found.step
            return Newest(found, tuple(passed), len(listed))
        passed.append(PassedOver(each.path, each.step, reason_of(found)))
    return Newest(None, tuple(passed), len(listed))


def reason_of(found: Verification) -> str:
    """Why a checkpoint is not good, in one line."""
    if found.problems:
        more = len(found.problems) - 1 + found.more_problems
        return f"{found.outcome}: {found.problems[0]}" + (f", and {more} more" if more else "")
    reasons = [str(each) for each in found.unchecked]
    return f"{found.outcome}: {reasons[0] if reasons else 'it holds nothing that is known'}"


def _candidate(path: Path, is_folder: bool) -> Iterator[Candidate]:
    if not is_folder and path.suffix not in _SUFFIXES and not is_temporary(path.name):
        return
    step = step_of(path.name)
    if step is None and is_temporary(path.name):
        step = step_of(path.name.removesuffix(path.suffix).lstrip("."))
    if step is None and is_folder and (path / TRAINER_STATE).exists():
        state = read_json(path, TRAINER_STATE, Pace())
        step = state.get("global_step") if isinstance(state, dict) else None
    if type(step) is int:
        yield Candidate(step, path)
