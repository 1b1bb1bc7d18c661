"""An hour of ordinary life in minutes: lasting faults on a real Prometheus and Alertmanager.

The agents are one scrape target that replays the cases of the rule tests, so that each alert has its own
fault. Missed scrapes, a roll-out, and two restarts of Prometheus must resolve no alert. A healthy run, and a
neighbour whose job crashes again and again, must raise none. Times are compressed by 7.5.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rankwatch_alerts import Alert, alertmanager_config, prometheus_config, write_rules
from support.alerts.replay import (
    HEALTHY,
    SECONDS_A_STEP,
    Replay,
    active,
    agents_file,
    healthy,
    replayable,
    replayed_rules,
    sample_head,
    served,
)
from support.alerts.scenarios import Key
from support.servers.prometheus import alertmanager, poll, prometheus, require

pytestmark = [pytest.mark.process, pytest.mark.nightly, pytest.mark.timeout(900)]

STEPS = 1500
CONFIG = replace(replayed_rules(), event_window_seconds=900.0, absence_lookback_seconds=360.0)
"""Events, and runs that vanished, keep their alerts firing throughout the test, which lasts 40 min: here
rules remember such a run for 45 min, by default for 30."""
FLAGS = ("--query.lookback-delta=40s", "--rules.alert.for-grace-period=80s", "--rules.alert.resend-delay=32s")
"""The defaults, and for the last four minutes as docs/alerts.md advises, each divided by 7.5."""
SHORT_SECONDS, LONG_SECONDS = 2.0, 48.0
"""Outages of 15 s and of 6 min."""
SECONDS_TO_FIRE, SECONDS_TO_SETTLE = 400.0, 24.0
SECONDS_TO_SEND_AGAIN = 50.0
"""Longer than the delay above and two intervals of tickets: what fires at once is sent before Prometheus has
found Alertmanager."""
SECONDS_WITH_METRICS = 20.0
"""Until one of the few moments at which lost metrics are looked up; cases lose theirs after twice as long."""
NEIGHBOUR = "neighbour"
LASTING = {
    Alert.RUN_SLOW: "slow_rank|slow_stage|jitter",
    Alert.RUN_STALLED: ".+",
    Alert.RUN_FAILED: "ranks_lost|waited",
    Alert.NODE_LOST: ".+",
    Alert.LOSS_DIVERGING: "trend",
    Alert.TELEMETRY_ABSENT: "(?!rankwatch_step|rules_failing).+",
    Alert.TELEMETRY_INCOMPLETE: "collector",
}
"""Alerts on states that last, and patterns of their reasons or causes. Two cores evaluate no more than these
every two seconds."""
Active = frozenset[tuple[Key, str]]


def _crash_loop(step: int, began: float) -> str:
    """A job of two ranks that starts every 8 steps, and fails after 5."""
    attempt, age = divmod(step, 8)
    state = "running" if age < 5 else "failed"
    start = began + attempt * 8 * SECONDS_A_STEP
    lines = []
    for rank in ("0", "1"):
        of = {"cluster": NEIGHBOUR, "run": "loop", "rank": rank, "node": "n0"}
        for name, more, value in (
            ("rankwatch_rank_state", {"state": state}, 1.0),
            ("rankwatch_rank_info", {"stage": "0", "pid": str(attempt)}, 1.0),
            ("rankwatch_rank_start_timestamp_seconds", {}, start),
            ("rankwatch_rank_heartbeat_timestamp_seconds", {}, start + min(age, 5)),
            ("rankwatch_progress_timestamp_seconds", {}, start + min(age, 5)),
            ("rankwatch_steps_total", {}, float(min(age, 5))),
            ("rankwatch_step_seconds_total", {}, 0.1 * min(age, 5)),
            ("rankwatch_step_local_seconds_total", {}, 0.05 * min(age, 5)),
            ("rankwatch_step_phase_seconds_total", {"phase": "other"}, 0.05 * min(age, 5)),
        ):
            lines.append(f"{sample_head(name, {**of, **more})} {value!r}\n")
    return "".join(lines)


class Watch:
    """Looks at Alertmanager all the time: which of these alerts were not there, and which others were."""

    def __init__(self, url: str, before: Active) -> None:
        self._url, self._before = url, before
        self.resolved: set[tuple[Key, str]] = set()
        self.surplus: set[tuple[Key, str]] = set()
        self._over = threading.Event()

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Look twice a second, until the block ends."""
        thread = threading.Thread(target=self._watch)
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            thread.join()

    def _watch(self) -> None:
        while not self._over.wait(0.5):
            firing = active(self._url)
            self.resolved |= self._before - firing
            self.surplus |= firing - self._before


def test_an_hour_of_ordinary_life(tmp_path: Path) -> None:
    """No true alert is resolved at any moment, and no false one is raised."""
    require("prometheus", "prometheus-alertmanager")
    chosen = replayable(LASTING, STEPS)
    expected = frozenset((key, cluster) for key, (cluster, _) in chosen.items())
    replay = Replay(
        [*healthy(STEPS), *(each for _, series in chosen.values() for each in series)], _crash_loop
    )
    with ExitStack() as stack:
        am = stack.enter_context(alertmanager(alertmanager_config(CONFIG), tmp_path))
        target = stack.enter_context(served(replay))
        config: Any = prometheus_config(
            CONFIG,
            rule_files=[agents_file(CONFIG, tmp_path), *write_rules(CONFIG, tmp_path)],
            agent_targets=[target],
            alertmanager_targets=[am.removeprefix("http://")],
        )
        config["scrape_configs"][0]["honor_labels"] = True
        time.sleep(-(time.time() + SECONDS_WITH_METRICS) % (CONFIG.absence_lookback_seconds / 2))
        replay.began = time.time()
        with prometheus(config, tmp_path, FLAGS):
            raised: set[tuple[Key, str]] = set()

            def all_fire() -> bool:
                firing = active(am)
                raised.update(firing)
                return expected <= firing

            poll(all_fire, SECONDS_TO_FIRE, lambda: f"{sorted(expected - raised)}, nor the others at once")
            time.sleep(SECONDS_TO_SETTLE)  # further alerts of the same faults
            before = active(am)
            watch = Watch(am, before)
            stack.enter_context(watch.watching())
            _miss(replay, seconds=2.4)
            _miss(replay, seconds=8.0)
        time.sleep(SHORT_SECONDS)
        with prometheus(config, tmp_path, FLAGS):
            time.sleep(SECONDS_TO_SEND_AGAIN)
        time.sleep(LONG_SECONDS)
        with prometheus(config, tmp_path, FLAGS):
            time.sleep(SECONDS_TO_SEND_AGAIN)
    assert watch.resolved & expected == set()
    assert not [each for each in before | watch.surplus if each[1] in (HEALTHY, NEIGHBOUR)]


def _miss(replay: Replay, *, seconds: float) -> None:
    """All scrapes fail for a while, as when every agent restarts."""
    replay.down = True
    time.sleep(seconds)
    replay.down = False
    time.sleep(SECONDS_TO_SETTLE - 8.0)  # all of the test must fit into what rules remember of lost metrics
