"""A pipeline stage that holds more work than the others, in every replica."""

from __future__ import annotations

import numpy as np

from rankwatch.conventions import Cause
from rankwatch_diagnosis.operations.table import Kind
from rankwatch_diagnosis.straggler.arrays import (
    Floats,
    Ints,
    codes,
    grouped_low_median,
    leave_one_out_median,
    nan_median,
)
from rankwatch_diagnosis.straggler.finding import Case, Finding
from rankwatch_diagnosis.straggler.stretch import high_stretch

_BY_DESIGN = 1.10
"""What lies below is an end stage with its embedding or head."""


def find_stages(case: Case) -> Finding | None:
    """Stages whose compute exceeds the other stages' by the threshold."""
    stages, loads, ranks = _loads(case)
    if len(stages) < 2:
        return None
    ratio = np.log(loads) - np.log(leave_one_out_median(loads, axis=1))
    heavy: list[tuple[int, int, int, float]] = []
    for index in range(len(stages)):
        window = high_stretch(ratio[:, index], float(np.log(_BY_DESIGN)), case.limits.steps)
        if window is None:
            continue
        excess = float(nan_median(ratio[window[0] : window[1], index]))
        if excess >= np.log(case.limits.stage_ratio):
            heavy.append((index, *window, excess))
    if not heavy:
        return None
    # One rank for a stage: a heavy stage and a slow rank look the same.
    alone = any(ranks[index] < 2 for index, *_ in heavy)
    return Finding(
        cause=Cause.INCONCLUSIVE if alone else Cause.SLOW_STAGE,
        ideal=_ideal(case, stages, heavy),
        first_step=int(case.steps[min(first for _, first, _, _ in heavy)]),
        stages=() if alone else tuple(int(stages[index]) for index, *_ in heavy),
        evidence={
            "stage_compute_seconds": {
                str(stage): float(load)
                for stage, load in zip(stages.tolist(), nan_median(loads, axis=0), strict=True)
            },
            "heavy_stages": [
                {"stage": int(stages[index]), "over_other_stages_ratio": float(np.exp(excess))}
                for index, _, _, excess in heavy
            ],
        }
        | ({"why": "a stage with one rank: a heavy stage and a slow rank look the same"} if alone else {}),
    )


def _loads(case: Case) -> tuple[Ints, Floats, Ints]:
    """Stages; (step, stage): seconds that the median rank (of two the faster) computes; ranks by stage."""
    compute = np.flatnonzero(case.table.kind == Kind.COMPUTE)
    stages, stage = codes(case.table.stage[compute])
    if len(stages) < 2:
        return stages, np.empty((len(case.steps), len(stages))), np.empty(0, dtype=np.int64)
    cell = (case.step[compute] * len(stages) + stage) * len(case.ranks) + case.rank[compute]
    cells, inverse = codes(cell)
    seconds = np.bincount(inverse, weights=case.seconds[compute]).astype(np.float64)
    of_stage = cells // len(case.ranks)
    loads = grouped_low_median(seconds, of_stage, len(case.steps) * len(stages))
    pairs = np.unique((of_stage % len(stages)) * len(case.ranks) + cells % len(case.ranks))
    ranks = np.bincount(pairs // len(case.ranks), minlength=len(stages))
    return stages, np.maximum(loads, 1e-12).reshape(len(case.steps), len(stages)), ranks


def _ideal(case: Case, stages: Ints, heavy: list[tuple[int, int, int, float]]) -> Floats:
    ideal = case.seconds.copy()
    for index, first, end, excess in heavy:
        rows = (
            (case.table.kind == Kind.COMPUTE)
            & (case.table.stage == stages[index])
            & (case.step >= first)
            & (case.step < end)
        )
        ideal[rows] *= np.exp(-excess)
    return ideal
