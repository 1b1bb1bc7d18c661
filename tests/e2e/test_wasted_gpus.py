"""A run that wastes its GPUs: they are used little, its loss is flat, its budget is too small, and in the end
they idle. Another one runs where the table has no price.

The agents are real, and so are Prometheus and Alertmanager. The driver is the tests' own, because the machine
has no GPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rankwatch_alerts import Alert, RuleConfig
from support.e2e.monitored_system import SECONDS_TO_ALERT, MonitoredSystem, complete, monitored_system
from support.gpu.node import gpu_node
from support.gpu.nvml import FakeDriver, nvml_library
from support.servers.prometheus import get_json, poll, require
from support.training.ranks import rank

__all__ = ["nvml_library"]
pytestmark = pytest.mark.e2e

NODE, RUN, RANKS = "node-a", "wasteful", 2
CPU_NODE, UNPRICED = "node-b", "unpriced"
CONFIG = replace(RuleConfig.for_demo(), gpu_idle_for_seconds=5.0, loss_for_seconds=5.0, cost_for_seconds=5.0)
FLAGS = (
    *("--node", NODE, "--plateau-steps", "16"),
    *("--step-window-seconds", f"{CONFIG.step_window_seconds:g}"),
)
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


class Wasteful:
    """The system with its run, and the driver of the node."""

    def __init__(self, system: MonitoredSystem, driver: FakeDriver) -> None:
        self.system, self._driver = system, driver

    def use(self, percent: int) -> None:
        """All GPUs of the node are busy for so much of the time."""
        for index in range(len(self._driver.node["gpus"])):
            self._driver.set(index, "utilization.gpu", percent)


@pytest.fixture(scope="module")
def wasteful(tmp_path_factory: pytest.TempPathFactory, nvml_library: Path) -> Iterator[Wasteful]:
    """The run trains at a third of what the GPUs could do."""
    require("prometheus", "prometheus-alertmanager")
    directory = tmp_path_factory.mktemp("wasted")
    (directory / NODE).mkdir()
    (directory / "prices.toml").write_text(PRICES)
    flags = (*FLAGS, "--price-table", str(directory / "prices.toml"))
    driver = FakeDriver(directory / NODE, nvml_library)
    with ExitStack() as stack:
        node = gpu_node(directory / NODE, driver, *flags, interval=1.0, collectors="ranks,cost,gpu")
        agent = stack.enter_context(node).agent
        priced = ("--collectors", "ranks,cost", "--price-table", str(directory / "prices.toml"))
        system = stack.enter_context(
            monitored_system(directory, CONFIG, (CPU_NODE,), agent_flags=priced, more_agents=(agent,))
        )
        stack.enter_context(rank(directory / CPU_NODE / "blackboxes", TRAINS, run=UNPRICED))
        found = Wasteful(system, driver)
        found.use(34)
        for number, gpu in zip(range(RANKS), driver.node["gpus"], strict=False):
            stack.enter_context(
                rank(
                    directory / NODE / "blackboxes",
                    TRAINS,
                    run=RUN,
                    number=number,
                    world=RANKS,
                    gpu=gpu["uuid"],
                    before=OF_THE_RUN,
                )
            )
        yield found


@pytest.mark.parametrize(
    ("name", "labels", "text"),
    [
        (Alert.UTILISATION_LOW, {"reason": "gpu"}, "Its GPUs were busy for 34% of the time"),
        (Alert.UTILISATION_LOW, {"reason": "mfu"}, "of the peak of its GPUs in bf16"),
        (Alert.LOSS_PLATEAU, {}, "has become lower by at most 0.0000 of itself"),
        (Alert.FORECAST_OVER_BUDGET, {"currency": "EUR"}, "of its budget in EUR (list) at its last step"),
    ],
    ids=["gpu", "mfu", "plateau", "budget"],
)
def test_waste(name: Alert, labels: dict[str, str], text: str, wasteful: Wasteful) -> None:
    """Each measure has a ticket of its own."""
    alert = wasteful.system.alert(RUN, name, **labels)
    assert complete(alert, CONFIG), alert
    assert text in alert.annotations["description"]


def test_no_price(wasteful: Wasteful) -> None:
    """It is context: it fires, and nobody is notified."""
    wanted = {"alertname": str(Alert.PRICE_UNKNOWN), "run": UNPRICED, "gpu_model": "cpu", "severity": "info"}

    def find() -> dict[str, Any] | None:
        alerts = get_json(f"{wasteful.system.prometheus_url}/api/v1/alerts")["data"]["alerts"]
        firing = (each for each in alerts if each["state"] == "firing")
        return next((each for each in firing if wanted.items() <= each["labels"].items()), None)

    alert = poll(find, SECONDS_TO_ALERT, f"alert {wanted}")
    assert f"no valid price for cpu, which run {UNPRICED} uses" in alert["annotations"]["description"]


def test_idle(wasteful: Wasteful) -> None:
    """GPUs that do nothing have another alert."""
    before = {Alert.UTILISATION_LOW, Alert.LOSS_PLATEAU, Alert.FORECAST_OVER_BUDGET}
    for name in before:
        wasteful.system.alert(RUN, name)
    wasteful.use(1)
    alert = wasteful.system.alert(RUN, Alert.GPUS_IDLE)
    assert complete(alert, CONFIG), alert
    assert f"its {RANKS} GPUs by 1%" in alert.annotations["description"]
    assert {each.name for each in wasteful.system.delivered()} == before | {Alert.GPUS_IDLE}
