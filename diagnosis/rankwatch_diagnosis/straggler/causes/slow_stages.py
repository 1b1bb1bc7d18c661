"""A pipeline stage that holds more work than the others, in every replica.

Stages are compared operation by operation: forward passes with forward passes, backward with backward. The
load of a stage is what its median rank computes in a step; it should be the median of the other stages. What
does not depend on microbatches, such as an optimizer, is no load of a stage that could move to another one.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rankwatch.conventions.states import Cause
from rankwatch_diagnosis.operations.groups import Bools, Floats, Groups, Ints, factorize
from rankwatch_diagnosis.straggler.case import Candidate, Case, Ideal
from rankwatch_diagnosis.straggler.robust import leave_one_out_median, nan_median
from rankwatch_diagnosis.straggler.visits import works_on_microbatches

_BY_DESIGN = 1.10
"""An end stage with its embedding or head lies below this ratio."""


class _Loads(NamedTuple):
    """What the stages of a job compute."""

    rows: Ints
    """Rows of the table that are load."""
    stage: Ints
    """By those rows: index of the stage."""
    operation: Ints
    """By those rows: index of the operation."""
    stages: Ints
    """Numbers of the stages."""
    operations: tuple[str, ...]
    seconds: Floats
    """(step, stage, operation): of the median rank (of two the faster); NaN for none."""
    ranks: Ints
    """By stage."""


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
    """Stages whose compute exceeds that of the other stages by the threshold."""
    loads = _measure(case)
    if loads is None:
        return []
    return [_candidate(case, loads, each) for each in _heavy_stages(case, loads)]


def _candidate(case: Case, loads: _Loads, heavy: _Heavy) -> Candidate:
    # With one rank in a stage, a heavy stage and a slow rank look the same.
    alone = loads.ranks[heavy.stage] < 2
    stage = int(loads.stages[heavy.stage])
    active = np.flatnonzero(heavy.active)
    return Candidate(
        cause=Cause.INCONCLUSIVE if alone else Cause.SLOW_STAGE,
        ideal=_ideal(case, loads, heavy),
        active=heavy.active,
        first_step=int(case.steps[active[0]]),
        stages=() if alone else (stage,),
        evidence={
            "stage_compute_seconds": {
                str(number): float(load)
                for number, load in zip(
                    loads.stages.tolist(),
                    nan_median(np.nansum(loads.seconds[heavy.active], axis=2), axis=0),
                    strict=True,
                )
            },
            "heavy_stages": [
                {
                    "stage": stage,
                    "over_other_stages_ratio": heavy.ratio,
                    "by_operation": {
                        name: float(ratio)
                        for name, ratio in zip(loads.operations, heavy.by_operation, strict=True)
                        if ratio > 1.0
                    },
                }
            ],
        }
        | ({"why": "a stage with one rank: a heavy stage and a slow rank look the same"} if alone else {}),
    )


def _measure(case: Case) -> _Loads | None:
    """Return the loads of the stages; None where there are not several."""
    rows = np.flatnonzero(works_on_microbatches(case.table))
    stage, stages = factorize(case.table.stage[rows])
    if len(stages) < 2:
        return None
    operation, numbers = factorize(case.table.operation[rows])
    shape = (len(case.steps), len(stages), len(numbers))
    cells = Groups.grid((case.step[rows], shape[0]), (stage, shape[1]), (operation, shape[2]))
    of_rank = Groups.by(cells.number, case.rank[rows])
    seconds = of_rank.sum(case.seconds[rows])
    loads = Groups(of_rank.first(cells.number), cells.count).low_median(seconds)
    member = Groups.by(stage, case.rank[rows])
    return _Loads(
        rows=rows,
        stage=stage,
        operation=operation,
        stages=stages,
        operations=tuple(case.table.operations[each] for each in numbers.tolist()),
        seconds=loads.reshape(shape),
        ranks=np.bincount(member.first(stage), minlength=len(stages)),
    )


def _heavy_stages(case: Case, loads: _Loads) -> list[_Heavy]:
    limits = case.limits
    usual = leave_one_out_median(loads.seconds, axis=1)
    # An operation that no other stage has says nothing.
    own = np.where(np.isfinite(usual) & np.isfinite(loads.seconds), loads.seconds, 0.0)
    usual = np.where(own > 0.0, usual, 0.0)
    ratio = own.sum(axis=2) / np.maximum(usual.sum(axis=2), 1e-12)
    least = min(limits.steps, len(case.steps))
    heavy = []
    for stage in range(len(loads.stages)):
        active = ratio[:, stage] > _BY_DESIGN
        if np.count_nonzero(active) < least or not _stands_out(ratio[:, stage], active):
            continue
        taken, fair = own[active, stage].sum(axis=0), usual[active, stage].sum(axis=0)
        total = float(taken.sum() / max(float(fair.sum()), 1e-12))
        if total >= limits.stage_ratio:
            by_operation = np.maximum(np.where(fair > 0.0, taken / np.maximum(fair, 1e-12), 1.0), 1.0)
            heavy.append(_Heavy(stage, active, total, by_operation))
    return heavy


def _stands_out(ratio: Floats, active: Bools) -> bool:
    """Return True if steps in which the stage is heavy differ from others, and are not their upper end."""
    if active.all():
        return True
    return bool(np.median(ratio[active]) >= _BY_DESIGN * np.median(ratio[~active]))


def _ideal(case: Case, loads: _Loads, heavy: _Heavy) -> Ideal:
    inside = (loads.stage == heavy.stage) & heavy.active[case.step[loads.rows]]
    inside &= heavy.by_operation[loads.operation] > 1.0
    rows = loads.rows[inside]
    return Ideal(rows, case.seconds[rows] / heavy.by_operation[loads.operation[inside]])
