"""What is known about the runs of one collector: the bookkeeping behind its health metrics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType

from rankwatch.conventions import CollectorState
from rankwatch_agent.runtime.collector import Collection


class Outcome(StrEnum):
    """How a run ended, as counted; a run past its deadline counts once, as `deadline`."""

    OK = "ok"
    FAILED = "failed"
    NOT_APPLICABLE = "not_applicable"
    DEADLINE = "deadline"

    def state(self) -> CollectorState:
        """The state of a collector whose last run ended so."""
        return CollectorState.FAILED if self is Outcome.DEADLINE else CollectorState(self.value)


_NO_RUNS: Mapping[Outcome, int] = MappingProxyType(dict.fromkeys(Outcome, 0))


@dataclass(frozen=True, kw_only=True, slots=True)
class RunRecord:
    """Immutable; each event in the life of a collector gives a new one."""

    state: CollectorState | None = None
    """None until a first run has ended or passed its deadline."""
    completed: bool = False
    """Whether any run has ever ended."""
    collection: Collection | None = None
    """What the last run found; None unless it succeeded in time."""
    collected_at: float = 0.0
    """When the last run ended, monotonic seconds."""
    duration_seconds: float | None = None
    last_success_timestamp_seconds: float | None = None
    runs: Mapping[Outcome, int] = field(default_factory=lambda: _NO_RUNS)
    broken_parts: int | None = None
    """Over all runs; None until one was made of parts."""

    def overdue(self) -> RunRecord:
        """After the present run has passed its deadline."""
        return replace(
            self,
            state=CollectorState.FAILED,
            collection=None,
            runs=self._counted(Outcome.DEADLINE),
        )

    def ended(
        self,
        outcome: Outcome,
        collection: Collection | None,
        *,
        at: float,
        duration: float,
        wall: float,
        was_overdue: bool,
    ) -> RunRecord:
        """After a run ended; one that was overdue is shown again but not counted a second time."""
        return RunRecord(
            state=outcome.state(),
            completed=True,
            collection=collection,
            collected_at=at,
            duration_seconds=duration,
            last_success_timestamp_seconds=(
                wall if outcome is Outcome.OK else self.last_success_timestamp_seconds
            ),
            runs=self.runs if was_overdue else self._counted(outcome),
            broken_parts=self._with_broken_parts(collection),
        )

    def without_stale(self, now: float, limit: float) -> RunRecord:
        """The same, failed and empty where the last result is older than `limit` seconds."""
        if self.collection is None or now - self.collected_at <= limit:
            return self
        return replace(self, state=CollectorState.FAILED, collection=None)

    def _with_broken_parts(self, collection: Collection | None) -> int | None:
        if collection is None or collection.broken_parts is None:
            return self.broken_parts
        return (self.broken_parts or 0) + collection.broken_parts

    def _counted(self, outcome: Outcome) -> Mapping[Outcome, int]:
        return MappingProxyType({**self.runs, outcome: self.runs[outcome] + 1})
