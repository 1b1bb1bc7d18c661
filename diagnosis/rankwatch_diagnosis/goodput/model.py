"""The goodput of a run: rank-seconds by state, attempts and saves, wherever they were read from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from rankwatch.conventions.states import GoodputState


@dataclass(frozen=True, kw_only=True)
class AttemptGoodput:
    """One start of the run's ranks."""

    number: int
    started: float
    """Unix time."""
    ended: float
    """Unix time of its last sign of life."""
    running: bool = False
    world_size: int
    first_step: int | None = None
    last_step: int | None = None
    ended_how: str = ""
    """In words; empty where it is not known."""
    seconds: Mapping[GoodputState, float] = field(default_factory=dict)
    """Rank-seconds; empty where they are known of the whole run only."""


@dataclass(frozen=True, kw_only=True)
class Saves:
    """The saves of a run, as the rank sees them that they block most. Means over the run."""

    count: float
    interval_seconds: float
    """From one save to the next."""
    blocking_seconds: float
    seconds: float
    """Of a whole save; more than `blocking_seconds` where it goes on beside training."""


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What a run has cost by one kind of price. Costs of different currencies or bases are never added."""

    currency: str
    basis: str
    """list, contracted or amortised."""
    by_state: Mapping[GoodputState, float]

    @property
    def total(self) -> float:
        """Of all states."""
        return sum(self.by_state.values())


@dataclass(frozen=True, kw_only=True)
class RunGoodput:
    """The time of a run's ranks. Each rank-second is in exactly one state."""

    run: str
    source: str
    """Where it was read."""
    seconds: Mapping[GoodputState, float]
    """Rank-seconds by state, of the whole run."""
    attempts: tuple[AttemptGoodput, ...] = ()
    """In the order of their numbers."""
    saves: Saves | None = None
    """None for a run without a successful save."""
    costs: tuple[Cost, ...] = ()
    """Empty where no price is known."""
    flops_utilisation: Mapping[str, float] = field(default_factory=dict)
    """Program goodput: model FLOPs utilisation (MFU), by the type of numbers whose peak it is measured
    against; empty where it is not known."""
    unseen: tuple[str, ...] = ()
    """What could not be seen, in words."""

    def __getitem__(self, state: GoodputState) -> float:
        """Rank-seconds in a state."""
        return self.seconds.get(state, 0.0)

    @property
    def requested(self) -> float:
        """Rank-seconds in all states."""
        return sum(self.seconds.values())

    @property
    def allocated(self) -> float:
        """Rank-seconds in which a rank had a process."""
        return self.requested - self[GoodputState.DOWN]

    @property
    def scheduling(self) -> float | None:
        """Scheduling goodput: allocated over requested time; None without any time."""
        return self.allocated / self.requested if self.requested > 0.0 else None

    @property
    def runtime(self) -> float | None:
        """Runtime goodput: productive over allocated time."""
        return self[GoodputState.PRODUCTIVE] / self.allocated if self.allocated > 0.0 else None

    @property
    def ettr(self) -> float | None:
        """Effective training time ratio: productive over requested time."""
        return self[GoodputState.PRODUCTIVE] / self.requested if self.requested > 0.0 else None

    @property
    def wall_seconds(self) -> float:
        """From the start of the first attempt to the last sign of life."""
        if not self.attempts:
            return 0.0
        return max(each.ended for each in self.attempts) - min(each.started for each in self.attempts)

    @property
    def interruptions(self) -> int:
        """Attempts that were followed by another one."""
        return max(0, len(self.attempts) - 1)
