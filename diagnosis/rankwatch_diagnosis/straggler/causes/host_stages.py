"""Data loading and other host work of whole pipeline stages, where all ranks take longer than elsewhere."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rankwatch.conventions import Cause
from rankwatch_diagnosis.operations.table import Kind
from rankwatch_diagnosis.straggler.arrays import Floats, Ints, codes, leave_one_out_median, nan_median
from rankwatch_diagnosis.straggler.causes.host import HOST_KINDS, stages_of_ranks
from rankwatch_diagnosis.straggler.finding import Case, Finding
from rankwatch_diagnosis.straggler.stretch import high_stretch

_LEAST_SHARE_OF_OWN = 0.5
"""Part of a stage's host work that must be excess: it takes at least twice what it takes elsewhere."""


def find_host_of_stages(case: Case) -> Finding | None:
    """Host work of a whole stage, at least twice what it takes elsewhere.

    It costs the run, but stages may differ by design, and a stage has no peers: no rank is named.
    """
    step_seconds = float(np.median(case.step_seconds))
    stages, stage = codes(stages_of_ranks(case))
    if len(stages) < 2 or step_seconds <= 0.0:
        return None
    ideal = case.seconds.copy()
    told = [
        each for kind in HOST_KINDS for each in _slow_stages(case, kind, stages, stage, step_seconds, ideal)
    ]
    if not told:
        return None
    longest = max(told, key=lambda each: float(str(each["excess_seconds_per_step"])))
    loading = longest["kind"] == Kind.DATA.name.lower()
    stages_told = tuple(sorted({int(str(each["stage"])) for each in told}))
    return Finding(
        cause=Cause.DATA_LOADING if loading else Cause.SLOW_STAGE,
        stages=() if loading else stages_told,
        ideal=ideal,
        first_step=min(int(str(each["first_step"])) for each in told),
        evidence={"host_work": told, "stages": list(stages_told)},
    )


def _slow_stages(
    case: Case, kind: Kind, stages: Ints, stage: Ints, step_seconds: float, ideal: Floats
) -> Iterator[dict[str, object]]:
    """Stages whose work of one kind exceeds the others'; `ideal` is brought to what these take."""
    rows = case.table.kind == kind
    if not rows.any():
        return
    loads = _loads(case.sums(rows), stage, len(stages))
    excess = loads - leave_one_out_median(loads, axis=1)
    for index in range(len(stages)):
        window = high_stretch(excess[:, index], case.limits.host_share * step_seconds, case.limits.steps)
        if window is None:
            continue
        own, more = (float(nan_median(each[slice(*window), index])) for each in (loads, excess))
        if more < _LEAST_SHARE_OF_OWN * own:
            continue
        inside = rows & (stage[case.rank] == index) & (case.step >= window[0]) & (case.step < window[1])
        ideal[inside] *= max(0.0, 1.0 - more / own)
        yield _told(case, int(stages[index]), kind, own, more, window[0])


def _loads(total: Floats, stage: Ints, stages: int) -> Floats:
    """(step, stage): seconds of its median rank; NaN where a stage does no such work."""
    return np.stack([nan_median(total[:, stage == index], axis=1) for index in range(stages)], axis=1)


def _told(case: Case, stage: int, kind: Kind, own: float, more: float, first: int) -> dict[str, object]:
    return {
        "stage": stage,
        "kind": kind.name.lower(),
        "seconds_per_step": own,
        "excess_seconds_per_step": more,
        "first_step": int(case.steps[first]),
    }
