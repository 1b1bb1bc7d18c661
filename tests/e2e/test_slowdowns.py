"""Slowdowns of real jobs without a rank at fault: each raises its alert, and none names a rank.

All jobs run at once on one monitored system. The network rule needs half a minute of baseline, so its alert
comes last and determines how long the file takes. The demo tests the straggler itself.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rankwatch_alerts import Alert, RuleConfig
from rankwatch_cli.demo.receiver import Alert as DeliveredAlert
from support.e2e.monitored_system import SECONDS_TO_ALERT, MonitoredSystem, complete, monitored_system
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
"""Faults of the trainer's jobs, by run."""
RANKS = 4
"""Ranks of each job. With three, one rank would soon have more than half of all lateness by chance."""
LONG_STEPS = (
    *("--layer-forward-seconds", "0.08", "--layer-backward-seconds", "0.16"),
    *("--checkpoint-every", "1000000"),
)
"""Steps of about half a second, of which a busy machine delays a small part. No checkpoints."""
PIPELINE_JOB = SUPPORT / "jobs" / "pipeline_job.py"
STAGES, HEAVY_STAGE, REPLICAS = 3, 1, 2
HEAVY_FACTOR = 1.6
NETWORK_RANKS = 3
LARGER_MODEL = ("--width", "64")
"""Its gradients have some 150 kB."""
SLOW_BITS_PER_SECOND = 20_000_000
"""These gradients take a quarter of a second at this rate."""
EXPECTED: dict[str, tuple[Alert, dict[str, str]]] = {
    UNEQUAL: (Alert.UNEQUAL_BATCHES, {}),
    JITTERY: (Alert.JITTER, {}),
    SLOW_DATA: (Alert.SLOW_DATA_LOADING, {}),
    SLOW_STAGE: (Alert.SLOW_STAGE, {"stage": str(HEAVY_STAGE)}),
    SLOW_NETWORK: (Alert.NETWORK_DEGRADED, {"group": "default_pg", "operation": "all_reduce"}),
}
"""By run: its only alert, and the labels beside `run` and `severity`."""


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MonitoredSystem]:
    """All jobs run but the one with the slow network."""
    require("prometheus", "prometheus-alertmanager")
    with monitored_system(tmp_path_factory.mktemp("slowdowns"), CONFIG, (NODE,)) as system:
        for run, faults in FAULTS.items():
            system.train(run, faults, node=NODE, ranks=RANKS, flags=LONG_STEPS)
        pipeline = [str(PIPELINE_JOB), *map(str, (STAGES, HEAVY_STAGE, HEAVY_FACTOR))]
        system.start(SLOW_STAGE, pipeline, node=NODE, ranks=STAGES * REPLICAS)
        yield system


@pytest.fixture(scope="module")
def slow_network(system: MonitoredSystem) -> Iterator[MonitoredSystem]:
    """One more job has trained long enough for a baseline before its network becomes slow."""
    with namespace_with_loopback("slow") as inside:
        forked = system.forked_under(*inside.command)
        flags = (*LONG_STEPS, *LARGER_MODEL)
        system.train(SLOW_NETWORK, (), node=NODE, ranks=NETWORK_RANKS, flags=flags, forked=forked)
        baseline = (
            f'count_over_time(group:rankwatch_collective_transfer_seconds:mean{{run="{SLOW_NETWORK}"}}[1h])'
        )
        least = CONFIG.network_min_baseline_seconds / CONFIG.scrape_interval_seconds
        enough = f"{baseline} >= {least:g}"
        poll(lambda: query(system.prometheus_url, enough), SECONDS_TO_ALERT, f"baseline of {SLOW_NETWORK}")
        inside.limit_loopback(SLOW_BITS_PER_SECOND)
        yield system


def test_slow_network(slow_network: MonitoredSystem) -> None:
    """A network that becomes slow raises its alert: the kernel limits the rate of the loopback interface."""
    alert = _the_alert(slow_network, SLOW_NETWORK)
    assert f"0-{NETWORK_RANKS - 1} (medium, " in alert.annotations["description"]


@pytest.mark.parametrize("run", [UNEQUAL, JITTERY, SLOW_DATA, SLOW_STAGE])
def test_alert(run: str, system: MonitoredSystem) -> None:
    """The alert has its labels and no others, and complete annotations."""
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


def test_no_other_alert(system: MonitoredSystem) -> None:
    """No run raises a second alert or names a rank, and the healthy run raises none."""
    for run in (UNEQUAL, JITTERY, SLOW_DATA, SLOW_STAGE):
        name, labels = EXPECTED[run]
        system.alert(run, name, **labels)
    expected = {(run, str(name)) for run, (name, _) in EXPECTED.items()}
    others = [each for each in system.delivered() if each.name != Alert.STEP_TIME_REGRESSED]
    surplus = [each for each in others if (each.labels.get("run", ""), each.name) not in expected]
    assert not surplus, "and all slow down, indeed, when further jobs start on the same cores"
    assert not [each for each in system.delivered() if "rank" in each.labels]
    steps = system.steps(HEALTHY)
    poll(lambda: system.steps(HEALTHY) > steps, SECONDS_TO_ALERT, "further steps of the healthy run")
