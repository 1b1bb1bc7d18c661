"""What was verified and what came out, kept across restarts of the agent: no checkpoint is read twice."""

from __future__ import annotations

import json
import logging
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from rankwatch_agent.runtime.logs import LogLimit

logger = logging.getLogger(__name__)

_MOST_RUNS = 500
_MOST_RECORDS = 32
"""Of one run; a note holds 16 checkpoints."""
_MOST_BYTES = 32 << 20


class Saved(NamedTuple):
    """A save as the rank noted it."""

    path: str
    step: int
    ended: float
    """Unix time."""


@dataclass(frozen=True)
class VerificationRecord:
    """A verification that is over."""

    path: str
    step: int
    ended: float
    outcome: str
    finished: float
    """Unix time."""
    seconds: float
    bytes: int = 0
    file: str = ""
    tensor: str = ""
    damage: str = ""

    @property
    def saved(self) -> Saved:
        """The save that was verified."""
        return Saved(self.path, self.step, self.ended)


class VerificationRecords:
    """The records of each run, the newest last, in a file; without one they die with the agent."""

    def __init__(self, directory: Path | None) -> None:
        self._runs: dict[str, list[VerificationRecord]] = {}
        self._path = None if directory is None else directory / "verified.json"
        self._log_limit = LogLimit()
        if self._path is not None:
            self._load(self._path)

    def of_run(self, run: str) -> list[VerificationRecord]:
        """In the order in which they finished."""
        return self._runs.get(run, [])

    def add(self, run: str, record: VerificationRecord) -> None:
        """Take one, and write the file."""
        kept = [each for each in self._runs.pop(run, []) if each.saved != record.saved]
        self._runs[run] = [*kept, record][-_MOST_RECORDS:]
        while len(self._runs) > _MOST_RUNS:
            del self._runs[next(iter(self._runs))]
        self._save()

    def _save(self) -> None:
        if self._path is None:
            return
        runs = {run: [asdict(each) for each in found] for run, found in self._runs.items()}
        temporary = self._path.with_suffix(".new")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            temporary.write_text(json.dumps(runs))
            temporary.replace(self._path)
        except OSError as error:
            if self._log_limit.allows("save"):
                logger.warning(
                    "could not write %s: %s; a restart of the agent verifies checkpoints again",
                    self._path,
                    error.strerror,
                )

    def _load(self, path: Path) -> None:
        try:
            if path.stat().st_size > _MOST_BYTES:
                raise ValueError("it is too large")
            found = json.loads(path.read_text())
            self._runs = {str(run): [_record(each) for each in records] for run, records in found.items()}
        except FileNotFoundError:
            return
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            logger.warning("could not use %s: %s; checkpoints are verified again", path, error)


def _record(found: dict[str, Any]) -> VerificationRecord:
    record = VerificationRecord(**found)
    if not all(isinstance(each, (int, float)) for each in (record.step, record.ended, record.finished)):
        raise ValueError("a record has no step or times")
    return record
