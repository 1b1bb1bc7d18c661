"""What the rules record of slow ranks: how slow is too slow, what it costs, and what else is wrong.

The ranks of a run go on as they are.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from statistics import NormalDist
from typing import Any

import pytest

from rankwatch.conventions.states import Cause
from rankwatch_alerts import RuleConfig
from support.alerts.rule_test import ask, groups_of

SCRAPE_SECONDS = 30
_CONFIG = RuleConfig(scrape_interval_seconds=SCRAPE_SECONDS)

_NONE = range(0)

Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True, kw_only=True)
class SteadyRank:
    """What one rank does in each step of one second, on average."""

    stage: int = 0
    replica: int = 0
    local_seconds: float = 0.5
    message_seconds: float = 0.0
    late_steps: float = 0.0
    """Share of the steps that are late."""
    late_seconds: float = 0.0
    squared_deviation: float = 0.0
    data_wait_seconds: float = 0.0
    since_scrape: int = 0
    """Scrape from which `local_seconds` holds; until then it is 0.5."""


def recorded_by(
    ranks: Sequence[SteadyRank],
    expressions: Sequence[str],
    directory: Path,
    *,
    minutes: int = 11,
    missing: range = _NONE,
) -> list[dict[Labels, float]]:
    """The samples of each expression at the end; labels without those of the run, in order of names.

    missing: scrapes at which nothing is seen of any rank.
    """
    scrapes = minutes * 60 // SCRAPE_SECONDS
    series = [each for number, rank in enumerate(ranks) for each in _series(number, rank, scrapes, missing)]
    tests = [{"expr": each, "eval_time": f"{minutes}m", "exp_samples": []} for each in expressions]
    interval = f"{SCRAPE_SECONDS}s"
    case = {"interval": interval, "input_series": series, "promql_expr_test": tests}
    return [
        {_own(each.labels): each.value for each in samples}
        for samples in ask(case, groups_of(_CONFIG), interval, directory)
    ]


def _series(number: int, rank: SteadyRank, scrapes: int, missing: range) -> Iterator[dict[str, str]]:
    place = f'cluster="c",run="r",rank="{number}",node="n{number}"'
    info = f'rankwatch_rank_info{{{place},stage="{rank.stage}",data_parallel="{rank.replica}"}}'
    counters: dict[str, float] = {
        "rankwatch_steps_total": 1.0,
        "rankwatch_step_seconds_total": 1.0,
        "rankwatch_step_message_seconds_total": rank.message_seconds,
        "rankwatch_late_steps_total": rank.late_steps,
        "rankwatch_late_step_seconds_total": rank.late_seconds,
        'rankwatch_step_variation_total{term="local"}': rank.squared_deviation,
        'rankwatch_step_phase_seconds_total{phase="data_wait"}': rank.data_wait_seconds,
    }
    values = {info: [1.0] * (scrapes + 1)}
    for name, in_a_step in counters.items():
        if in_a_step:
            values[_placed(name, place)] = [in_a_step * SCRAPE_SECONDS * at for at in range(scrapes + 1)]
    local = [0.5 if at < rank.since_scrape else rank.local_seconds for at in range(scrapes)]
    totals = accumulate(local, initial=0.0)
    values[_placed("rankwatch_step_local_seconds_total", place)] = [SCRAPE_SECONDS * each for each in totals]
    for series, samples in values.items():
        written = ("_" if at in missing else f"{each:.9f}" for at, each in enumerate(samples))
        yield {"series": series, "values": " ".join(written)}


def _placed(name: str, place: str) -> str:
    plain, _, labels = name.partition("{")
    return f"{plain}{{{place}{',' + labels if labels else '}'}"


def _own(labels: Mapping[str, str]) -> Labels:
    return tuple(sorted((name, value) for name, value in labels.items() if name not in _OF_RUN))


_OF_RUN = ("__name__", "cluster", "run")


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


def _slower(ratio: float, minutes: int = 0) -> SteadyRank:
    """minutes: of a run that is that old the last eight; 0 for all the time."""
    return replace(HEALTHY, local_seconds=0.5 * ratio, since_scrape=max(0, minutes * 2 - 16))


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


_PEERS = [HEALTHY] * 7
_SPREAD = _chips(16, 0.005)
"""Chips that differ by 0.5 %."""
NAMED: Mapping[str, tuple[Sequence[SteadyRank], Mapping[str, Any], set[int]]] = {
    # Slow ranks of different stages and replicas are both named.
    "two slow ranks": (
        _in_stages([_slower(1.3), *_PEERS], [HEALTHY, _slower(1.5), *_PEERS[1:]]), {}, {0, 9},
    ),
    # Two of one replica, one in each stage, may share long microbatches, so nobody is named.
    "slow replica": (_in_stages([_slower(1.3), *_PEERS], [_slower(1.5), *_PEERS]), {}, set()),
    # A third one, of another replica, is named all the same.
    "slow rank beside slow replica": (
        _in_stages([_slower(1.3), *_PEERS], [_slower(1.5), HEALTHY, _slower(1.6), *_PEERS[2:]]), {}, {10},
    ),
    # A young run does not know yet whether its ranks always differ by 8 %; an old one does.
    "8 % in a young run": ([*_SPREAD, _slower(1.08, minutes=YOUNG)], {"minutes": YOUNG}, set()),
    "8 % in an old run": ([*_SPREAD, _slower(1.08, minutes=OLD)], {"minutes": OLD}, {16}),
    # What was learnt outlasts ten minutes without a sample, as of a Prometheus that was down.
    "8 % after a gap": (
        [*_SPREAD, _slower(1.08, minutes=OLD)],
        {"minutes": OLD, "missing": range(OLD * 2 - 36, OLD * 2 - 16)},
        {16},
    ),
    # Of 64 chips that differ by 3 % the slowest is 8 % above the median.
    "large spread, young": (_chips(64, 0.03), {"minutes": YOUNG}, set()),
    "large spread, old": (_chips(64, 0.03), {"minutes": OLD}, set()),
    # A third of the ranks that are 30 % slower all the time are not learnt as spread.
    "fault is no spread": ([*_SPREAD, *[_slower(1.3)] * 8], {"minutes": OLD}, set(range(16, 24))),
}  # fmt: skip


@pytest.mark.parametrize(("ranks", "given", "named"), NAMED.values(), ids=NAMED)
def test_who_is_named(
    ranks: Sequence[SteadyRank], given: Mapping[str, Any], named: set[int], tmp_path: Path
) -> None:
    """Ranks that are slower than their peers by more than the run has shown that its ranks differ."""
    (found,) = recorded_by(ranks, (STRAGGLER,), tmp_path, **given)
    assert set(_named(found)) == named


def test_cost_of_two_slow_ranks(tmp_path: Path) -> None:
    """The run waits for the slower one."""
    found, lost = recorded_by(NAMED["two slow ranks"][0], (STRAGGLER, LOST), tmp_path)
    assert _named(found) == {0: pytest.approx(1 / (1 - 0.15)), 9: pytest.approx(1 / (1 - 0.25))}
    assert lost == {(("cause", "slow_rank"),): pytest.approx(0.25)}


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
