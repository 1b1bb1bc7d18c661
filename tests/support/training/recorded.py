"""What zero-code recording saw of a loop."""

from __future__ import annotations

from pathlib import Path

import rankwatch
from support.training.blackbox import Read, box, read


class Recorded:
    """The run of a test, and what its loop was seen to do."""

    def __init__(self, run: rankwatch.Run, directory: Path) -> None:
        self.run = run
        self._directory = directory

    def records(self) -> list[Read]:
        """All records; this ends the run."""
        self.run.finish()
        return read(box(self._directory))

    def steps(self) -> list[list[str]]:
        """For each step the names of its phases, in the order in which they began; this ends the run."""
        records = self.records()
        phases = sorted((each.start, each.end, each.name) for each in records if each.kind.name == "PHASE")
        return [
            [name for began, ended, name in phases if step.start <= began and ended <= step.end]
            for step in records
            if step.kind.name == "STEP"
        ]

    def backwards_in_time(self) -> list[Read]:
        """Records that end before they begin, of which there must be none; this ends the run."""
        return [each for each in self.records() if each.end < each.start]
