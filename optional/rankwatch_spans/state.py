"""What was sent, kept across restarts of the agent: no span is sent twice and no parent is missing."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rankwatch_agent.runtime.state_file import StateFile
from rankwatch_agent.runtime.turns import excess

_MOST_KEPT = 8000
"""Runs and their attempts. Of more, the user with most of them loses the run that was seen last the longest
ago."""
_MOST_BYTES = 16 << 20
"""A run takes 1 KB, if its name is made for that."""
_MAX_ATTEMPTS = 1000
_MAX_REPEATED = 100


@dataclass
class AttemptState:
    """An attempt whose rank 0 this node has. Moments are nanoseconds of Unix time."""

    started: int
    last: int
    """The last sign of life that is known."""
    sent: bool = False


@dataclass
class RunState:
    """A run of which this node has seen ranks."""

    seen: int
    """When it was seen last."""
    started: int | None = None
    """Start of rank 0 in attempt 0, if that was here: then this node sends the span of the run."""
    owner: int | None = None
    """User id; None in a file of an agent that did not write it down."""
    scheduler: str = ""
    """TRACEPARENT of attempt 0."""
    sent: bool = False
    attempts: dict[int, AttemptState] = field(default_factory=dict)
    repeats: dict[int, int] = field(default_factory=dict)
    """Attempt -> how often the numbers of its steps have begun again."""

    @property
    def size(self) -> int:
        """How much of the file it takes."""
        return 1 + len(self.attempts) + len(self.repeats) // 8

    def attempt(self, number: int, started: int) -> AttemptState:
        """Return the state of an attempt, made if there is none. Of too many the oldest sent goes."""
        found = self.attempts.get(number)
        if found is None:
            if len(self.attempts) >= _MAX_ATTEMPTS:
                done = (each for each, state in self.attempts.items() if state.sent)
                self.attempts.pop(next(done, next(iter(self.attempts))))
            found = self.attempts[number] = AttemptState(started, started)
        return found

    def repeated(self, attempt: int, repeat: int) -> None:
        """Note how often the numbers of the steps of an attempt have begun again."""
        self.repeats[attempt] = max(repeat, self.repeats.get(attempt, 0))
        if len(self.repeats) > _MAX_REPEATED:
            del self.repeats[next(iter(self.repeats))]


class TraceState:
    """The state in a file; without one it is lost with the process.

    until: spans that ended by then were sent, or are lost. Without a file that is the start of this agent.
    """

    def __init__(self, directory: Path | None, started: int) -> None:
        self.until = started
        self.runs: dict[str, RunState] = {}
        self._file = StateFile(directory, "traces.json", lost="traces may have gaps", most_bytes=_MOST_BYTES)
        self._file.load(self._load)

    def save(self, until: int) -> None:
        """Write the state. Call it before the spans go out."""
        for run in excess(
            sorted(self.runs, key=lambda run: self.runs[run].seen),
            owner=lambda run: self.runs[run].owner,
            most=_MOST_KEPT,
            size=lambda run: self.runs[run].size,
        ):
            del self.runs[run]
        self._file.save({"until": until, "runs": {run: asdict(each) for run, each in self.runs.items()}})

    def _load(self, found: Any) -> None:
        until = min(self.until, int(found["until"]))
        self.runs = {str(run): _run(each) for run, each in found["runs"].items()}
        self.until = until


def _run(found: dict[str, Any]) -> RunState:
    attempts = {int(number): AttemptState(**each) for number, each in found.pop("attempts").items()}
    repeats = {int(number): int(count) for number, count in found.pop("repeats", {}).items()}
    return RunState(**found, attempts=dict(list(attempts.items())[-_MAX_ATTEMPTS:]), repeats=repeats)
