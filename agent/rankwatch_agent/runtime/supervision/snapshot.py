"""What a scrape renders: the last good result of every collector, and the agent's own health."""

from __future__ import annotations

from dataclasses import dataclass

from rankwatch_agent.runtime.collector import Collection


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Immutable, so that any number of scrapes may render it while collectors go on."""

    collections: tuple[Collection, ...]
    """Results that are neither failed, overdue nor stale; the agent's own health comes first."""
    pending: tuple[str, ...]
    """Names of the collectors that have not completed a first run."""
