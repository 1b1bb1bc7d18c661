"""Hardware breaks below real agents, and a real Prometheus raises the alert of each fault, with its rank.

A cluster of the game day. All faults happen at once, on one node each: on `n` a GPU, a port or an interface
for each fault, on `hung` a driver that does not return, on `short` a GPU that never answered.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest

from rankwatch_alerts import Alert
from rankwatch_alerts.rules import HARDWARE_ALERTS
from support.e2e.game_day import GameDay
from support.e2e.monitored_system import MonitoredSystem
from support.gpu.node import GpuNode, gpu_node
from support.gpu.nvml import FakeDriver, build_library
from support.gpu.nvml_node import hopper_node, running
from support.servers.prometheus import get_json, poll, query
from support.sources.node_tree import add_interface, add_pci, write

pytestmark = [pytest.mark.process, pytest.mark.timeout(600)]

SECONDS = 180.0
CLUSTER = "hardware"
COLLECTORS = "ranks,host,network,rdma,gpu,gpu_driver,xid,kernel_log"
RUN = "job"
IDLE_GPU = 7
"""The GPU of node n that no rank works on; the rank on GPU i is rank i."""
_AS_RANK = 'print("ready", flush=True)\nsteps(10**6, forward=0.5)\n'

PAGE, TICKET = "critical", "warning"


class Expected(NamedTuple):
    """An alert that must fire. Its labels name the part, and its text who uses it."""

    alert: Alert
    reason: str
    severity: str
    gpu: int | None = None
    """Index of the GPU on node n; that of its rank, too, unless it is idle."""
    more: Mapping[str, str] = MappingProxyType({})
    node: str = "n"

    @property
    def name(self) -> str:
        """For the list of tests."""
        return "-".join((self.alert, self.reason, self.node, *self.more.values()))

    @property
    def user(self) -> str:
        """What the text says of who uses the part; empty where nobody does."""
        if self.node == "short" or self.gpu == IDLE_GPU:
            return ""
        return RUN if self.gpu is None else f"rank {self.gpu} of run {RUN}"


EXPECTED = (
    Expected(Alert.GPU_FAULT, "lost", PAGE, 0),
    Expected(Alert.GPU_FAULT, "xid", PAGE, 1, {"xid": "62"}),
    Expected(Alert.GPU_FAULT, "ecc_uncorrected", PAGE, 2),
    Expected(Alert.GPU_FAULT, "needs_reset", PAGE, 3),
    Expected(Alert.GPU_DEGRADED, "power_brake", TICKET, 4),
    Expected(Alert.GPU_DEGRADED, "throttled", TICKET, 5),
    Expected(Alert.GPU_DEGRADED, "pcie", TICKET, 5),
    Expected(Alert.GPU_FAULT, "nvlink_down", PAGE, 6),
    Expected(Alert.GPU_DEGRADED, "nvlink_errors", TICKET, 6),
    Expected(Alert.GPU_FAULT, "needs_reset", TICKET, IDLE_GPU),
    Expected(Alert.GPU_DEGRADED, "row_remap_failed", TICKET, IDLE_GPU),
    Expected(Alert.GPU_DEGRADED, "sram_ecc_threshold", TICKET, IDLE_GPU),
    Expected(Alert.GPU_DEGRADED, "row_remap_exhausted", TICKET, IDLE_GPU),
    Expected(Alert.GPU_FAULT, "nvlink_down", PAGE),
    Expected(Alert.LINK_DOWN, "rdma", TICKET, None, {"device": "mlx5_0", "port": "1"}),
    Expected(Alert.LINK_DOWN, "rdma", TICKET, None, {"device": "mlx5_4", "port": "1"}),
    Expected(Alert.LINK_DOWN, "flapping", TICKET, None, {"device": "mlx5_1", "port": "1"}),
    Expected(Alert.LINK_ERRORS, "rdma", TICKET, None, {"device": "mlx5_2", "port": "1"}),
    Expected(Alert.LINK_ERRORS, "marked", TICKET, None, {"device": "mlx5_3"}),
    Expected(Alert.LINK_ERRORS, "resent", TICKET, None, {"device": "mlx5_5"}),
    Expected(Alert.LINK_DOWN, "nic", TICKET, None, {"device": "eth0"}),
    Expected(Alert.LINK_ERRORS, "nic", TICKET, None, {"device": "eth1"}),
    Expected(Alert.LINK_DOWN, "flapping", TICKET, None, {"device": "eth1"}),
    Expected(Alert.HOST_FAULT, "oom_kill", TICKET),
    Expected(Alert.GPU_FAULT, "driver_unresponsive", PAGE, node="hung"),
    Expected(Alert.GPU_FAULT, "missing", TICKET, node="short"),
)
CONSEQUENCES = tuple(Expected(Alert.GPU_FAULT, "missing", TICKET, node=each) for each in ("n", "hung"))
"""Raised by the lost GPU and the hung driver too, and held back by Alertmanager."""


class Seen(NamedTuple):
    """The alerts that fired, and the UUIDs of the GPUs of node n."""

    alerts: list[dict[str, Any]]
    uuids: list[str]

    def part(self, expected: Expected) -> dict[str, str]:
        """Labels by which the alert is known: reason and part, neither run nor rank."""
        gpu = {} if expected.gpu is None else {"gpu": self.uuids[expected.gpu]}
        named = {"alertname": str(expected.alert), "reason": expected.reason, "node": expected.node}
        return {**named, **gpu, **expected.more}

    def find(self, expected: Expected) -> dict[str, Any] | None:
        """The alert as Prometheus shows it."""
        wanted = {**self.part(expected), "severity": expected.severity}
        return next((each for each in self.alerts if identity(each) == wanted), None)


def identity(alert: dict[str, Any]) -> dict[str, str]:
    """Labels of an alert but those that all have."""
    of_all = ("cluster", "product", "owner")
    return {name: value for name, value in alert["labels"].items() if name not in of_all}


def play(day: GameDay) -> Seen:
    """Healthy first, then everything breaks; ends when each alert has fired, or after a while."""
    system = day.cluster(CLUSTER)
    library = build_library(system.directory)
    nodes = {
        name: _node(system, library, name, gpus) for name, gpus in {"n": 8, "hung": 8, "short": 7}.items()
    }
    day.watch(system, *(each.agent for each in nodes.values()))
    _add_interface(nodes["n"])
    _start_ranks(system, nodes)
    url = system.prometheus_url
    poll(lambda: _attributed(url) == IDLE_GPU, SECONDS, "a rank for each GPU but one")
    uuids = [gpu["uuid"] for gpu in nodes["n"].driver.node["gpus"]]
    assert not [each for each in _firing(url) if each["labels"].get("node") in ("n", "hung")]
    _break(nodes["n"])
    nodes["hung"].driver.hang("nvmlDeviceGetPowerUsage")
    found = Seen([], uuids)

    def all_seen() -> bool:
        known = [each["labels"] for each in found.alerts]
        found.alerts.extend(each for each in _firing(url) if each["labels"] not in known)
        return all(found.find(each) for each in EXPECTED)

    with suppress(pytest.fail.Exception):  # the test of each alert tells which is missing
        poll(all_seen, SECONDS, "alert of each fault")
    system.end()
    return found


def _node(system: MonitoredSystem, library: Path, name: str, gpus: int) -> GpuNode:
    """An agent on a tree of 8 GPUs of which the driver shows some."""
    directory = system.directory / name
    directory.mkdir()
    driver = FakeDriver(directory, library, hopper_node(gpus))
    driver.update(running)
    flags = ("--node", name, "--cluster", CLUSTER)
    node = gpu_node(directory, driver, *flags, interval=0.5, collectors=COLLECTORS)
    return system.stack.enter_context(node)


def _start_ranks(system: MonitoredSystem, nodes: dict[str, GpuNode]) -> None:
    """One rank for each GPU of n but the last, and one on the node whose driver will hang."""
    places = [("n", gpu["uuid"]) for gpu in nodes["n"].driver.node["gpus"][:IDLE_GPU]] + [("hung", "")]
    for number, (name, gpu) in enumerate(places):
        system.rank(name, _AS_RANK, run=RUN, number=number, world=len(places), gpu=gpu)


def _attributed(url: str) -> int:
    """GPUs of node n of which Prometheus knows the rank."""
    return len(query(url, 'gpu:rankwatch_rank_start_timestamp_seconds:latest{node="n"}'))


def _firing(url: str) -> list[dict[str, Any]]:
    """Firing alerts on hardware of this cluster."""
    found = get_json(f"{url}/api/v1/alerts")["data"]["alerts"]
    return [
        each
        for each in found
        if each["state"] == "firing"
        and each["labels"].get("cluster") == CLUSTER
        and each["labels"]["alertname"] in set(map(str, HARDWARE_ALERTS))
    ]


def _break(node: GpuNode) -> None:
    """Every fault of node n at once."""
    _break_gpus(node.driver)
    _break_network(node)
    vmstat = node.tree.procfs / "vmstat"
    vmstat.write_text(vmstat.read_text().replace("oom_kill 3", "oom_kill 4"))
    with node.kernel_log.open("a") as log:
        log.write("4,2,2000000,-;nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 12028, Fatal, Link 33 egress\n")

    def counted() -> bool:
        """Events from before the worker listens are lost, so they are repeated until they are counted."""
        node.driver.xid(1, 62)
        node.driver.xid(2, 31)
        return sum("rankwatch_gpu_xid_errors_total{" in each for each in node.metrics()) >= 2

    poll(counted, SECONDS, "both XID errors in the metrics")


def _break_gpus(driver: FakeDriver) -> None:
    driver.lose(0)
    driver.set(2, "ecc.uncorrected.volatile", 2000)
    driver.set(3, "fields.230", 1)  # NVML_GPU_RECOVERY_ACTION_GPU_RESET
    half_the_time = {"value": 10**12, "rate": 5e8}  # ns
    driver.set(4, "fields.271", half_the_time)
    driver.set(5, "fields.270", half_the_time)
    driver.set(5, "pcie.width", 8)
    driver.set(6, "nvlinks.17.active", 0)
    driver.set(6, "fields.162.0", 1000)
    driver.set(IDLE_GPU, "fields.144", 1)
    driver.set(IDLE_GPU, "fields.145", 1)
    driver.set(IDLE_GPU, "sram.exceeded", 1)
    driver.set(IDLE_GPU, "remap_banks.none", 1)


def _break_network(node: GpuNode) -> None:
    rdma, interfaces = (node.tree.sysfs / "class" / each for each in ("infiniband", "net"))
    write(rdma / "mlx5_0/ports/1", {"state": "1: DOWN", "phys_state": "2: Polling"})
    write(rdma / "mlx5_1/ports/1/counters", {"link_downed": 2100})
    write(rdma / "mlx5_2/ports/1/counters", {"symbol_error": 100_000})
    write(rdma / "mlx5_3/ports/1/counters", {"port_rcv_packets": 10**7})
    write(rdma / "mlx5_3/ports/1/hw_counters", {"np_ecn_marked_roce_packets": 10**6})
    write(rdma / "mlx5_5/ports/1/hw_counters", {"roce_adp_retrans": 100_000})
    (rdma / "mlx5_4").unlink()
    write(interfaces / "eth0", {"operstate": "down"})
    write(interfaces / "eth1", {"carrier_down_count": 9})
    _write_errors(node, 100_000)


def _add_interface(node: GpuNode) -> None:
    """eth1, beside eth0 of the tree."""
    device = add_pci(node.tree.sysfs, "pci0000:00/0000:03:00.0", "0x020000", "0x14e4", "bnxt_en", 0)
    add_interface(node.tree.sysfs, device, "eth1")
    _write_errors(node, 0)


def _write_errors(node: GpuNode, errors: int) -> None:
    path = node.tree.procfs / "net/dev"
    others = [line for line in path.read_text().splitlines() if "eth1" not in line]
    counters = [1000, 10, errors, 0, 0, 0, 0, 0, 1000, 10, 0, 0, 0, 0, 0, 0]
    path.write_text("\n".join([*others, "  eth1: " + " ".join(map(str, counters))]) + "\n")


@pytest.mark.parametrize("expected", EXPECTED, ids=[each.name for each in EXPECTED])
def test_alert(expected: Expected, shown: Seen) -> None:
    """It fires as a page or a ticket, and its text names node, part, run and rank."""
    alert = shown.find(expected)
    assert alert, [each["labels"] for each in shown.alerts if each["labels"]["alertname"] == expected.alert]
    text = alert["annotations"]["description"]
    assert not any(each in text for each in ("no value", "  ", "not known", "unknown")), text
    labels = alert["labels"]
    named = [labels[each] for each in ("node", "gpu", "device", "xid") if each in labels]
    assert all(each in text for each in (*named, expected.user)), text
    assert ("no run is hit" in alert["annotations"]["cost"]) == (not expected.user)
    assert alert["annotations"]["runbook_url"].endswith(f"/{expected.alert}")


def test_no_other_alert(shown: Seen) -> None:
    """No fault is taken for another one, nor an error of an application for one of its GPU."""
    expected = [{**shown.part(each), "severity": each.severity} for each in (*EXPECTED, *CONSEQUENCES)]
    assert not [each for each in map(identity, shown.alerts) if each not in expected]
