"""A run that is killed three times and resumed, once with another world size, and the agent restarted."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from support.agent.process import agent_process, rankwatch, until
from support.interrupted_run import RUN, Stopwatch, exported, run_job

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]


def test_killed_and_resumed(tmp_path: Path) -> None:
    """States sum to the time that went by, and goodput is that of a stopwatch: by
    the agent that was restarted, and by the boxes alone."""
    state = tmp_path / "state"
    flags = ("--state-directory", str(state), "--collectors", "ranks")
    (tmp_path / "blackboxes").mkdir()
    with ExitStack() as stack:
        agents = [stack.enter_context(agent_process(tmp_path, *flags))]

        def between(attempt: int) -> None:
            if attempt == 2:
                agents[0].stop()
                agents.append(stack.enter_context(agent_process(tmp_path, *flags)))

        stopwatch = run_job(tmp_path, between)
        until(lambda: sum(exported(agents[-1]).values()) == all_of(stopwatch), "it has settled")
        check(exported(agents[-1]), stopwatch)
    without = rankwatch("goodput", str(tmp_path / "blackboxes" / RUN), "--json", "--account", "/dev/null")
    found = json.loads(without.stdout)
    check(found["rank_seconds"], stopwatch)
    assert [each["number"] for each in found["attempts"]] == [0, 1, 2, 3]


def all_of(stopwatch: Stopwatch) -> Any:
    """All rank-seconds, as exactly as they are told."""
    return pytest.approx(stopwatch.allocated, rel=0.005)


def check(seconds: dict[str, float], stopwatch: Stopwatch) -> None:
    """Against what the job itself has measured."""
    assert sum(seconds.values()) == all_of(stopwatch)
    least, most = stopwatch.productive
    assert 0.995 * least < seconds["productive"] < 1.005 * most
    for state in ("startup", "data", "straggler", "checkpoint", "restore", "replayed", "down"):
        assert seconds[state] > 0.0, state
    for state in ("stall", "unknown", "evaluation"):
        assert seconds[state] == 0.0, state
