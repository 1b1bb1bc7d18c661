"""Where a step goes: seconds and share of each phase, in the median and in the worst rank.

A phase is counted without the time in which collectives blocked it; that is `communication`. Checkpoints and
evaluations stand apart, wherever they lie. Steps that are single events are left out, so that one of them
does not hide what the others do.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import compress
from statistics import fmean, median

from rankwatch.blackbox.layout import RecordKind
from rankwatch.conventions import COMMUNICATION, OTHER, PHASES
from rankwatch_agent.training.timeouts import SECTIONS
from rankwatch_diagnosis.outliers import outlying
from rankwatch_diagnosis.run.boxes import Boxes
from rankwatch_diagnosis.run.step_rows import Row

_ORDER = {name: at for at, name in enumerate(PHASES)}
_MOST_SHOWN = 64
"""Phases; a run may name any number of them."""
_PhaseSeconds = Mapping[str, float]


def phase_table(boxes: Boxes, rows: Mapping[int, Sequence[Row]]) -> dict[str, object]:
    """The phases of a step and the sections apart, ready for JSON; empty where no rank holds a whole step."""
    means = mean_phases(rows)
    if not means:
        return {}
    return {
        "steps": max(len(_usual_steps(of_rank)) for of_rank in rows.values()),
        "ranks": len(means),
        "step_seconds": median(sum(each.values()) for each in means.values()),
        "of_step": _of_step(means),
        "apart": _apart(boxes),
    }


def mean_phases(rows: Mapping[int, Sequence[Row]]) -> dict[int, Mapping[str, float]]:
    """Rank -> phase -> its seconds in a mean step, of ranks that hold a whole step."""
    found: dict[int, Mapping[str, float]] = {}
    for rank, of_rank in rows.items():
        usual = _usual_steps(of_rank)
        if usual:
            names = sorted({name for step in usual for name in step}, key=phase_order)
            found[rank] = {name: fmean(step.get(name, 0.0) for step in usual) for name in names}
    return found


def phase_order(name: str) -> tuple[bool, int, str]:
    """The order of a step; custom phases after those that rankwatch knows, and `other` last."""
    return (name == OTHER, _ORDER.get(name, len(_ORDER)), name)


def _usual_steps(rows: Sequence[Row]) -> list[_PhaseSeconds]:
    """The phases of each step of a rank, without sections and without single events."""
    steps: dict[int, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for row in rows:
        if row.operation not in SECTIONS:
            steps[row.step][COMMUNICATION if row.kind == COMMUNICATION else row.operation] += row.seconds
    found = list(steps.values())
    odd = outlying([sum(each.values()) for each in found])
    return list(compress(found, (not each for each in odd)))


def _of_step(means: Mapping[int, _PhaseSeconds]) -> list[dict[str, object]]:
    names = {name for each in means.values() for name in each}
    seconds = {name: median(each.get(name, 0.0) for each in means.values()) for name in names}
    total = sum(seconds.values())
    found = []
    for name in sorted(names, key=phase_order):
        worst = max(means, key=lambda rank: means[rank].get(name, 0.0))
        found.append(
            {
                "phase": name,
                "seconds": seconds[name],
                "share": seconds[name] / total if total > 0.0 else 0.0,
                "worst_rank": worst,
                "worst_seconds": means[worst].get(name, 0.0),
            }
        )
    return found[:_MOST_SHOWN]


def _apart(boxes: Boxes) -> list[dict[str, object]]:
    """Checkpoints and evaluations: how often on the rank with the most, and how long each takes."""
    found = []
    for name in SECTIONS:
        by_rank: dict[int, list[float]] = defaultdict(list)
        for rank, box in boxes.by_rank.items():
            for record in box.records:
                if record.kind == RecordKind.PHASE and box.names.get(record.name) == name:
                    by_rank[rank].append(record.end - record.start)
        if by_rank:
            worst = max(by_rank, key=lambda rank: max(by_rank[rank]))
            found.append(
                {
                    "phase": name,
                    "count": max(map(len, by_rank.values())),
                    "seconds": median(median(each) for each in by_rank.values()),
                    "worst_rank": worst,
                    "worst_seconds": max(by_rank[worst]),
                    "total_seconds": max(map(sum, by_rank.values())),
                }
            )
    return found
