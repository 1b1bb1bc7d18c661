"""Slowdowns of real jobs without a rank at fault: each raises its alert, and none names a rank.

A cluster of the game day. The network rule needs half a minute of baseline, so its alert comes last. The demo
tests the straggler itself.
"""

from __future__ import annotations

from typing import NamedTuple

import pytest

from rankwatch_alerts import Alert
from rankwatch_alerts.rules import PRODUCT
from support.e2e.game_day import CONFIG, GameDay
from support.e2e.monitored_system import SECONDS_TO_ALERT, MonitoredSystem, complete, told
from support.paths import SUPPORT
from support.servers.netns import namespace_with_loopback
from support.servers.prometheus import poll, query

pytestmark = [pytest.mark.process, pytest.mark.timeout(600)]

CLUSTER, NODE = "slowdowns", "node-a"
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
    UNEQUAL: (Alert.RUN_SLOW, {"cause": "unequal_batches", "owner": "training"}),
    JITTERY: (Alert.RUN_SLOW, {"cause": "jitter", "owner": "platform"}),
    SLOW_DATA: (Alert.RUN_SLOW, {"cause": "data_loading", "owner": "training"}),
    SLOW_STAGE: (Alert.RUN_SLOW, {"cause": "slow_stage", "owner": "training", "stage": str(HEAVY_STAGE)}),
    SLOW_NETWORK: (
        Alert.RUN_SLOW,
        {"cause": "network", "owner": "platform", "group": "default_pg", "operation": "all_reduce"},
    ),
}
"""By run: its only alert, and the labels beside those that all have."""


class Slowdowns(NamedTuple):
    """The system, and why its network could not be limited."""

    system: MonitoredSystem
    no_limit: str


def play(day: GameDay) -> Slowdowns:
    """The network of one job becomes slow once it has a baseline. Then the other jobs run."""
    system = day.cluster(CLUSTER, (NODE,))
    no_limit, expected = "", dict(EXPECTED)
    try:
        _slow_the_network(day, system)
    except pytest.skip.Exception as reason:
        no_limit = str(reason)
        del expected[SLOW_NETWORK]
    system.stack.enter_context(day.room_for(len(FAULTS) * RANKS + STAGES * REPLICAS))
    for run, faults in FAULTS.items():
        system.train(run, faults, node=NODE, ranks=RANKS, flags=LONG_STEPS)
    pipeline = [str(PIPELINE_JOB), *map(str, (STAGES, HEAVY_STAGE, HEAVY_FACTOR))]
    system.start(SLOW_STAGE, pipeline, node=NODE, ranks=STAGES * REPLICAS)
    system.end_when_seen([(run, *each) for run, each in expected.items()], healthy=HEALTHY)
    return Slowdowns(system, no_limit)


def _slow_the_network(day: GameDay, system: MonitoredSystem) -> None:
    inside = system.stack.enter_context(namespace_with_loopback("slow"))
    forked, flags = system.forked_under(*inside.command), (*LONG_STEPS, *LARGER_MODEL)
    system.stack.enter_context(day.room_for(NETWORK_RANKS))
    system.train(SLOW_NETWORK, (), node=NODE, ranks=NETWORK_RANKS, flags=flags, forked=forked)
    baseline = (
        f'count_over_time(group:rankwatch_collective_transfer_seconds:mean{{run="{SLOW_NETWORK}"}}[1h])'
    )
    enough = f"{baseline} >= {CONFIG.network_min_baseline_seconds / CONFIG.scrape_interval_seconds:g}"
    poll(lambda: query(system.prometheus_url, enough), SECONDS_TO_ALERT, f"baseline of {SLOW_NETWORK}")
    inside.limit_loopback(SLOW_BITS_PER_SECOND)


@pytest.mark.parametrize("run", EXPECTED)
def test_alert(run: str, shown: Slowdowns) -> None:
    """It has its labels and complete annotations; the kernel makes the network slow."""
    if run == SLOW_NETWORK and shown.no_limit:
        pytest.skip(shown.no_limit)
    name, labels = EXPECTED[run]
    alert = shown.system.alert(run, name, **labels)
    of_all = {"alertname": str(name), "severity": "warning", "cluster": CLUSTER, "product": PRODUCT}
    assert alert.labels == {"run": run, **of_all, **labels}
    assert complete(alert, CONFIG), str(alert)
    assert f"un {run}" in alert.annotations["description"]
    assert f"var-run={run}" in alert.annotations["dashboard_url"]
    assert float(alert.annotations["slowdown"].split()[-1]) > 1.0
    if run == SLOW_NETWORK:
        assert f"0-{NETWORK_RANKS - 1} (medium, " in alert.annotations["description"]


def test_no_other_alert(shown: Slowdowns) -> None:
    """No run raises a second alert or names a rank, and the healthy run raises none."""
    expected = {(run, str(name), labels["cause"]) for run, (name, labels) in EXPECTED.items()}
    delivered = shown.system.delivered()
    assert not [each for each in delivered if told(each) not in expected]
    assert not [each for each in delivered if "rank" in each.labels]
