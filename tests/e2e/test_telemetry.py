"""Game day of the telemetry itself: rules that Prometheus cannot evaluate, records that an agent misses, a
kernel log that it cannot read, and a node whose clock is ahead.

Each raises its alert on a real system, and no other. The system is of this file alone: in it, rules of all
clusters fail.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace

import pytest

from rankwatch_alerts import Alert, RuleConfig
from support.agent.process import agent_process
from support.e2e.monitored_system import SECONDS_TO_ALERT, MonitoredSystem, complete, monitored_system, told
from support.servers.prometheus import get_json, poll, require
from support.training.ranks import rank

pytestmark = pytest.mark.process

NODE, FLOODED_NODE, EARLY_NODE = "node-a", "node-b", "node-c"
CONFIG = replace(RuleConfig.for_demo(), clock_error_seconds=2.0, collector_for_seconds=8.0)
AHEAD = "import time; real = time.time; time.time = lambda: real() + 5.0\n"
"""As sitecustomize, the first code that the agent of this node runs."""
PRICE = """
[[price]]
gpu_model = "cpu"
price_per_hour = 3.0
currency = "{currency}"
basis = "list"
"""
TRAINS = 'print("ready", flush=True)\nsteps(10**6, forward=0.2)\n'
FLOODS = 'print("ready", flush=True)\nwhile True:\n    steps(8000)\n    time.sleep(0.5)\n'
"""Each burst writes twice as many records as a black box holds, between two looks of the agent."""
EXPECTED: tuple[tuple[str, Alert, dict[str, str], str], ...] = (
    ("", Alert.TELEMETRY_ABSENT, {"reason": "rules_failing", "severity": "critical"}, "rankwatch-goodput"),
    (
        "flooded",
        Alert.TELEMETRY_INCOMPLETE,
        {"reason": "records_missed", "node": FLOODED_NODE},
        "of the records of run flooded",
    ),
    ("", Alert.HOST_FAULT, {"reason": "clock_differs", "node": EARLY_NODE}, f"node {EARLY_NODE} differs by "),
    (
        "",
        Alert.TELEMETRY_INCOMPLETE,
        {"reason": "collector", "node": EARLY_NODE, "collector": "kernel_log"},
        "Collector kernel_log of ",
    ),
)
"""Run, the alert it must raise, labels this must have beside `run`, and a part of its text."""


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MonitoredSystem]:
    """Two agents of one node state prices in two currencies, as when a table is replaced by another one: the
    rules of cost would have to add them."""
    require("prometheus", "prometheus-alertmanager")
    directory = tmp_path_factory.mktemp("telemetry")
    for currency in ("EUR", "USD"):
        (directory / f"{currency}.toml").write_text(PRICE.format(currency=currency))
    second = directory / "second"
    second.mkdir()
    priced = ("--collectors", "ranks,cost,clock", "--price-table")
    window = ("--step-window-seconds", f"{CONFIG.step_window_seconds:g}")
    with ExitStack() as stack:
        flags = ("--node", NODE, *window, *priced, str(directory / "USD.toml"))
        other = stack.enter_context(agent_process(second, *flags))
        early_directory = directory / EARLY_NODE
        early_directory.mkdir()
        (early_directory / "sitecustomize.py").write_text(AHEAD)
        flags = ("--node", EARLY_NODE, "--kernel-log", str(early_directory))
        early = agent_process(early_directory, *flags, environ={"PYTHONPATH": str(early_directory)})
        more = (other, stack.enter_context(early))
        flags = (*priced, str(directory / "EUR.toml"))
        system = stack.enter_context(
            monitored_system(directory, CONFIG, (NODE, FLOODED_NODE), agent_flags=flags, more_agents=more)
        )
        for boxes, run, code in (
            (directory / NODE, "priced", TRAINS),
            (second, "priced-otherwise", TRAINS),
            (directory / FLOODED_NODE, "flooded", FLOODS),
        ):
            stack.enter_context(rank(boxes / "blackboxes", code, run=run))
        yield system


@pytest.mark.parametrize(
    ("run", "name", "labels", "text"), EXPECTED, ids=[labels["reason"] for _, _, labels, _ in EXPECTED]
)
def test_alert(run: str, name: Alert, labels: dict[str, str], text: str, system: MonitoredSystem) -> None:
    """Alertmanager delivers the alert, with complete annotations."""
    alert = system.alert(run, name, **labels)
    assert complete(alert, CONFIG), str(alert)
    assert text in alert.annotations["description"]


def test_watchdog(system: MonitoredSystem) -> None:
    """It always reaches Alertmanager, whose route for it goes to a dead-man's switch alone."""
    (active,) = get_json(f"{system.prometheus_url}/api/v1/alertmanagers")["data"]["activeAlertmanagers"]
    url = active["url"]
    poll(
        lambda: Alert.WATCHDOG in {each["labels"]["alertname"] for each in get_json(url)},
        SECONDS_TO_ALERT,
        "the alert that always fires",
    )


def test_no_other_alert(system: MonitoredSystem) -> None:
    """Rules that fail hold up no others."""
    for run, name, labels, _ in EXPECTED:
        system.alert(run, name, **labels)
    expected = {(run, str(name), labels["reason"]) for run, name, labels, _ in EXPECTED}
    no_time_daemon = ("", str(Alert.HOST_FAULT), "clock")  # on many a machine of tests
    assert {told(each) for each in system.delivered()} - {no_time_daemon} == expected
