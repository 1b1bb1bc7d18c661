"""Which ranks of a large run are exported one by one, and what speaks for all of them.

Rules compare each rank with the median of all. In a run of 16,384 ranks nearly all of them are like their
peers, and a Prometheus that reads each of them, for each rule, is late. So of a large run a node exports the
ranks that may stand out, one by one, and of all its ranks the medians of both halves. These have the median
of the ranks, and for a normal distribution also their median absolute deviation: half of the ranks lie
between the quartiles.

In a smaller run every rank speaks for itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

from rankwatch_agent.runtime.collector import Series, sample

_ABOVE, _STILL_ABOVE = 1.03, 1.02
"""Local time over the node's median from which a rank is shown, and until which it stays: below half of the
smallest residual of a straggler (`straggler_least_residual`, 0.06)."""

LOWER, UPPER = "lower", "upper"


class ComparedFigures(NamedTuple):
    """Where a rank stands among its peers."""

    rank: str
    stage: str
    local_seconds: float | None
    """Mean local time of a step; None while it completes no step."""
    token_seconds: float | None
    """Mean local time for a token."""
    late_seconds: float
    """Of late steps, per step."""
    loss: float | None
    """Trend of its loss."""
    write_seconds: float | None
    """Time for which it wrote in the last save of a checkpoint."""


@dataclass(frozen=True, kw_only=True)
class SelectedRanks:
    """Ranks that are exported one by one, by what they may stand out in."""

    work: frozenset[str] = frozenset()
    """Their steps: their own work, also per token."""
    lateness: frozenset[str] = frozenset()
    """Their late steps."""
    loss: frozenset[str] = frozenset()
    writes: frozenset[str] = frozenset()


class _Criterion(NamedTuple):
    of: str
    """Field of `SelectedRanks` that the rank stands out in."""
    value: Callable[[ComparedFigures], float | None]
    stays: float
    """The rank with the largest value stays it down to this share of another's: else equal ranks would take
    turns, and each turn is a new series."""


_CRITERIA = (
    _Criterion("work", lambda each: each.local_seconds, 0.99),
    _Criterion("work", lambda each: each.token_seconds, 0.99),
    _Criterion("lateness", lambda each: each.late_seconds or None, 0.5),
    _Criterion("loss", lambda each: each.loss, 0.99),
    _Criterion("loss", lambda each: None if not each.loss or each.loss <= 0.0 else 1.0 / each.loss, 0.99),
    _Criterion("writes", lambda each: each.write_seconds, 0.99),
)
"""Of each, the rank with the largest value is shown."""


class RankSelection:
    """Remembers which ranks of a run on this node are shown."""

    def __init__(self) -> None:
        self._most: dict[tuple[str, int], str] = {}
        """By stage and criterion: the rank that was the last one."""
        self._above: set[str] = set()

    def choose(self, ranks: Iterable[ComparedFigures]) -> SelectedRanks:
        """Return the ranks to show now: of each stage the last one by each criterion, and all that are slower
        than the node's median."""
        stages: dict[str, list[ComparedFigures]] = {}
        for each in ranks:
            stages.setdefault(each.stage, []).append(each)
        most, above = self._most, self._above
        self._most = dict(self._last(stages, most))
        self._above = {each for peers in stages.values() for each in _slower(peers, above)}
        found: dict[str, set[str]] = {"work": set(self._above)}
        for (_, number), rank in self._most.items():
            found.setdefault(_CRITERIA[number].of, set()).add(rank)
        return SelectedRanks(**{name: frozenset(of) for name, of in found.items()})

    @staticmethod
    def _last(
        stages: Mapping[str, Sequence[ComparedFigures]], before: Mapping[tuple[str, int], str]
    ) -> Iterator[tuple[tuple[str, int], str]]:
        for stage, peers in stages.items():
            for number, criterion in enumerate(_CRITERIA):
                values = {each.rank: value for each in peers if (value := criterion.value(each)) is not None}
                if not values:
                    continue
                largest = max(values, key=values.__getitem__)
                old = before.get((stage, number), "")
                stays = values.get(old, 0.0) >= criterion.stays * values[largest]
                yield (stage, number), old if stays else largest


def _slower(peers: Sequence[ComparedFigures], before: set[str]) -> Iterator[str]:
    values = {each.rank: each.local_seconds for each in peers if each.local_seconds is not None}
    if not values:
        return
    middle = median(values.values())
    for rank, value in values.items():
        if value > middle * (_STILL_ABOVE if rank in before else _ABOVE):
            yield rank


def half_series(name: str, labels: tuple[str, ...], values: Iterable[float]) -> Iterator[Series]:
    """Yield what speaks for all ranks of a large run on this node; the half is the last label."""
    for half, value in halves(values).items():
        yield sample(name, (*labels, half), value)


def halves(values: Iterable[float]) -> dict[str, float]:
    """Return the medians of both halves (Tukey's hinges), NaN left out; of a single value, itself.

    An odd number has its median in both halves.
    """
    known = sorted(each for each in values if each == each)
    if len(known) < 2:
        return dict.fromkeys((LOWER,), known[0]) if known else {}
    count = (len(known) + 1) // 2
    return {LOWER: median(known[:count]), UPPER: median(known[-count:])}
