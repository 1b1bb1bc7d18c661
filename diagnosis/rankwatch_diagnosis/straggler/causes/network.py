"""Slow transfers, without the wait for peers: what the last arriver of a collective itself spends in it.

A link is what carries transfers of one operation: a process group, or two ranks. A link is slow if
its transfers take twice those of links like it, or grew by 30 % over its own past. Where ranks of the job may
be missing from the table, a wait for one of them looks like a transfer, and the candidate is `inconclusive`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from rankwatch.conventions.states import Cause
from rankwatch_diagnosis.operations.groups import Bools, Floats, Groups, Ints
from rankwatch_diagnosis.operations.table import NO_ROW, Kind
from rankwatch_diagnosis.straggler.case import Candidate, Case
from rankwatch_diagnosis.straggler.graph.unrecorded import HIDDEN_WAIT
from rankwatch_diagnosis.straggler.robust import high_stretch, leave_one_out_median, nan_median

_MOST_LISTED = 32
"""Links in the evidence."""
_STANDARD_ERRORS = 3.0
"""Of a rank correlation, beyond which it is not chance."""
_LEAST_STEPS = 8
"""For a rank correlation."""
_MOST_UNMATCHED = 0.5
"""Share of receives without their send from which on ranks are missing."""


@dataclass(frozen=True, kw_only=True)
class Links:
    """One column for each pair of operation and group, or of ranks that send and receive."""

    seconds: Floats
    """(step, link): mean transfer, without waits; NaN where a step has none."""
    likeness: Ints
    """By link: links of one number run one operation, over as many ranks, as often in a step."""
    place: Ints
    """By link: collectives of one number join ranks of the same stages, and so carry as much; of messages -1,
    which carry as much on all stages."""
    names: tuple[str, ...]
    rows: Ints
    """Rows of the table that are transfers."""
    link: Ints
    """By those rows."""


def find_network(case: Case, links: Links) -> Candidate | None:
    """Find links that are slower than links like them, or than they themselves were. Name no rank.

    A collective is as slow as its slowest link, and every member sees it: the table does not show whose link
    it is. The evidence names the groups and the senders.
    """
    series = np.log(np.maximum(links.seconds, 1e-9))
    slower = np.zeros(series.shape)
    _beyond_peers(series, links, case, slower)
    _beyond_past(series, case, slower)
    hit = np.flatnonzero((slower > 0.0).any(axis=0))
    if hit.size == 0:
        return None
    ideal = case.seconds.copy()
    ideal[links.rows] *= np.exp(-slower[case.step[links.rows], links.link])
    missing = _others_are_waited_for(case, links, slower > 0.0)
    most = hit[np.argsort(-slower[:, hit].max(axis=0), kind="stable")]
    return Candidate(
        cause=Cause.INCONCLUSIVE if missing else Cause.NETWORK,
        ideal=case.ideal(ideal),
        first_step=int(case.steps[int(np.argmax((slower > 0.0).any(axis=1)))]),
        evidence={
            "slow_transfers": [
                {"of": links.names[index], "slower_by_ratio": float(np.expm1(slower[:, index].max()))}
                for index in most[:_MOST_LISTED].tolist()
            ],
            "slow_transfers_count": int(hit.size),
            "transfers_count": len(links.names),
        }
        | _why_not(missing),
    )


def find_exposed_transfers(case: Case, links: Links) -> Candidate | None:
    """Find transfers with no past and no peers to compare with, that take a large part of the step."""
    if abs(math.log(max(case.replayed_ratio(), 1e-18))) > math.log(case.limits.replay_ratio):
        return None  # the dependencies are not understood, so the time without transfers is unknown
    ideal = case.seconds.copy()
    ideal[links.rows] = 0.0
    measured = float(case.step_seconds.sum())
    share = 1.0 - float(case.replay.step_seconds(ideal).sum()) / measured if measured > 0.0 else 0.0
    missing = _others_are_waited_for(case, links, np.isfinite(links.seconds))
    if share < case.limits.transfer_share / (2.0 if missing else 1.0):
        return None
    return Candidate(
        cause=Cause.INCONCLUSIVE if missing else Cause.NETWORK,
        ideal=case.ideal(ideal),
        first_step=int(case.steps[0]),
        evidence={"transfer_share_of_step": share, "slowdown_is_upper_bound": True} | _why_not(missing),
        last_resort=True,
    )


def _why_not(missing: bool) -> dict[str, object]:
    return (
        {"why": "ranks are missing, so what looks like a transfer may be a wait for them"} if missing else {}
    )


def measure_links(case: Case) -> Links | None:
    """Measure all transfers of a table; None where it has none."""
    table = case.table
    sends, receives = table.sends, table.receives
    partner = case.replay.communication.partner
    recorded = table.named(lambda name: name != HIDDEN_WAIT)
    rows = np.flatnonzero((table.kind == Kind.COMMUNICATION) & recorded & (~receives | (partner != NO_ROW)))
    if rows.size == 0:
        return None
    # A message belongs to the rank that sends it, and to the one that receives it where that is recorded; a
    # collective to its group, or to its stage where groups are unknown.
    sender = np.where(receives[rows], partner[rows], rows)
    receiver = np.where(receives[rows], rows, partner[rows])
    known = (receiver != NO_ROW) & (table.peer is not None)
    to = np.where(known, case.rank[receiver], NO_ROW)
    pair = Groups.by(case.rank[sender], to)
    named = np.array([bool(name) for name in table.groups], dtype=np.bool_)[table.group[rows]]
    carrier = np.where((sends | receives)[rows], 2, np.where(named, 0, 1))
    which = np.choose(carrier, (table.group[rows], table.stage[rows], pair.number)).astype(np.int64)
    links = Groups.by(carrier, which, table.operation[sender])
    cells = Groups.grid((case.step[rows], len(case.steps)), (links.number, links.count))
    members = np.bincount(Groups.by(links.number, case.rank[rows]).first(links.number))
    per_step = np.rint(links.size() / len(case.steps)).astype(np.int64)
    first = links.first(np.arange(len(rows)))
    operation = table.operation[sender][first]
    seconds = table.stage[rows].astype(np.float64)
    lowest, highest = links.min(seconds), links.max(seconds)
    joined = Groups.by(lowest.astype(np.int64), highest.astype(np.int64)).number
    return Links(
        seconds=cells.mean(case.seconds[rows]).reshape(len(case.steps), links.count),
        likeness=Groups.by(operation, members, per_step).number,
        place=np.where(carrier[first] == 2, NO_ROW, joined),
        names=tuple(
            f"{table.operations[name]} {_carrier(case, kind, index, *ends)}"
            for name, kind, index, *ends in zip(
                operation.tolist(),
                carrier[first].tolist(),
                which[first].tolist(),
                case.rank[sender][first].tolist(),
                to[first].tolist(),
                strict=True,
            )
        ),
        rows=rows,
        link=links.number,
    )


def _carrier(case: Case, kind: int, index: int, sender: int, receiver: int) -> str:
    if kind == 2:
        to = "" if receiver == NO_ROW else f" to rank {int(case.ranks[receiver])}"
        return f"of rank {int(case.ranks[sender])}{to}"
    return f"of stage {index}" if kind == 1 else f"in {case.table.groups[index]}"


def _beyond_peers(series: Floats, links: Links, case: Case, slower: Floats) -> None:
    """Compare each link with the median of links like it in the same step.

    A stage with an embedding has more parameters to reduce, so groups of other stages say less.
    """
    limits = case.limits
    for each in np.unique(links.likeness):
        everywhere = np.flatnonzero(links.likeness == each)
        for place in np.unique(links.place[everywhere]):
            alike = everywhere[links.place[everywhere] == place]
            ratio = limits.transfer_ratio
            if len(alike) < 2:
                alike, ratio = everywhere, limits.transfer_ratio_of_stages
            if len(alike) >= 2:
                own = links.place[alike] == place
                _beyond(series, alike, own, ratio, limits.steps, slower)


def _beyond(series: Floats, alike: Ints, own: Bools, ratio: float, steps: int, slower: Floats) -> None:
    """Note which of the `own` links exceed the others of those `alike` by the ratio."""
    excess = series[:, alike] - leave_one_out_median(series[:, alike], axis=1)
    level = np.log(ratio) / 2.0
    for index in np.flatnonzero(own & (np.nanmax(excess, axis=0, initial=0.0) > level)).tolist():
        window = high_stretch(excess[:, index], level, steps)
        if window is None:
            continue
        typical = float(nan_median(excess[slice(*window), index]))
        if typical >= np.log(ratio):
            slower[slice(*window), alike[index]] = typical


def _beyond_past(series: Floats, case: Case, slower: Floats) -> None:
    """Compare a link with its own lower level, where it moves between two levels that each last."""
    limits = case.limits
    steps = len(series)
    if steps < 2 * limits.steps:
        return
    # A past or a present of the fewest steps that count must show.
    tail = min(0.1, (limits.steps - 1) / (steps - 1))
    low, high = np.nanquantile(np.where(np.isfinite(series), series, np.nan), (tail, 1.0 - tail), axis=0)
    for index in np.flatnonzero(high - low > np.log(limits.transfer_growth)).tolist():
        middle = (low[index] + high[index]) / 2.0
        window = high_stretch(series[:, index], middle, limits.steps)
        if window is None:
            continue
        inside = np.zeros(steps, dtype=np.bool_)
        inside[slice(*window)] = True
        outside = series[~inside, index]
        if np.isfinite(outside).sum() < limits.steps or np.mean(outside > middle) > 0.2:
            continue
        growth = float(nan_median(series[inside, index]) - nan_median(outside))
        if np.mean(series[inside, index] > middle) >= 0.8 and growth >= np.log(limits.transfer_growth):
            slower[inside, index] = np.maximum(slower[inside, index], growth)


def _others_are_waited_for(case: Case, links: Links, slow: Bools) -> bool:
    """Return True if slow transfers, as (step, link), may be waits for ranks that are not in the table."""
    if case.table.complete:
        return False
    return _ranks_are_missing(case) or _waits_for_outsiders(case, links, slow)


def _ranks_are_missing(case: Case) -> bool:
    """Return True if the numbers of ranks have gaps, or most receives of a pipeline have no send.

    Numbers at even distances have none: one rank of each tensor-parallel group is recorded.
    """
    distance = np.diff(case.ranks)
    if int(case.ranks[0]) >= int(distance.min(initial=1)) or (distance != distance[:1]).any():
        return True
    receives = case.table.receives
    communication = case.replay.communication
    alone = (communication.partner == NO_ROW) & (communication.waits_for == NO_ROW)
    return bool(receives.any() and alone[receives].mean() > _MOST_UNMATCHED)


def _waits_for_outsiders(case: Case, links: Links, slow: Bools) -> bool:
    """Return True if slow transfers get shorter as much as the members come later, as a wait for others does.

    `slow` is (step, link). A transfer that is slow by itself takes as long whenever its members come.
    """
    # (step, link): seconds from the first operation of the step to the last arrival, of the latest rank.
    step_rank = case.table.cells.groups
    begin = step_rank.min(case.table.start_seconds)[step_rank.number]
    since = (case.table.start_seconds - begin)[links.rows]
    steps, count = links.seconds.shape
    cells = Groups.grid((case.step[links.rows], steps), (links.link, count))
    arrival = cells.max(since).reshape(steps, count)
    arrival = np.where(np.isfinite(arrival), arrival, np.nan)
    scores = [
        _rank_correlation(arrival[:, index], links.seconds[:, index], slow[:, index])
        for index in np.flatnonzero(slow.any(axis=0)).tolist()
    ]
    return bool(scores) and float(np.median(scores)) < -_STANDARD_ERRORS


def _rank_correlation(one: Floats, other: Floats, slow: Bools) -> float:
    """Return Spearman's correlation, in standard errors; slow steps and others each around their median."""
    seen = np.isfinite(one) & np.isfinite(other)
    if np.count_nonzero(seen) < _LEAST_STEPS:
        return 0.0
    numbers: list[Ints] = []
    for values in (one, other):
        centred = np.where(slow, values - nan_median(values[slow]), values)
        if not slow.all():
            centred[~slow] -= nan_median(values[~slow])
        numbers.append(np.argsort(np.argsort(centred[seen])))
    correlation = float(np.corrcoef(numbers[0], numbers[1])[0, 1])
    return correlation * math.sqrt(len(numbers[0]) - 1)
