"""Transfers that are slow where nobody is waited for: what the last arriver of a collective itself spends."""

from __future__ import annotations

import math

import numpy as np

from rankwatch.conventions import Cause
from rankwatch_diagnosis.straggler.arrays import Floats, leave_one_out_median, nan_median
from rankwatch_diagnosis.straggler.causes.links import Links, measure_links
from rankwatch_diagnosis.straggler.causes.outsiders import ranks_are_missing, waits_for_outsiders
from rankwatch_diagnosis.straggler.finding import Case, Finding
from rankwatch_diagnosis.straggler.stretch import high_stretch

_MOST_TOLD = 32


def find_network(case: Case) -> Finding | None:
    """Links that are slower than links like them, or than they themselves were. Names no rank.

    A collective is as slow as its slowest link, and every member sees it: the table does not say whose link
    it is. The evidence names the groups and the senders.
    """
    links = measure_links(case)
    if links is None:
        return None
    series = np.log(np.maximum(links.seconds, 1e-9))
    slower = np.zeros(series.shape)
    _beyond_peers(series, links, case, slower)
    _beyond_past(series, case, slower)
    hit = np.flatnonzero((slower > 0.0).any(axis=0))
    if hit.size == 0:
        return None
    ideal = case.seconds.copy()
    ideal[links.rows] *= np.exp(-slower[case.step[links.rows], links.link])
    missing = ranks_are_missing(case) or waits_for_outsiders(case, links, slower > 0.0)
    most = hit[np.argsort(-slower[:, hit].max(axis=0), kind="stable")]
    return Finding(
        cause=Cause.INCONCLUSIVE if missing else Cause.NETWORK,
        ideal=ideal,
        first_step=int(case.steps[int(np.argmax((slower > 0.0).any(axis=1)))]),
        evidence={
            "slow_transfers": [
                {"of": links.names[index], "slower_by_ratio": float(np.expm1(slower[:, index].max()))}
                for index in most[:_MOST_TOLD].tolist()
            ],
            "slow_transfers_count": int(hit.size),
            "transfers_count": len(links.names),
        }
        | _why_not(missing),
    )


def find_exposed_transfers(case: Case) -> Finding | None:
    """Transfers with no past and no peers to compare with, that take a large part of the step."""
    links = measure_links(case)
    if links is None:
        return None
    if abs(math.log(max(case.replayed_ratio(), 1e-18))) > math.log(case.limits.replay_ratio):
        return None  # what would be left without transfers is anybody's guess
    ideal = case.seconds.copy()
    ideal[links.rows] = 0.0
    measured = float(case.step_seconds.sum())
    share = 1.0 - float(case.replay.step_seconds(ideal).sum()) / measured if measured > 0.0 else 0.0
    # Where ranks are missing, a wait for one of them looks like a transfer.
    missing = ranks_are_missing(case) or waits_for_outsiders(case, links, np.isfinite(links.seconds))
    if share < case.limits.transfer_share / (2.0 if missing else 1.0):
        return None
    return Finding(
        cause=Cause.INCONCLUSIVE if missing else Cause.NETWORK,
        ideal=ideal,
        first_step=int(case.steps[0]),
        evidence={"transfer_share_of_step": share, "slowdown_is_upper_bound": True} | _why_not(missing),
        last_resort=True,
    )


def _beyond_peers(series: Floats, links: Links, case: Case, slower: Floats) -> None:
    """Against the median of links like it in the same step."""
    limits = case.limits
    for each in np.unique(links.likeness):
        alike = np.flatnonzero(links.likeness == each)
        if len(alike) < 2:
            continue
        excess = series[:, alike] - leave_one_out_median(series[:, alike], axis=1)
        level = np.log(limits.transfer_ratio) / 2.0
        for index in np.flatnonzero(np.nanmax(excess, axis=0, initial=0.0) > level).tolist():
            window = high_stretch(excess[:, index], level, limits.steps)
            if window is None:
                continue
            typical = float(nan_median(excess[slice(*window), index]))
            if typical >= np.log(limits.transfer_ratio):
                slower[slice(*window), alike[index]] = typical


def _beyond_past(series: Floats, case: Case, slower: Floats) -> None:
    """Against the link's own lower level, where it moves between two levels that each last."""
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


def _why_not(missing: bool) -> dict[str, object]:
    return (
        {"why": "ranks are missing, so what looks like a transfer may be a wait for them"} if missing else {}
    )
