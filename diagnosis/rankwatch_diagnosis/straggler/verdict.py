"""What the straggler engine concludes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from rankwatch.conventions import Cause, SlowPhase


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Cause, ranks or stages, and cost of a slowdown; or `none`, or `inconclusive`."""

    cause: Cause
    phase: SlowPhase | None = None
    """Part of the ranks' own work that grew; None unless the cause is `slow_rank`."""
    ranks: tuple[int, ...] = ()
    """Ranks to blame; empty unless the cause is `slow_rank`, or `network` bound to ranks."""
    stages: tuple[int, ...] = ()
    """Stages to blame, for cause `slow_stage`."""
    first_step: int | None = None
    """Step at which it began, as far as the table shows."""
    slowdown: float = 1.0
    """Step time over the step time without the cause (what-if replay); 1.0: none."""
    lost_rank_seconds: float = 0.0
    """Seconds that the slowdown cost, times the ranks in the table."""
    events: tuple[Mapping[str, object], ...] = ()
    """Single steps that took far longer than the usual ones, the worst first: `step`, `lost_seconds`,
    `step_seconds`, `operation` and `ranks` (those that were late; none where no rank came late)."""
    event_seconds: float = 0.0
    """Lost by all such steps together. `slowdown` and `lost_rank_seconds` leave them out."""
    evidence: Mapping[str, object] = field(default_factory=dict)
    """Numbers behind the verdict, ready for JSON; names end in units."""

    @property
    def cause_and_phase(self) -> str:
        """The cause in words for people: `network`, `slow_rank (data_loading)`."""
        return self.cause.value if self.phase is None else f"{self.cause.value} ({self.phase.value})"
