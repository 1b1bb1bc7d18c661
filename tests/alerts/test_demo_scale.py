"""The rules at the scale of minutes: a straggler is named soon, and jitter names nobody."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from rankwatch_alerts import RuleConfig
from support.alerts.rule_test import check, groups_of

pytestmark = pytest.mark.process

STEP_SECONDS = 0.25
SECONDS = 180
STRAGGLER = '{alertname="RankwatchRunSlow", cause="slow_rank", alertstate="firing"}'


def _check(
    tmp_path: Path, slow_from: int, slowdown: float, named_at: dict[int, str | None], hiccup_at: int = -9
) -> None:
    """Expect at each second the one rank that is named, or none.

    Four ranks of quarter-second steps are scraped every second, with 5 % jitter in their local time;
    rank 2 is slow from a second on. At a hiccup rank 1 alone works for two seconds and all others wait.
    """
    expected = [
        {
            "expr": f"count by (rank) (ALERTS{STRAGGLER})",
            "eval_time": f"{second}s",
            "exp_samples": [{"labels": f'{{rank="{rank}"}}', "value": 1}] if rank else [],
        }
        for second, rank in named_at.items()
    ]
    series = _series(slow_from, slowdown, hiccup_at)
    case = {"interval": "1s", "input_series": series, "promql_expr_test": expected}
    check((case,), groups_of(RuleConfig.for_demo()), "1s", tmp_path)


def _series(slow_from: int, slowdown: float, hiccup_at: int) -> list[dict[str, str]]:
    noise = random.Random(7)
    series = []
    for rank in range(4):
        labels = f'run="r", rank="{rank}", node="n"'
        steps = local = step_seconds = 0.0
        columns: dict[str, list[str]] = {"steps": [], "step_seconds": [], "step_local_seconds": []}
        for second in range(SECONDS):
            pace = STEP_SECONDS * (slowdown if second >= slow_from else 1.0)
            work = 0.8 * STEP_SECONDS * (slowdown if rank == 2 and second >= slow_from else 1.0)
            if second in (hiccup_at, hiccup_at + 1):
                local += 1.0 * (rank == 1)
            else:
                local += work / pace * noise.uniform(0.95, 1.05)
                steps += 1.0 / pace
            step_seconds += 1.0
            for column, value in zip(columns.values(), (steps, step_seconds, local), strict=True):
                column.append(f"{value:.6f}")
        series += [
            {"series": f"rankwatch_{name}_total{{{labels}}}", "values": " ".join(column)}
            for name, column in columns.items()
        ]
        series.append({"series": f"rankwatch_rank_info{{{labels}}}", "values": f"1x{SECONDS}"})
    return series


def test_straggler_is_named_in_half_a_minute(tmp_path: Path) -> None:
    """Rank 2 slows at second 60; no other is named, now or later."""
    _check(tmp_path, 60, 1.5, {59: None, 80: "2", 120: "2", 170: "2"})


def test_jitter_names_nobody(tmp_path: Path) -> None:
    """At no moment of three healthy minutes with 5 % of jitter."""
    _check(tmp_path, SECONDS, 1.0, dict.fromkeys(range(5, SECONDS, 5)))


def test_one_slow_event_names_nobody(tmp_path: Path) -> None:
    """Two seconds once: the event is in the window for less time than a straggler must persist."""
    _check(tmp_path, SECONDS, 1.0, dict.fromkeys(range(90, 130)), hiccup_at=95)
