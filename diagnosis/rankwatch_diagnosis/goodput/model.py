"""The goodput of a run (rank-seconds by state, attempts, saves), and what a change would be worth.

The checkpoint interval is that of J. W. Young (1974) and J. T. Daly (2006). With a save that blocks for w
every d seconds and an interruption every M seconds, which loses half an interval, saves and lost work take
the share w / d + d / (2 M) of the time. That is least at d = sqrt(2 w M), if w is much less than M.
"""

from __future__ import annotations

import math
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
    """Source that it was read from."""
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
    """Things that could not be seen, in words."""

    def __getitem__(self, state: GoodputState) -> float:
        """Return the rank-seconds in a state."""
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


LEAST_INTERRUPTIONS = 2
"""Of one interruption nobody knows whether it was the only one in years."""
CONFIDENCE = 0.90
_RESTART_STATES = (GoodputState.STARTUP, GoodputState.RESTORE, GoodputState.REPLAYED)


@dataclass(frozen=True, kw_only=True)
class IntervalAdvice:
    """The best checkpoint interval, with the range that the number of interruptions leaves open."""

    present_seconds: float
    best_seconds: float
    low_seconds: float
    high_seconds: float
    """Best intervals at both ends of the range of the mean time between interruptions."""
    blocking_seconds: float
    interruptions: int
    failure_interval_seconds: float
    """Mean time between interruptions."""
    failure_interval_low: float
    failure_interval_high: float
    """Range that holds it with a probability of 90 %, for interruptions independent of each other."""
    gain: float
    """Share of the time that the change would win."""


@dataclass(frozen=True, kw_only=True)
class WhatIf:
    """One change, and the goodput of the same work with it."""

    change: str
    """straggler_removed or restarts_halved."""
    rank_seconds: float
    """That it would save."""
    ettr: float
    gain: float
    """Increase of the effective training time ratio."""


def interval_advice(run: RunGoodput) -> IntervalAdvice | str:
    """Return the advice, or the reason in words why there is none."""
    saves, interruptions, wall = run.saves, run.interruptions, run.wall_seconds
    if saves is None or saves.interval_seconds <= 0.0:
        return "no interval between saves is known"
    if saves.blocking_seconds <= 0.0:
        return "saves block nobody: save as often as storage allows"
    if interruptions < LEAST_INTERRUPTIONS or wall <= 0.0:
        return (
            f"not enough interruptions to know how often they come ({interruptions}, at least 2 are needed)"
        )
    fewest, most = poisson_interval(interruptions, CONFIDENCE)
    between = wall / interruptions
    if saves.blocking_seconds * 2 >= between:
        return "interruptions come nearly as often as a save takes: no interval helps"
    best = best_interval(saves, between)
    return IntervalAdvice(
        present_seconds=saves.interval_seconds,
        best_seconds=best,
        low_seconds=best_interval(saves, wall / most),
        high_seconds=best_interval(saves, wall / fewest),
        blocking_seconds=saves.blocking_seconds,
        interruptions=interruptions,
        failure_interval_seconds=between,
        failure_interval_low=wall / most,
        failure_interval_high=wall / fewest,
        gain=lost_share(saves.blocking_seconds, saves.interval_seconds, between)
        - lost_share(saves.blocking_seconds, best, between),
    )


def best_interval(saves: Saves, between: float) -> float:
    """Return the best interval of saves in seconds: sqrt(2 w M), but one must end before the next begins."""
    return max(math.sqrt(2.0 * saves.blocking_seconds * between), saves.seconds)


def lost_share(blocking: float, interval: float, between: float) -> float:
    """Return the share of the time that saves and lost work take at an interval; at most all of it."""
    return min(1.0, blocking / interval + interval / (2.0 * between))


def poisson_interval(count: int, confidence: float) -> tuple[float, float]:
    """Return the means that a count from a Poisson distribution leaves open (Garwood's exact interval).

    As many or more come by chance with (1 - confidence) / 2 at the lower one; as many or fewer at the upper.
    """
    tail = (1.0 - confidence) / 2.0
    low = 0.0 if count == 0 else _mean_where(count - 1, 1.0 - tail)
    return low, _mean_where(count, tail)


def _mean_where(count: int, probability: float) -> float:
    """Return the mean at which at most `count` come with this probability, by bisection."""
    low, high = 0.0, count + 10.0 * math.sqrt(count + 1.0) + 10.0
    for _ in range(100):
        middle = (low + high) / 2.0
        if _at_most(count, middle) > probability:
            low = middle
        else:
            high = middle
    return (low + high) / 2.0


def _at_most(count: int, mean: float) -> float:
    if mean <= 0.0:
        return 1.0
    return math.fsum(math.exp(k * math.log(mean) - mean - math.lgamma(k + 1)) for k in range(count + 1))


def what_ifs(run: RunGoodput) -> tuple[WhatIf, ...]:
    """Return what changes would save, the largest first. The work of the run stays the same."""
    saved = {"straggler_removed": run[GoodputState.STRAGGLER], "restarts_halved": restart_seconds(run) / 2.0}
    found = []
    for change, seconds in saved.items():
        if seconds > 0.0:
            before = run[GoodputState.PRODUCTIVE] / run.requested
            left = run.requested - seconds
            after = run[GoodputState.PRODUCTIVE] / left if left > 0.0 else before
            found.append(WhatIf(change=change, rank_seconds=seconds, ettr=after, gain=after - before))
    return tuple(sorted(found, key=lambda each: each.rank_seconds, reverse=True))


def restart_seconds(run: RunGoodput) -> float:
    """Return rank-seconds of restarts: down; start-up, restore and replayed steps after the first start."""
    if run.interruptions == 0:
        return 0.0
    later = run.attempts[1:]
    if all(each.seconds for each in later):
        again = sum(each.seconds.get(state, 0.0) for each in later for state in _RESTART_STATES)
    else:
        share = run.interruptions / len(run.attempts)
        again = share * run[GoodputState.STARTUP]
        again += run[GoodputState.RESTORE] + run[GoodputState.REPLAYED]
    return again + run[GoodputState.DOWN]
