"""A pipeline stage that holds more work than the others, in every replica.

Stages are compared operation by operation: forward passes with forward passes, backward with backward. The
load of a stage is what its median rank computes in a step; it should be the median of the other stages. What
does not depend on microbatches, such as an optimizer, is no load of a stage that could move to another one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from rankwatch.conventions.states import Cause
from rankwatch_diagnosis.operations.groups import Bools, Floats, Groups, factorize
from rankwatch_diagnosis.straggler.case import Candidate, Case, Ideal
from rankwatch_diagnosis.straggler.robust import leave_one_out_median, nan_median
from rankwatch_diagnosis.straggler.thresholds import Thresholds
from rankwatch_diagnosis.straggler.visits import works_on_microbatches

_BY_DESIGN = 1.10
"""An end stage with its embedding or head lies below this ratio."""


class _Heavy(NamedTuple):
    stage: int
    """Index of the stage."""
    active: Bools
    """By step: it is heavy."""
    ratio: float
    """Its load over that of the other stages, in those steps."""
    by_operation: Floats
    """The same, of each operation; 1 for one that is no heavier."""


def find_slow_stages(case: Case) -> list[Candidate]:
    """Find stages whose compute exceeds that of the other stages by the threshold."""
    rows = np.flatnonzero(works_on_microbatches(case.table))
    stage, stages = factorize(case.table.stage[rows])
    if len(stages) < 2:
        return []
    operation, numbers = factorize(case.table.operation[rows])
    shape = (len(case.steps), len(stages), len(numbers))
    cells = Groups.grid((case.step[rows], shape[0]), (stage, shape[1]), (operation, shape[2]))
    of_rank = Groups.by(cells.number, case.rank[rows])
    # (step, stage, operation): seconds of the median rank, of two the faster; NaN for none.
    loads = Groups(of_rank.first(cells.number), cells.count).low_median(of_rank.sum(case.seconds[rows]))
    loads = loads.reshape(shape)
    ranks = np.bincount(Groups.by(stage, case.rank[rows]).first(stage), minlength=len(stages))
    names = [case.table.operations[each] for each in numbers.tolist()]
    found = []
    for heavy in _heavy_stages(loads, case.limits):
        inside = (stage == heavy.stage) & heavy.active[case.step[rows]]
        inside &= heavy.by_operation[operation] > 1.0
        usual = nan_median(np.nansum(loads[heavy.active], axis=2), axis=0)
        slower = zip(names, heavy.by_operation.tolist(), strict=True)
        alone = ranks[heavy.stage] < 2
        number = int(stages[heavy.stage])
        evidence: dict[str, object] = {
            "stage_compute_seconds": dict(zip(map(str, stages.tolist()), usual.tolist(), strict=True)),
            "heavy_stages": [
                {
                    "stage": number,
                    "over_other_stages_ratio": heavy.ratio,
                    "by_operation": {name: ratio for name, ratio in slower if ratio > 1.0},
                }
            ],
        }
        if alone:
            evidence["why"] = "a stage with one rank: a heavy stage and a slow rank look the same"
        found.append(
            Candidate(
                cause=Cause.INCONCLUSIVE if alone else Cause.SLOW_STAGE,
                ideal=Ideal(rows[inside], case.seconds[rows[inside]] / heavy.by_operation[operation[inside]]),
                active=heavy.active,
                first_step=int(case.steps[np.argmax(heavy.active)]),
                stages=() if alone else (number,),
                evidence=evidence,
            )
        )
    return found


def _heavy_stages(loads: Floats, limits: Thresholds) -> Iterator[_Heavy]:
    """Yield the stages that take too much of `loads`, which are seconds by (step, stage, operation)."""
    usual = leave_one_out_median(loads, axis=1)
    # An operation that no other stage has says nothing.
    own = np.where(np.isfinite(usual) & np.isfinite(loads), loads, 0.0)
    usual = np.where(own > 0.0, usual, 0.0)
    ratio = own.sum(axis=2) / np.maximum(usual.sum(axis=2), 1e-12)
    for stage in range(loads.shape[1]):
        active, times = ratio[:, stage] > _BY_DESIGN, ratio[:, stage]
        if np.count_nonzero(active) < min(limits.steps, len(loads)):
            continue
        # Steps in which the stage is heavy differ from others, and are not their upper end.
        if not active.all() and not np.median(times[active]) >= _BY_DESIGN * np.median(times[~active]):
            continue
        taken, fair = own[active, stage].sum(axis=0), usual[active, stage].sum(axis=0)
        total = float(taken.sum() / max(float(fair.sum()), 1e-12))
        if total >= limits.stage_ratio:
            by_operation = np.maximum(np.where(fair > 0.0, taken / np.maximum(fair, 1e-12), 1.0), 1.0)
            yield _Heavy(stage, active, total, by_operation)
