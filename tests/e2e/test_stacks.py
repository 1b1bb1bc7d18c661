"""The rules on other people's servers: faults reach Alertmanager, and the healthy run beside them is silent.

Agents are one scrape target that replays cases of the rule tests, in less time than they take.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from rankwatch_alerts import Alert, RuleConfig, alertmanager_config, prometheus_config, write_rules
from support.alerts.replay import (
    HEALTHY,
    SPEED,
    Replay,
    active,
    agents_file,
    healthy,
    replayable,
    replayed_rules,
    served,
)
from support.alerts.scenarios import Key
from support.servers.prometheus import alertmanager, poll
from support.servers.stacks import EVALUATORS, Evaluation, evaluating, for_each, installed, use

pytestmark = [pytest.mark.process, pytest.mark.nightly, pytest.mark.timeout(600)]

ALERTS = {Alert.RUN_STALLED: ".+", Alert.NODE_LOST: ".+", Alert.LOSS_DIVERGING: "trend"}
"""Of a run, of a node that vanishes, and of what a run exports, with patterns of their reasons."""
STEPS = 300
SLOWER: Mapping[str, float] = {"vmalert": 3.0}
"""What VictoriaMetrics is given is to be found a second or two later, so a step must last longer."""
SECONDS_TO_FIRE = 400.0
LATE_SECONDS = 30.0
"""After which vmalert asks for samples."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    for_each(metafunc, "evaluator", installed(*EVALUATORS))


def test_faults_and_health(evaluator: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each fault raises its alert with its severity and reason, and the healthy run none meanwhile."""
    sibling = evaluator.with_name("alertmanager")
    if sibling.exists():
        use(sibling, tmp_path, monkeypatch)
    faults = replayable(ALERTS, STEPS)
    expected = {(key, cluster) for key, (cluster, _) in faults.items()}
    assert {key[0] for key, _ in expected} == set(ALERTS)
    series = [*healthy(STEPS), *(each for _, some in faults.values() for each in some)]
    speed = SLOWER.get(evaluator.name, SPEED)
    config = replayed_rules(speed)
    replay = Replay(series, lambda *_: "", speed)
    seen: set[tuple[Key, str]] = set()
    with served(replay) as target, alertmanager(alertmanager_config(config), tmp_path) as url:
        replay.began = time.time()
        with evaluating(evaluator, _evaluation(config, speed, tmp_path, target, url)):
            poll(lambda: expected <= _seen(url, seen), SECONDS_TO_FIRE, lambda: f"{sorted(expected - seen)}")
    assert not [key for key, cluster in seen if cluster == HEALTHY]


def _evaluation(config: RuleConfig, speed: float, directory: Path, target: str, url: str) -> Evaluation:
    scraping: Any = prometheus_config(config, rule_files=[], agent_targets=[target])
    scraping["scrape_configs"][0]["honor_labels"] = True
    return Evaluation(
        directory,
        scrapes={name: scraping[name] for name in ("global", "scrape_configs")},
        rules=[agents_file(config, directory), *write_rules(config, directory)],
        alertmanager=url,
        seconds=config.scrape_interval_seconds,
        late=LATE_SECONDS / speed,
    )


def _seen(url: str, seen: set[tuple[Key, str]]) -> set[tuple[Key, str]]:
    """Every alert with its cluster that Alertmanager has had by now."""
    seen.update(active(url))
    return seen
