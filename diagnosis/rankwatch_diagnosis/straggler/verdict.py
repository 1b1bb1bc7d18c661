"""What the straggler engine concludes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from rankwatch.conventions.states import Cause, SlowPhase
from rankwatch_diagnosis.json_value import json_value
from rankwatch_diagnosis.straggler.thresholds import DEFAULT


@dataclass(frozen=True, kw_only=True)
class FoundCause:
    """One cause of a slowdown, with what it alone costs."""

    cause: Cause
    phase: SlowPhase | None = None
    """Part of the ranks' own work that grew; None unless the cause is `slow_rank`."""
    ranks: tuple[int, ...] = ()
    """Ranks to blame, or where it is not `certain` the one that is suspected. Where several may be to blame
    in place of each other, they are in the evidence only."""
    stages: tuple[int, ...] = ()
    """Stages to blame, for cause `slow_stage`."""
    first_step: int
    """First step in which it is at work."""
    last_step: int
    """Last step in which it is at work."""
    share_of_steps: float
    """Part of the judged steps in which it is at work, 0..1."""
    slowdown: float | None
    """Seconds of all steps over their seconds without this cause alone; None where it was not priced."""
    lost_rank_seconds: float | None
    """The difference of the two, times the ranks in the table."""
    evidence: Mapping[str, object] = field(default_factory=dict)
    """Numbers behind it, ready for JSON; names end in units."""
    certain: bool
    """False: suspected only, or the cost is an upper bound."""

    @property
    def cause_and_phase(self) -> str:
        """The cause in words for people: `network`, `slow_rank (data_loading)`."""
        return _in_words(self.cause, self.phase)


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
    causes: tuple[FoundCause, ...] = ()
    """All that was found, the verdict first and then by cost; also where the verdict is `none`."""
    slowdown_if_all_fixed: float | None = None
    """Step time over the step time in which every operation takes what is usual for its type (S of
    arXiv 2505.05713); None where no step could be replayed."""
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
        return _in_words(self.cause, self.phase)

    @property
    def is_bound(self) -> bool:
        """True if the run would gain the cost at most, because there was nothing to compare with."""
        return bool(self.evidence.get("slowdown_is_upper_bound"))

    @property
    def others(self) -> tuple[FoundCause, ...]:
        """Causes beside the one in the head that are certain and cost enough to be a verdict themselves."""
        least = DEFAULT.least_slowdown
        return tuple(each for each in self.causes[1:] if each.certain and (each.slowdown or 1.0) >= least)


def _in_words(cause: Cause, phase: SlowPhase | None) -> str:
    return cause.value if phase is None else f"{cause.value} ({phase.value})"


def as_json(verdict: Verdict) -> dict[str, object]:
    """Return the object that `--json` prints; keys are the fields of the classes above."""
    causes = [vars(each) for each in verdict.causes]
    return {name: json_value(value) for name, value in {**vars(verdict), "causes": causes}.items()}
