"""What the rules record of slow ranks: how slow is too slow, what it costs, and what else is wrong."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import NormalDist

import pytest

from rankwatch.conventions.states import Cause
from rankwatch_alerts import RuleConfig
from support.alerts.steady_run import Labels, SteadyRank, recorded_by

pytestmark = pytest.mark.process

CONFIG = RuleConfig()
STRAGGLER = "rank:rankwatch_straggler:slowdown"
LOST = "run_cause:rankwatch_lost_time:share"
LOST_SECONDS = "run_cause:rankwatch_lost_rank_seconds:rate"
HEALTHY = SteadyRank()
YOUNG, OLD = 11, 45
"""Minutes: too short to have learnt the spread of the run, and long enough."""


def _named(found: dict[Labels, float]) -> dict[int, float]:
    return {int(dict(labels)["rank"]): value for labels, value in found.items()}


def _chips(count: int, sigma: float) -> list[SteadyRank]:
    """Healthy ranks that differ as a normal distribution of this width does, in mixed order."""
    levels = [NormalDist().inv_cdf((place + 0.5) / count) for place in range(count)]
    mixed = [levels[(7 * place) % count] for place in range(count)]
    return [replace(HEALTHY, local_seconds=0.5 * math.exp(sigma * level)) for level in mixed]


def _in_stages(*stages: Sequence[SteadyRank]) -> list[SteadyRank]:
    return [
        replace(rank, stage=stage, replica=replica)
        for stage, ranks in enumerate(stages)
        for replica, rank in enumerate(ranks)
    ]


def _slower(ratio: float) -> SteadyRank:
    return replace(HEALTHY, local_seconds=0.5 * ratio)


def test_cost_behind_a_pipeline(tmp_path: Path) -> None:
    """What a rank waits less for its own pipeline, nobody waits for: 0.2 of its 0.3 s hold up the others."""
    peers = [replace(HEALTHY, message_seconds=0.2) for _ in range(7)]
    slow = replace(HEALTHY, local_seconds=0.8, message_seconds=0.1)
    found, lost = recorded_by(_in_stages([*peers, slow], [HEALTHY] * 8), (STRAGGLER, LOST_SECONDS), tmp_path)
    assert _named(found) == {7: pytest.approx(1 / (1 - 0.2))}
    assert list(lost.values()) == [pytest.approx(0.2 * 16)]


def test_cost_beside_others(tmp_path: Path) -> None:
    """Without the slow rank, the run would go at the pace of the last of the others, not of the median.

    Steps that vary by 4 % of 0.5 s make the last of 16 about 0.035 s later than the median.
    """
    peers = [replace(HEALTHY, squared_deviation=0.04**2)] * 15
    (found,) = recorded_by([*peers, replace(_slower(1.4), squared_deviation=0.04**2)], (STRAGGLER,), tmp_path)
    last = 0.5 * 0.04 * (math.sqrt(2 * math.log(16)) - 0.6)
    assert _named(found) == {15: pytest.approx(1 / (1 - (0.2 - last)))}


def test_cost_of_some_steps(tmp_path: Path) -> None:
    """A rank that is 0.6 s late in a fifth of its steps costs 0.12 s a step, less the margin in these."""
    peers = [replace(HEALTHY, squared_deviation=0.04**2)] * 15
    late = replace(peers[0], local_seconds=0.62, late_steps=0.2, late_seconds=0.12)
    (found,) = recorded_by([*peers, late], (STRAGGLER,), tmp_path)
    last = 0.5 * 0.04 * (math.sqrt(2 * math.log(16)) - 0.6)
    assert _named(found) == {15: pytest.approx(1 / (1 - (0.12 - 0.2 * last)))}


def test_two_slow_ranks(tmp_path: Path) -> None:
    """Slow ranks of different stages and replicas are both named; the run waits for the slower one."""
    slow = _in_stages([_slower(1.3), *[HEALTHY] * 7], [HEALTHY, _slower(1.5), *[HEALTHY] * 6])
    found, lost = recorded_by(slow, (STRAGGLER, LOST), tmp_path)
    assert _named(found) == {0: pytest.approx(1 / (1 - 0.15)), 9: pytest.approx(1 / (1 - 0.25))}
    assert lost == {(("cause", "slow_rank"),): pytest.approx(0.25)}


def test_slow_replica(tmp_path: Path) -> None:
    """Two slow ranks of one replica, one in each stage, may share long microbatches, so nobody is named."""
    slow = _in_stages([_slower(1.3), *[HEALTHY] * 7], [_slower(1.5), *[HEALTHY] * 7])
    (found,) = recorded_by(slow, (STRAGGLER,), tmp_path)
    assert found == {}


def test_slow_rank_beside_slow_replica(tmp_path: Path) -> None:
    """A third one, of another replica, is named all the same."""
    first, second = [_slower(1.3), *[HEALTHY] * 7], [_slower(1.5), HEALTHY, _slower(1.6), *[HEALTHY] * 5]
    (found,) = recorded_by(_in_stages(first, second), (STRAGGLER,), tmp_path)
    assert set(_named(found)) == {10}


def test_slow_rank_beside_jitter(tmp_path: Path) -> None:
    """A rank that is late in many steps does not hide that others are late in turn, nor they it."""
    jittery = replace(HEALTHY, local_seconds=0.51, late_steps=0.02, late_seconds=0.01)
    late = replace(HEALTHY, local_seconds=0.75, late_steps=0.5, late_seconds=0.25)
    found, lost = recorded_by([*[jittery] * 15, late], (STRAGGLER, LOST), tmp_path)
    assert set(_named(found)) == {15}
    assert {cause for ((_, cause),) in lost} == {Cause.SLOW_RANK, Cause.JITTER}


def test_causes_by_cost(tmp_path: Path) -> None:
    """Slow data loading of all ranks and one rank that computes slowly: both are listed with their cost."""
    loading = replace(HEALTHY, data_wait_seconds=0.15)
    (lost,) = recorded_by([*[loading] * 15, replace(loading, local_seconds=0.75)], (LOST,), tmp_path)
    assert lost == {
        (("cause", "slow_rank"),): pytest.approx(0.25),
        (("cause", "data_loading"),): pytest.approx(0.15),
    }


def test_small_spread(tmp_path: Path) -> None:
    """Once a run has shown that its chips differ by 0.5 %, a rank that becomes 8 % slower is named at once.

    A young run names it not: nobody knows yet whether its ranks always differ so much.
    """
    for minutes, named in ((YOUNG, set()), (OLD, {16})):
        fault = replace(_slower(1.08), since_scrape=minutes * 2 - 16)
        (found,) = recorded_by([*_chips(16, 0.005), fault], (STRAGGLER,), tmp_path, minutes=minutes)
        assert set(_named(found)) == named


def test_spread_after_a_gap(tmp_path: Path) -> None:
    """What was learnt outlasts ten minutes without a sample, as of a Prometheus that was down."""
    after = OLD * 2 - 16
    fault = replace(_slower(1.08), since_scrape=after)
    (found,) = recorded_by(
        [*_chips(16, 0.005), fault], (STRAGGLER,), tmp_path, minutes=OLD, missing=range(after - 20, after)
    )
    assert set(_named(found)) == {16}


def test_large_spread(tmp_path: Path) -> None:
    """Chips that differ by 3 %: the slowest of 64 is 8 % above the median, and nobody is named."""
    for minutes in (YOUNG, OLD):
        (found,) = recorded_by(_chips(64, 0.03), (STRAGGLER,), tmp_path, minutes=minutes)
        assert found == {}


def test_fault_is_no_spread(tmp_path: Path) -> None:
    """A third of the ranks that are 30 % slower all the time are not learnt as spread, and all are named."""
    (found,) = recorded_by([*_chips(16, 0.005), *[_slower(1.3)] * 8], (STRAGGLER,), tmp_path, minutes=OLD)
    assert set(_named(found)) == set(range(16, 24))


def test_learnt_spread_has_a_limit(tmp_path: Path) -> None:
    """What spreads most ranks for hours is a fault, and is not learnt as chips that differ by that much."""
    ranks = [_slower(1 + 0.1 * place) for place in range(8)]
    (found,) = recorded_by(ranks, ("run:rankwatch_step_local_seconds:learnt_spread",), tmp_path, minutes=OLD)
    assert found == {(): CONFIG.straggler_most_spread}


def test_causes_are_bounded(tmp_path: Path) -> None:
    """At most a series for each cause and run, however many ranks are slow."""
    ranks = [*[HEALTHY] * 20, *[_slower(1.5)] * 12]
    named, lost = recorded_by(ranks, (STRAGGLER, LOST), tmp_path)
    assert len(named) == 12 and len(lost) == 1
