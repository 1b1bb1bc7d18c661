"""A run that wastes its GPUs: they are used little, its budget is too small, and in the end they idle.

Its loss is flat, and another run has GPUs without a price: boards show that, and no alert.
A cluster of the game day. The driver is the tests' own, because the machine has no GPU.
"""

from __future__ import annotations

import pytest

from rankwatch_alerts import Alert
from support.e2e.game_day import CONFIG, GameDay
from support.e2e.monitored_system import MonitoredSystem, complete, told
from support.gpu.node import gpu_node
from support.gpu.nvml import FakeDriver, build_library

pytestmark = [pytest.mark.process, pytest.mark.timeout(600)]

CLUSTER, NODE, RUN, RANKS = "wasted", "node-a", "wasteful", 2
CPU_NODE, UNPRICED = "node-b", "unpriced"
PRICES = """
[[price]]
gpu_model = "NVIDIA H100 80GB HBM3"
price_per_hour = 3.0
currency = "EUR"
basis = "list"
[[budget]]
run = "*"
amount = 0.01
currency = "EUR"
basis = "list"
"""
OF_THE_RUN = "os.environ.update(RANKWATCH_RUN_CLASS='production', RANKWATCH_FLOPS_PER_TOKEN='1e11')"
"""256 tokens a second of this model are 1 % of the peak of two H100."""
TRAINS = 'print("ready", flush=True)\nsteps(10**6, forward=0.5)\n'
"""Its loss stays 2. The 100 steps that it is to make cost more than its budget."""


BEFORE: tuple[tuple[Alert, dict[str, str], str], ...] = (
    (Alert.GPUS_WASTED, {"reason": "utilisation"}, "Its GPUs were busy for 34% of the time"),
    (Alert.GPUS_WASTED, {"reason": "mfu"}, "of the peak of its GPUs in bf16"),
    (Alert.OVER_BUDGET, {"currency": "EUR"}, "of its budget in EUR (list) at its last step"),
)
"""Alerts of the run before its GPUs idle, further labels, and a part of the text."""
IDLE: tuple[Alert, dict[str, str]] = (Alert.GPUS_WASTED, {"reason": "idle"})


def play(day: GameDay) -> MonitoredSystem:
    """The run trains at a third of what the GPUs could do, until they do nothing."""
    prices = day.directory / "prices.toml"
    prices.write_text(PRICES)
    priced = ("--price-table", str(prices))
    system = day.cluster(CLUSTER, (CPU_NODE,), ("--collectors", "ranks,cost", *priced))
    directory = system.directory / NODE
    directory.mkdir()
    driver = FakeDriver(directory, build_library(directory))
    flags = ("--cluster", CLUSTER, "--node", NODE, *priced)
    flags += ("--step-window-seconds", f"{CONFIG.step_window_seconds:g}")
    node = gpu_node(directory, driver, *flags, interval=1.0, collectors="ranks,cost,gpu")
    day.watch(system, system.stack.enter_context(node).agent)
    system.rank(CPU_NODE, TRAINS, run=UNPRICED)
    _use(driver, 34)
    for number, gpu in zip(range(RANKS), driver.node["gpus"], strict=False):
        here = {"number": number, "world": RANKS, "gpu": gpu["uuid"]}
        system.rank(NODE, TRAINS, run=RUN, before=OF_THE_RUN, **here)
    for name, labels, _ in BEFORE:
        system.alert(RUN, name, **labels)
    _use(driver, 1)
    system.end_when_seen([(RUN, *IDLE)])
    return system


def _use(driver: FakeDriver, percent: int) -> None:
    """All GPUs of the node are busy for so much of the time."""
    for index in range(len(driver.node["gpus"])):
        driver.set(index, "utilization.gpu", percent)


@pytest.mark.parametrize(("name", "labels", "text"), BEFORE, ids=["utilisation", "mfu", "budget"])
def test_waste(name: Alert, labels: dict[str, str], text: str, shown: MonitoredSystem) -> None:
    """Each measure has a ticket of its own."""
    alert = shown.alert(RUN, name, **labels)
    assert complete(alert, CONFIG), str(alert)
    assert text in alert.annotations["description"]


def test_idle(shown: MonitoredSystem) -> None:
    """GPUs that do nothing have another reason; a flat loss, and GPUs without a price, have no alert."""
    name, labels = IDLE
    alert = shown.alert(RUN, name, **labels)
    assert complete(alert, CONFIG), str(alert)
    assert f"its {RANKS} GPUs by 1%" in alert.annotations["description"]
    expected = {
        (RUN, str(name), more.get("reason", "")) for name, more in (*(each[:2] for each in BEFORE), IDLE)
    }
    assert {told(each) for each in shown.delivered()} == expected
