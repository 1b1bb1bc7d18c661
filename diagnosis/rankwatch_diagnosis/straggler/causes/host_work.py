"""Data loading and other host work that takes long: on some ranks, on whole stages, or on all ranks.

Some ranks: `slow_rank` with the phase that grew. A whole stage: `data_loading`, or `slow_stage` for other
work; stages may differ by design and a stage has no peers, so no rank is named. All ranks: `data_loading`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from rankwatch.conventions import Cause, SlowPhase
from rankwatch_diagnosis.operations.table import Kind
from rankwatch_diagnosis.straggler.case import Candidate, Case
from rankwatch_diagnosis.straggler.group_by import Floats, Ints, factorize
from rankwatch_diagnosis.straggler.persistence import Excess, against_peers, scan
from rankwatch_diagnosis.straggler.robust import high_stretch, leave_one_out_median, nan_median

_HOST_KINDS = (Kind.DATA_LOADING, Kind.OTHER)
_LEAST_SHARE_OF_OWN = 0.5
"""Part of a stage's host work that must be excess: it takes at least twice what it takes elsewhere."""
_MOST_LISTED = 64
"""Entries in the evidence; a verdict may name more ranks."""


def find_slow_host_work(case: Case) -> Candidate | None:
    """Ranks whose host work lies above that of their stage for long."""
    step_seconds = float(np.median(case.step_seconds))
    if step_seconds <= 0.0:
        return None
    ideal = case.seconds.copy()
    found: list[dict[str, object]] = []
    first = len(case.steps)
    for kind in _HOST_KINDS:
        rows = case.table.kind == kind
        if not rows.any():
            continue
        total = case.sums(rows)
        if kind is Kind.OTHER:  # who records none has done none
            total = np.nan_to_num(total)
        residual = against_peers(total / step_seconds, _peers(case, total), case.limits.peers)
        for each in scan(residual, case.limits, least_excess=case.limits.host_share).found:
            own = float(nan_median(total[each.first : each.end, each.column]))
            inside = rows & (case.rank == each.column) & (case.step >= each.first) & (case.step < each.end)
            ideal[inside] *= max(0.0, 1.0 - each.size * step_seconds / max(own, 1e-12))
            first = min(first, each.first)
            found.append(_listed_rank(case, kind, own, each, step_seconds))
    if not found:
        return None
    return Candidate(
        cause=Cause.SLOW_RANK,
        phase=SlowPhase.DATA_LOADING if _mostly_loading(found) else _phase_of_other_work(case, ideal),
        ideal=case.ideal(ideal),
        first_step=int(case.steps[first]),
        ranks=tuple(sorted({int(str(each["rank"])) for each in found})),
        evidence={"host_work": found[:_MOST_LISTED]},
    )


def _peers(case: Case, total: Floats) -> Ints:
    """By rank: whom it is compared with. Where a stage is too small, all ranks that do this work."""
    stage = case.stages_of_ranks()
    active = np.isfinite(total).any(axis=0)
    sizes = np.unique(stage[active], return_counts=True)[1]
    if sizes.size and int(sizes.min()) < case.limits.peers:
        return np.zeros(len(case.ranks), dtype=np.int64)
    return stage


def _listed_rank(case: Case, kind: Kind, own: float, each: Excess, step_seconds: float) -> dict[str, object]:
    return {
        "rank": int(case.ranks[each.column]),
        "kind": kind.name.lower(),
        "seconds_per_step": own,
        "excess_share_of_step": each.size,
        "excess_seconds_per_step": each.size * step_seconds,
        "first_step": int(case.steps[each.first]),
    }


def _mostly_loading(found: Sequence[dict[str, object]]) -> bool:
    """True if the largest excess is data loading."""
    largest = max(found, key=lambda each: float(str(each["excess_seconds_per_step"])))
    return largest["kind"] == Kind.DATA_LOADING.name.lower()


def _phase_of_other_work(case: Case, ideal: Floats) -> SlowPhase:
    """`checkpoint` where operations of that name hold most of the excess."""
    excess = np.where(case.table.kind == Kind.OTHER, case.seconds - ideal, 0.0)
    saves = np.array(["checkpoint" in name.lower() for name in case.table.operations], dtype=np.bool_)
    of_checkpoints = float(excess[saves[case.table.operation]].sum())
    return SlowPhase.CHECKPOINT if 2.0 * of_checkpoints > float(excess.sum()) else SlowPhase.OTHER


def find_slow_host_work_of_stages(case: Case) -> Candidate | None:
    """Host work of a whole stage that takes at least twice what it takes in the other stages."""
    step_seconds = float(np.median(case.step_seconds))
    stage, stages = factorize(case.stages_of_ranks())
    if len(stages) < 2 or step_seconds <= 0.0:
        return None
    ideal = case.seconds.copy()
    found = [
        each for kind in _HOST_KINDS for each in _slow_stages(case, kind, stages, stage, step_seconds, ideal)
    ]
    if not found:
        return None
    loading = _mostly_loading(found)
    slow = tuple(sorted({int(str(each["stage"])) for each in found}))
    return Candidate(
        cause=Cause.DATA_LOADING if loading else Cause.SLOW_STAGE,
        stages=() if loading else slow,
        ideal=case.ideal(ideal),
        first_step=min(int(str(each["first_step"])) for each in found),
        evidence={"host_work": found, "stages": list(slow)},
    )


def _slow_stages(
    case: Case, kind: Kind, stages: Ints, stage: Ints, step_seconds: float, ideal: Floats
) -> Iterator[dict[str, object]]:
    """Stages whose work of one kind exceeds the others'; brings `ideal` down to what the others take."""
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
        yield {
            "stage": int(stages[index]),
            "kind": kind.name.lower(),
            "seconds_per_step": own,
            "excess_seconds_per_step": more,
            "first_step": int(case.steps[window[0]]),
        }


def _loads(total: Floats, stage: Ints, stages: int) -> Floats:
    """(step, stage): seconds of its median rank, of two the faster; NaN where a stage does no such work."""
    return np.stack([_low_median(total[:, stage == index]) for index in range(stages)], axis=1)


def _low_median(seconds: Floats) -> Floats:
    """By row: the lower one of the values in the middle."""
    ordered = np.sort(seconds, axis=1)  # NaN comes last
    middle = np.maximum(np.isfinite(seconds).sum(axis=1) - 1, 0) // 2
    middle_one: Floats = ordered[np.arange(len(ordered)), middle]
    return middle_one


def find_slow_data_loading(case: Case) -> Candidate | None:
    """All ranks wait long for data. There is no peer to compare with, so the cost is an upper bound."""
    rows = case.table.kind == Kind.DATA_LOADING
    if not rows.any():
        return None
    without = case.replay.step_seconds(np.where(rows, 0.0, case.seconds))
    share = 1.0 - without / np.maximum(case.step_seconds, 1e-18)
    window = high_stretch(share, case.limits.data_loading_share, case.limits.steps)
    if window is None:
        return None
    inside = np.zeros(len(case.steps), dtype=np.bool_)
    inside[slice(*window)] = True
    # Without a time when loading was fast, all of it counts.
    has_past = np.count_nonzero(~inside) >= case.limits.steps
    usual = nan_median(np.where(inside[:, None], np.nan, case.sums(rows))) if has_past else np.array(0.0)
    own = nan_median(np.where(inside[:, None], case.sums(rows), np.nan))
    ideal = case.seconds.copy()
    ideal[rows & inside[case.step]] *= min(1.0, float(np.nan_to_num(usual)) / max(float(own), 1e-18))
    return Candidate(
        cause=Cause.DATA_LOADING,
        ideal=case.ideal(ideal),
        first_step=int(case.steps[window[0]]),
        evidence={
            "data_share_of_step": float(np.median(share[inside])),
            "slowdown_is_upper_bound": not has_past,
        },
        last_resort=True,
    )
