"""A pipeline stage that holds more work than the others, in every replica.

The load of a stage is what its median rank computes in a step. It is compared with the median of the other
stages.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rankwatch.conventions import Cause
from rankwatch_diagnosis.operations.table import Kind
from rankwatch_diagnosis.straggler.case import Candidate, Case
from rankwatch_diagnosis.straggler.group_by import (
    Floats,
    Groups,
    Ints,
    factorize,
    grid,
    group_first,
    group_low_median,
    group_sum,
    ngroup,
)
from rankwatch_diagnosis.straggler.robust import high_stretch, leave_one_out_median, nan_median

_BY_DESIGN = 1.10
"""An end stage with its embedding or head lies below this ratio."""


class _Heavy(NamedTuple):
    stage: int
    """Index of the stage."""
    first: int
    end: int
    """Indices of its steps."""
    excess: float
    """Logarithm of its load over that of the other stages."""


def find_slow_stages(case: Case) -> Candidate | None:
    """Stages whose compute exceeds that of the other stages by the threshold."""
    stages, loads, ranks = _loads(case)
    if len(stages) < 2:
        return None
    heavy = _heavy_stages(case, loads)
    if not heavy:
        return None
    # With one rank in a stage, a heavy stage and a slow rank look the same.
    alone = any(ranks[each.stage] < 2 for each in heavy)
    return Candidate(
        cause=Cause.INCONCLUSIVE if alone else Cause.SLOW_STAGE,
        ideal=case.ideal(_ideal(case, stages, heavy)),
        first_step=int(case.steps[min(each.first for each in heavy)]),
        stages=() if alone else tuple(int(stages[each.stage]) for each in heavy),
        evidence={
            "stage_compute_seconds": {
                str(stage): float(load)
                for stage, load in zip(stages.tolist(), nan_median(loads, axis=0), strict=True)
            },
            "heavy_stages": [
                {"stage": int(stages[each.stage]), "over_other_stages_ratio": float(np.exp(each.excess))}
                for each in heavy
            ],
        }
        | ({"why": "a stage with one rank: a heavy stage and a slow rank look the same"} if alone else {}),
    )


def _loads(case: Case) -> tuple[Ints, Floats, Ints]:
    """Stages; (step, stage): seconds that the median rank (of two the faster) computes; ranks by stage."""
    compute = np.flatnonzero(case.table.kind == Kind.COMPUTE)
    stage, stages = factorize(case.table.stage[compute])
    if len(stages) < 2:
        return stages, np.empty((len(case.steps), len(stages))), np.empty(0, dtype=np.int64)
    step_stage = grid((case.step[compute], len(case.steps)), (stage, len(stages)))
    cell = ngroup(step_stage.number, case.rank[compute])
    seconds = group_sum(case.seconds[compute], cell)
    loads = group_low_median(seconds, Groups(group_first(step_stage.number, cell), step_stage.count))
    member = ngroup(stage, case.rank[compute])
    ranks = np.bincount(group_first(stage, member), minlength=len(stages))
    return stages, np.maximum(loads, 1e-12).reshape(len(case.steps), len(stages)), ranks


def _heavy_stages(case: Case, loads: Floats) -> list[_Heavy]:
    ratio = np.log(loads) - np.log(leave_one_out_median(loads, axis=1))
    heavy: list[_Heavy] = []
    for index in range(loads.shape[1]):
        window = high_stretch(ratio[:, index], float(np.log(_BY_DESIGN)), case.limits.steps)
        if window is None:
            continue
        excess = float(nan_median(ratio[slice(*window), index]))
        if excess >= np.log(case.limits.stage_ratio):
            heavy.append(_Heavy(index, *window, excess))
    return heavy


def _ideal(case: Case, stages: Ints, heavy: list[_Heavy]) -> Floats:
    ideal = case.seconds.copy()
    for each in heavy:
        rows = (case.table.kind == Kind.COMPUTE) & (case.table.stage == stages[each.stage])
        rows &= (case.step >= each.first) & (case.step < each.end)
        ideal[rows] *= np.exp(-each.excess)
    return ideal
