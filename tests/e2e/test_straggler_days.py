"""Straggler days: what slows real jobs down without any rank at fault raises its alert, and names no rank.

All jobs run at once, on one monitored system. The network needs half a minute of past, so its alert
comes last, and the file takes as long as it does. A straggler itself is the demo's game day.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rankwatch_alerts import Alert, RuleConfig
from rankwatch_cli.demo.receiver import Alert as DeliveredAlert
from support.e2e.game_day import SECONDS_TO_ALERT, MonitoredSystem, complete, monitored_system
from support.paths import SUPPORT
from support.servers.netns import namespace_with_loopback
from support.servers.prometheus import poll, query, require

pytestmark = pytest.mark.e2e

NODE = "node-a"
CONFIG = RuleConfig.for_demo()
UNEQUAL, JITTERY, SLOW_DATA, HEALTHY = "unequal-batches", "jittery", "slow-data", "healthy"
SLOW_STAGE, SLOW_NETWORK = "slow-stage", "slow-network"
FAULTS: dict[str, tuple[str, ...]] = {
    UNEQUAL: ("unequal-batches:ratio=4",),
    JITTERY: ("jitter:seconds=0.4,every=5",),
    SLOW_DATA: ("slow-data:seconds=0.2",),
    HEALTHY: (),
}
"""Of jobs of the trainer, by run."""
RANKS = 4
"""Of each of these: with three, one of them would soon hold more than half of all lateness by chance."""
LONG_STEPS = (
    *("--layer-forward-seconds", "0.08", "--layer-backward-seconds", "0.16"),
    *("--checkpoint-every", "1000000"),
)
"""Of about half a second: a busy machine delays a step by a small part of that. No checkpoints."""
PIPELINE_JOB = SUPPORT / "jobs" / "pipeline_job.py"
STAGES, HEAVY_STAGE, REPLICAS = 3, 1, 2
HEAVY_FACTOR = 1.6
NETWORK_RANKS = 3
LARGER_MODEL = ("--width", "64")
"""Gradients of some 150 kB."""
SLOW_BITS_PER_SECOND = 20_000_000
"""At which these gradients need a quarter of a second."""
EXPECTED: dict[str, tuple[Alert, dict[str, str]]] = {
    UNEQUAL: (Alert.UNEQUAL_BATCHES, {}),
    JITTERY: (Alert.JITTER, {}),
    SLOW_DATA: (Alert.SLOW_DATA_LOADING, {}),
    SLOW_STAGE: (Alert.SLOW_STAGE, {"stage": str(HEAVY_STAGE)}),
    SLOW_NETWORK: (Alert.NETWORK_DEGRADED, {"group": "default_pg", "operation": "all_reduce"}),
}
"""Run -> the one alert it must raise, and its labels beside `run` and `severity`."""


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MonitoredSystem]:
    """All jobs are under way but the one with the slow network."""
    require("prometheus", "prometheus-alertmanager")
    with monitored_system(tmp_path_factory.mktemp("straggler-day"), CONFIG, (NODE,)) as system:
        for run, faults in FAULTS.items():
            system.train(run, faults, node=NODE, ranks=RANKS, flags=LONG_STEPS)
        pipeline = [str(PIPELINE_JOB), *map(str, (STAGES, HEAVY_STAGE, HEAVY_FACTOR))]
        system.start(SLOW_STAGE, pipeline, node=NODE, ranks=STAGES * REPLICAS)
        yield system


@pytest.fixture(scope="module")
def slow_network(system: MonitoredSystem) -> Iterator[MonitoredSystem]:
    """One more job has trained long enough to have a past, and then its network has become slow."""
    with namespace_with_loopback("slow") as inside:
        forked = system.forked_under(*inside.command)
        flags = (*LONG_STEPS, *LARGER_MODEL)
        system.train(SLOW_NETWORK, (), node=NODE, ranks=NETWORK_RANKS, flags=flags, forked=forked)
        past = (
            f'count_over_time(group:rankwatch_collective_transfer_seconds:mean{{run="{SLOW_NETWORK}"}}[1h])'
        )
        least = CONFIG.network_min_baseline_seconds / CONFIG.scrape_interval_seconds
        enough = f"{past} >= {least:g}"
        poll(lambda: query(system.prometheus_url, enough), SECONDS_TO_ALERT, f"past of {SLOW_NETWORK}")
        inside.limit_loopback(SLOW_BITS_PER_SECOND)
        yield system


def test_a_network_that_has_become_slow_raises_its_alert(slow_network: MonitoredSystem) -> None:
    """The kernel limits the rate of the job's loopback interface; nothing about the job changes."""
    alert = _the_alert(slow_network, SLOW_NETWORK)
    assert f"0-{NETWORK_RANKS - 1} (medium, " in alert.annotations["description"]


@pytest.mark.parametrize("run", [UNEQUAL, JITTERY, SLOW_DATA, SLOW_STAGE])
def test_what_slows_a_run_down_raises_its_alert(run: str, system: MonitoredSystem) -> None:
    """With the labels it must have and no others, and with complete annotations."""
    _the_alert(system, run)


def _the_alert(system: MonitoredSystem, run: str) -> DeliveredAlert:
    name, labels = EXPECTED[run]
    alert = system.alert(run, name, **labels)
    of_rule = {"alertname": str(name), "severity": "warning"}
    assert alert.labels == {"run": run, **of_rule, **labels}
    assert complete(alert, CONFIG), alert
    assert f"un {run}" in alert.annotations["description"]
    assert f"var-run={run}" in alert.annotations["dashboard_url"]
    assert float(alert.annotations["slowdown"].split()[-1]) > 1.0
    return alert


def test_no_rank_is_named_and_nothing_else_is_raised(system: MonitoredSystem) -> None:
    """No straggler in any of these runs, no second cause, and not a word of the healthy run beside them."""
    for run in (UNEQUAL, JITTERY, SLOW_DATA, SLOW_STAGE):
        name, labels = EXPECTED[run]
        system.alert(run, name, **labels)
    expected = {(run, str(name)) for run, (name, _) in EXPECTED.items()}
    surplus = [each for each in system.delivered() if (each.labels.get("run", ""), each.name) not in expected]
    assert not surplus
    assert not [each for each in system.delivered() if "rank" in each.labels]
    steps = system.steps(HEALTHY)
    poll(lambda: system.steps(HEALTHY) > steps, SECONDS_TO_ALERT, "further steps of the healthy run")
