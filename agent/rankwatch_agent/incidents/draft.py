"""A bundle in the making: what is known of its incident, and what could not be had."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from rankwatch.conventions.incidents import EvidenceFault
from rankwatch_agent.incidents.episodes import Incident
from rankwatch_agent.incidents.error import EvidenceError
from rankwatch_agent.incidents.folder import BundleFolder
from rankwatch_agent.incidents.manifest import Missing
from rankwatch_agent.training.conditions import RankCondition

MOST_RANKS = 64
"""Ranks of a bundle: more than any node has GPUs."""


class Draft:
    """What the steps of a bundle share."""

    def __init__(self, incident: Incident, folder: BundleFolder) -> None:
        self.incident = incident
        self.folder = folder
        self.missing: list[Missing] = []
        self.faults: Counter[EvidenceFault] = Counter()
        self.processes: dict[int, int] = {}
        """Rank -> process id, in the agent's own numbering."""
        left_out = len(incident.condition.ranks) - MOST_RANKS
        if left_out > 0:
            self.lacks(f"{left_out} ranks", f"a bundle holds {MOST_RANKS}")

    @property
    def ranks(self) -> tuple[RankCondition, ...]:
        """The ranks to look at."""
        return self.incident.condition.ranks[:MOST_RANKS]

    def lacks(self, what: str, why: str) -> None:
        """Say that a part is missing, and that this is no fault."""
        self.missing.append(Missing(what, why))

    def fails(self, what: str, error: EvidenceError) -> None:
        """Say that a part is missing because something went wrong."""
        self.faults[error.fault] += 1
        self.lacks(what, str(error))

    @contextmanager
    def attempt(self, what: str) -> Iterator[None]:
        """What raises EvidenceError inside the block is missing, and counted."""
        try:
            yield
        except EvidenceError as error:
            self.fails(what, error)
