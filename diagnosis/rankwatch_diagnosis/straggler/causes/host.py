"""Data loading and other work of the host: on some ranks more than on their peers, or too much on all."""

from __future__ import annotations

import numpy as np

from rankwatch.conventions import Cause, SlowPhase
from rankwatch_diagnosis.operations.table import Kind
from rankwatch_diagnosis.straggler.arrays import Floats, Ints, grouped_median, nan_median
from rankwatch_diagnosis.straggler.finding import Case, Finding
from rankwatch_diagnosis.straggler.peers import against_peers
from rankwatch_diagnosis.straggler.persistence import Lasting, scan
from rankwatch_diagnosis.straggler.stretch import high_stretch

HOST_KINDS = (Kind.DATA, Kind.OTHER)
_LOADING = Kind.DATA.name.lower()


def find_host(case: Case) -> Finding | None:
    """Ranks whose host work lasts above that of their stage; None where there is none."""
    step_seconds = float(np.median(case.step_seconds))
    if step_seconds <= 0.0:
        return None
    ideal = case.seconds.copy()
    told: list[dict[str, object]] = []
    first = len(case.steps)
    for kind in HOST_KINDS:
        rows = case.table.kind == kind
        if not rows.any():
            continue
        total = case.sums(rows)
        residual = against_peers(total / step_seconds, _peers(case, total), case.limits.peers)
        for each in scan(residual, case.limits, least_excess=case.limits.host_share).found:
            own = float(nan_median(total[each.first : each.end, each.column]))
            inside = rows & (case.rank == each.column) & (case.step >= each.first) & (case.step < each.end)
            ideal[inside] *= max(0.0, 1.0 - each.excess * step_seconds / max(own, 1e-12))
            first = min(first, each.first)
            told.append(_told(case, kind, own, each, step_seconds))
    if not told:
        return None
    longest = max(told, key=lambda each: float(str(each["excess_seconds_per_step"])))
    return Finding(
        cause=Cause.SLOW_RANK,
        phase=SlowPhase.DATA_LOADING if longest["kind"] == _LOADING else SlowPhase.OTHER,
        ideal=ideal,
        first_step=int(case.steps[first]),
        ranks=tuple(sorted({int(str(each["rank"])) for each in told})),
        evidence={"host_work": told[:64]},
    )


def find_starvation(case: Case) -> Finding | None:
    """Whole stages or the whole job wait long for data: nobody to compare with, so the cost is a bound."""
    rows = case.table.kind == Kind.DATA
    if not rows.any():
        return None
    without = case.replay.step_seconds(np.where(rows, 0.0, case.seconds))
    share = 1.0 - without / np.maximum(case.step_seconds, 1e-18)
    window = high_stretch(share, case.limits.starvation_share, case.limits.steps)
    if window is None:
        return None
    inside = np.zeros(len(case.steps), dtype=np.bool_)
    inside[slice(*window)] = True
    # Without a time when loading was fast, all of it counts.
    before = np.count_nonzero(~inside) >= case.limits.steps
    usual = nan_median(np.where(inside[:, None], np.nan, case.sums(rows))) if before else np.array(0.0)
    own = nan_median(np.where(inside[:, None], case.sums(rows), np.nan))
    ideal = case.seconds.copy()
    ideal[rows & inside[case.step]] *= min(1.0, float(np.nan_to_num(usual)) / max(float(own), 1e-18))
    return Finding(
        cause=Cause.DATA_LOADING,
        ideal=ideal,
        first_step=int(case.steps[window[0]]),
        evidence={
            "data_share_of_step": float(np.median(share[inside])),
            "slowdown_is_upper_bound": not before,
        },
        last_resort=True,
    )


def _peers(case: Case, total: Floats) -> Ints:
    """By rank: whom it is compared with. Where a stage is too small, all ranks that do this work."""
    stage = stages_of_ranks(case)
    active = np.isfinite(total).any(axis=0)
    sizes = np.unique(stage[active], return_counts=True)[1]
    if sizes.size and int(sizes.min()) < case.limits.peers:
        return np.zeros(len(case.ranks), dtype=np.int64)
    return stage


def stages_of_ranks(case: Case) -> Ints:
    """By rank: the stage of most of its rows."""
    stages = grouped_median(case.table.stage.astype(np.float64), case.rank, len(case.ranks))
    return np.rint(stages).astype(np.int64)


def _told(case: Case, kind: Kind, own: float, each: Lasting, step_seconds: float) -> dict[str, object]:
    return {
        "rank": int(case.ranks[each.column]),
        "kind": kind.name.lower(),
        "seconds_per_step": own,
        "excess_share_of_step": each.excess,
        "excess_seconds_per_step": each.excess * step_seconds,
        "first_step": int(case.steps[each.first]),
    }
