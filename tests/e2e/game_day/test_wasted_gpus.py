"""A run that wastes its GPUs: they are used little, its loss is flat, its budget is too small, and in the end
they idle. Another one runs where the table has no price.

A cluster of the game day. The driver is the tests' own, because the machine has no GPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from rankwatch_alerts import Alert
from support.e2e.game_day import CONFIG, GameDay
from support.e2e.monitored_system import SECONDS_TO_ALERT, MonitoredSystem, complete
from support.gpu.node import gpu_node
from support.gpu.nvml import FakeDriver, build_library
from support.servers.prometheus import get_json, poll

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
    (Alert.UTILISATION_LOW, {"reason": "gpu"}, "Its GPUs were busy for 34% of the time"),
    (Alert.UTILISATION_LOW, {"reason": "mfu"}, "of the peak of its GPUs in bf16"),
    (Alert.LOSS_PLATEAU, {}, "has become lower by at most 0.0000 of itself"),
    (Alert.FORECAST_OVER_BUDGET, {"currency": "EUR"}, "of its budget in EUR (list) at its last step"),
)
"""Alerts of the run before its GPUs idle, further labels, and a part of the text."""


class Wasteful(NamedTuple):
    """The system, and the alert on the price that Prometheus raised and nobody was notified of."""

    system: MonitoredSystem
    no_price: dict[str, Any]


def play(day: GameDay) -> Wasteful:
    """The run trains at a third of what the GPUs could do, until they do nothing."""
    prices = day.directory / "prices.toml"
    prices.write_text(PRICES)
    priced = ("--price-table", str(prices))
    system = day.cluster(CLUSTER, (CPU_NODE,), ("--collectors", "ranks,cost", *priced))
    directory = system.directory / NODE
    directory.mkdir()
    driver = FakeDriver(directory, build_library(directory))
    flags = ("--cluster", CLUSTER, "--node", NODE, "--plateau-steps", "16", *priced)
    flags += ("--step-window-seconds", f"{CONFIG.step_window_seconds:g}")
    node = gpu_node(directory, driver, *flags, interval=1.0, collectors="ranks,cost,gpu")
    day.watch(system, system.stack.enter_context(node).agent)
    system.rank(CPU_NODE, TRAINS, run=UNPRICED)
    _use(driver, 34)
    for number, gpu in zip(range(RANKS), driver.node["gpus"], strict=False):
        here = {"number": number, "world": RANKS, "gpu": gpu["uuid"]}
        system.rank(NODE, TRAINS, run=RUN, before=OF_THE_RUN, **here)
    no_price = poll(lambda: _no_price(system), SECONDS_TO_ALERT, f"alert {Alert.PRICE_UNKNOWN}")
    for name, labels, _ in BEFORE:
        system.alert(RUN, name, **labels)
    _use(driver, 1)
    system.end_when_seen([(RUN, Alert.GPUS_IDLE, {})])
    return Wasteful(system, no_price)


def _use(driver: FakeDriver, percent: int) -> None:
    """All GPUs of the node are busy for so much of the time."""
    for index in range(len(driver.node["gpus"])):
        driver.set(index, "utilization.gpu", percent)


def _no_price(system: MonitoredSystem) -> dict[str, Any] | None:
    wanted = {"alertname": str(Alert.PRICE_UNKNOWN), "run": UNPRICED, "gpu_model": "cpu", "severity": "info"}
    alerts = get_json(f"{system.prometheus_url}/api/v1/alerts")["data"]["alerts"]
    firing = (each for each in alerts if each["state"] == "firing")
    return next((each for each in firing if wanted.items() <= each["labels"].items()), None)


@pytest.fixture(scope="module")
def wasteful(game_day: GameDay) -> Iterator[Wasteful]:
    with game_day.shown(play) as wasteful:
        yield wasteful


@pytest.mark.parametrize(("name", "labels", "text"), BEFORE, ids=["gpu", "mfu", "plateau", "budget"])
def test_waste(name: Alert, labels: dict[str, str], text: str, wasteful: Wasteful) -> None:
    """Each measure has a ticket of its own."""
    alert = wasteful.system.alert(RUN, name, **labels)
    assert complete(alert, CONFIG), str(alert)
    assert text in alert.annotations["description"]


def test_no_price(wasteful: Wasteful) -> None:
    """It is context: it fires, and nobody is notified."""
    text = wasteful.no_price["annotations"]["description"]
    assert f"no valid price for cpu, which run {UNPRICED} uses" in text


def test_idle(wasteful: Wasteful) -> None:
    """GPUs that do nothing have another alert."""
    alert = wasteful.system.alert(RUN, Alert.GPUS_IDLE)
    assert complete(alert, CONFIG), str(alert)
    assert f"its {RANKS} GPUs by 1%" in alert.annotations["description"]
    expected = {*(name for name, *_ in BEFORE), Alert.GPUS_IDLE}
    assert {each.name for each in wasteful.system.delivered()} == expected
