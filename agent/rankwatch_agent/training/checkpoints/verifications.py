"""What became of verified checkpoints, kept across restarts of the agent: none is read twice."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from rankwatch_agent.runtime.state_file import StateFile
from rankwatch_agent.runtime.turns import excess

_MOST_RUNS = 500
"""Of more, the user with most of them loses the oldest."""
_MOST_RECORDS = 32
"""Of one run; a note holds 16 checkpoints."""
_MOST_KEPT_BYTES = 8 << 20
"""Of the file, which is written anew for each verification. Of more, likewise."""
_MOST_BYTES = 32 << 20
_BAD = ("damaged", "incomplete")


class Saved(NamedTuple):
    """A save as the rank noted it."""

    path: str
    step: int
    ended: float
    """Unix time."""


@dataclass(frozen=True)
class VerificationRecord:
    """A verification that is over, or runs."""

    path: str
    step: int
    ended: float
    outcome: str
    finished: float
    """Unix time; 0 as long as it runs."""
    seconds: float
    bytes: int = 0
    file: str = ""
    tensor: str = ""
    damage: str = ""
    private: bool = True
    """The note that named it was hidden from other users: its path and names are for nobody else. Records of
    an agent that did not write it down are taken for such."""
    owner: int | None = None
    """User id of the run's owner; None in records of an agent that did not write it down."""
    tries: int = 1
    """How often it was begun: more than once if the agent ended meanwhile."""

    @property
    def found_bad(self) -> bool:
        """A resume must not take it."""
        return self.outcome in _BAD

    @cached_property
    def size(self) -> int:
        """Bytes that it takes in the file."""
        return len(json.dumps(asdict(self)))

    @property
    def saved(self) -> Saved:
        """The save that was verified."""
        return Saved(self.path, self.step, self.ended)


class VerificationRecords:
    """The records of each run, the newest last, in a file; without one they die with the agent."""

    def __init__(self, directory: Path | None) -> None:
        self._runs: dict[str, list[VerificationRecord]] = {}
        self._file = StateFile(
            directory, "verifications.json", lost="checkpoints are verified again", most_bytes=_MOST_BYTES
        )
        self._file.load(self._load)

    def of_run(self, run: str) -> list[VerificationRecord]:
        """Return the records of a run in the order in which they finished."""
        return self._runs.get(run, [])

    def add(self, run: str, record: VerificationRecord) -> None:
        """Take one, and write the file."""
        kept = [each for each in self._runs.pop(run, []) if each.saved != record.saved]
        self._runs[run] = [*kept, record][-_MOST_RECORDS:]
        self._forget(_MOST_RUNS, lambda _: 1)
        self._forget(_MOST_KEPT_BYTES, lambda run: sum(each.size for each in self._runs[run]))
        self._save()

    def forget(self, run: str, saved: Saved) -> None:
        """Drop a record, so that the checkpoint may be verified again, and write the file."""
        kept = [each for each in self._runs.pop(run, []) if each.saved != saved]
        if kept:
            self._runs[run] = kept
        self._save()

    def unfinished(self) -> list[tuple[str, VerificationRecord]]:
        """Return those that run, or ran when the agent ended, with their runs."""
        return [(run, each) for run, found in self._runs.items() for each in found if not each.finished]

    def _forget(self, most: int, size: Callable[[str], int]) -> None:
        owners = {each: records[-1].owner for each, records in self._runs.items()}
        for each in excess(owners, owner=owners.__getitem__, most=most, size=size):
            del self._runs[each]

    def _save(self) -> None:
        self._file.save({run: [asdict(each) for each in found] for run, found in self._runs.items()})

    def _load(self, found: Any) -> None:
        self._runs = {str(run): [_record(each) for each in records] for run, records in found.items()}


def newest_of_paths(records: Iterable[VerificationRecord]) -> list[VerificationRecord]:
    """Return each path's newest save, in the order of the saves: a path that was written again holds that."""
    return list({each.path: each for each in sorted(records, key=lambda each: each.ended)}.values())


def _record(found: dict[str, Any]) -> VerificationRecord:
    record = VerificationRecord(**found)
    if not all(isinstance(each, (int, float)) for each in (record.step, record.ended, record.finished)):
        raise ValueError("a record has no step or times")
    return record
