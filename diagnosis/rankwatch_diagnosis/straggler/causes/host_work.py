"""Data loading and other host work that takes long: on some ranks, on whole stages, or on all ranks.

Some ranks: `slow_rank` with the phase that grew. A whole stage: `data_loading`, or `slow_stage` for other
work; stages may differ by design and a stage has no peers, so no rank is named. All ranks: `data_loading`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

import numpy as np

from rankwatch.conventions.states import Cause, SlowPhase
from rankwatch_diagnosis.operations.groups import Floats, Groups, Ints, factorize
from rankwatch_diagnosis.operations.table import Kind
from rankwatch_diagnosis.straggler.case import Candidate, Case, Ideal
from rankwatch_diagnosis.straggler.graph.replay import slowdown
from rankwatch_diagnosis.straggler.graph.unrecorded import STALL
from rankwatch_diagnosis.straggler.persistence import Excess, against_peers, bounds, noise_of, recurrent, scan
from rankwatch_diagnosis.straggler.robust import high_stretch, leave_one_out_median, nan_median

_HOST_KINDS = (Kind.DATA_LOADING, Kind.OTHER)
_SHARED = 0.5
"""Part of a replica whose ranks pause together: then they wait for something."""
_LEAST_SHARE_OF_OWN = 0.5
"""Part of a stage's host work that must be excess: it takes at least twice what it takes elsewhere."""


def find_slow_host_work(case: Case) -> list[Candidate]:
    """Find ranks whose host work, or pauses that have no row, lie above those of their stage.

    Of the pauses only those that are a rank's own. A stall may hide a wait that left no other trace. A wait
    costs nothing when it is taken away, for what is waited for comes no sooner; and it is shared by those
    that wait for each other.
    """
    found: list[Candidate] = []
    stalls: list[Candidate] = []
    for each in (each for kind in _HOST_KINDS for each in _of_kind(case, kind)):
        # Of a stall, most of the excess has no row in the table that was given.
        (stalls if _mostly(case, each.ideal, lambda name: name == STALL) else found).append(each)
    sizes = Counter(case.replica_of_rank.tolist())
    homes = [int(case.replica_of_rank[np.searchsorted(case.ranks, each.ranks[0])]) for each in stalls]
    for each, home in zip(stalls, homes, strict=True):
        alone = homes.count(home) < max(2.0, _SHARED * sizes[home])
        if alone and slowdown(case.step_seconds, case.seconds_without(each)) >= case.limits.least_slowdown:
            found.append(each)
    return found


def _of_kind(case: Case, kind: Kind) -> list[Candidate]:
    step_seconds = float(np.median(case.step_seconds))
    rows = case.table.kind == kind
    if step_seconds <= 0.0 or not rows.any():
        return []
    total = case.sums(rows)
    if kind is Kind.OTHER:  # who records none has done none
        total = np.nan_to_num(total)
    residual, slow, noise = _slow_ranks(case, total / step_seconds)
    found: list[Candidate] = []
    for each in slow:
        excess = np.where(each.active, np.nan_to_num(residual[:, each.column]), 0.0) * step_seconds
        index = np.flatnonzero(rows & (case.rank == each.column) & each.active[case.step])
        own = total[:, each.column]
        kept = np.clip(1.0 - excess / np.maximum(own, 1e-12), 0.0, 1.0)
        ideal = Ideal(index, case.seconds[index] * kept[case.step[index]])
        phase = SlowPhase.DATA_LOADING
        if kind is Kind.OTHER:
            saves = _mostly(case, ideal, lambda name: "checkpoint" in name.lower())
            phase = SlowPhase.CHECKPOINT if saves else SlowPhase.OTHER
        listed = {
            "rank": int(case.ranks[each.column]),
            "kind": kind.name.lower(),
            "seconds_per_step": float(np.median(own[each.active])),
            "excess_share_of_step": each.size,
            "excess_seconds_per_step": float(np.median(excess[each.active])),
            "first_step": int(case.steps[each.first]),
            "slow_steps": each.steps,
        }
        found.append(
            Candidate(
                cause=Cause.SLOW_RANK,
                phase=phase,
                ideal=ideal,
                active=each.active,
                first_step=int(case.steps[each.first]),
                ranks=(int(case.ranks[each.column]),),
                noise_to_size=noise / each.size,
                lasts=each.steps,
                evidence={"host_work": [listed]},
            )
        )
    return found


def _slow_ranks(case: Case, shares: Floats) -> tuple[Floats, list[Excess], float]:
    """Return (step, rank) less its peers, ranks that lie above them, and the noise, in shares of a step."""
    limits = case.limits
    peers = case.stage_of_rank
    sizes = np.unique(peers[np.isfinite(shares).any(axis=0)], return_counts=True)[1]
    if sizes.size and int(sizes.min()) < limits.peers:  # then all ranks that do this work are
        peers = np.zeros(len(case.ranks), dtype=np.int64)
    residuals = against_peers(shares, peers, limits.peers)
    chance = limits.healthy_false_alarm / len(case.ranks)
    allowed = bounds(shares, peers, noise_of(residuals.values), 0.0, chance)
    residuals = residuals._replace(allowed=allowed)
    scans = [test(residuals, limits, least_excess=limits.host_share) for test in (recurrent, scan)]
    found = {each.column: each for done in scans for each in done.found}
    return residuals.values, [found[column] for column in sorted(found)], scans[1].noise


def _mostly(case: Case, ideal: Ideal, chosen: Callable[[str], bool]) -> bool:
    """Return True if operations of chosen names hold most of the excess."""
    excess = case.seconds[ideal.rows] - ideal.seconds
    return 2.0 * float(excess[case.table.named(chosen)[ideal.rows]].sum()) > float(excess.sum())


def find_slow_host_work_of_stages(case: Case) -> Candidate | None:
    """Find host work of a whole stage that takes at least twice what it takes in the other stages."""
    step_seconds = float(np.median(case.step_seconds))
    stage, stages = factorize(case.stage_of_rank)
    if len(stages) < 2 or step_seconds <= 0.0:
        return None
    ideal = case.seconds.copy()
    found = [
        each for kind in _HOST_KINDS for each in _slow_stages(case, kind, stages, stage, step_seconds, ideal)
    ]
    if not found:
        return None
    largest = max(found, key=lambda each: float(str(each["excess_seconds_per_step"])))
    loading = largest["kind"] == Kind.DATA_LOADING.name.lower()
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
    """Yield stages whose work of one kind exceeds the others'; bring `ideal` down to what the others take."""
    rows = case.table.kind == kind
    if not rows.any():
        return
    # Seconds of the median rank of each stage, of two the faster.
    shape = len(case.steps), len(stages)
    step = np.repeat(np.arange(shape[0]), len(stage))
    cells = Groups.grid((step, shape[0]), (np.tile(stage, shape[0]), shape[1]))
    loads = cells.low_median(case.sums(rows).ravel()).reshape(shape)
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


def find_slow_data_loading(case: Case) -> Candidate | None:
    """Find long waits of all ranks for data. Without peers or a fast past, the cost is an upper bound."""
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
