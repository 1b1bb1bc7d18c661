"""A stall is decided in three places: by the agent, by the diagnosis of black boxes, and by the rules."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankwatch_agent.training.steps.timeouts import FACTOR, is_too_long
from rankwatch_alerts import RuleConfig
from rankwatch_diagnosis.run.waiting import Recorders, judge_waiting, stall_seconds
from support.alerts.rule_test import ask, groups_of
from support.diagnosis.run_boxes import RankBox, boxes_seen

pytestmark = pytest.mark.process

STEP_SECONDS = 20.0
SEEN_SECONDS = 1200
"""How long Prometheus has seen the run."""


@pytest.mark.parametrize(("steps", "idle", "is_stall"), [(12, 95, False), (12, 105, True), (0, 1000, False)])
def test_one_verdict(steps: int, idle: int, is_stall: bool, tmp_path: Path) -> None:
    """All three say the same of a rank that has made no progress for `idle` seconds, with and without steps
    from which it has learnt how long that may last."""
    box = RankBox(tmp_path, 0, world=1)
    for step in range(steps):
        ended = idle + STEP_SECONDS * (steps - 1 - step)
        box.steps(step, ended + STEP_SECONDS, ended)
    boxes = boxes_seen(tmp_path, {0: 0.0})
    (rank,) = boxes.living
    assert rank.timeout == (pytest.approx(FACTOR * STEP_SECONDS) if steps else None)
    found = judge_waiting(boxes, Recorders(), stall=stall_seconds(boxes), complete=False)
    rule = stalled_by_rule(idle, rank.timeout, tmp_path)
    assert (is_too_long(idle, rank.timeout), found.state.is_stall, rule) == (is_stall,) * 3


def stalled_by_rule(idle: int, timeout: float | None, directory: Path) -> bool:
    values = {
        'rankwatch_node_ranks{run="job",node="a",state="running"}': 1,
        'rankwatch_node_first_start_timestamp_seconds{run="job",node="a"}': 0,
        'rankwatch_node_progress_timestamp_seconds{run="job",node="a"}': SEEN_SECONDS - idle,
    }
    if timeout is not None:
        values['rankwatch_node_progress_timeout_seconds{run="job",node="a"}'] = round(timeout)
    asked = {"expr": "run:rankwatch_stall_seconds:max", "eval_time": f"{SEEN_SECONDS}s", "exp_samples": []}
    case = {
        "interval": "15s",
        "input_series": [
            {"series": name, "values": f"{value}x{SEEN_SECONDS}"} for name, value in values.items()
        ],
        "promql_expr_test": [asked],
    }
    _, *groups = groups_of(RuleConfig())  # the first one would make these series from those of ranks
    (samples,) = ask(case, groups, "15s", directory)
    return bool(samples)
