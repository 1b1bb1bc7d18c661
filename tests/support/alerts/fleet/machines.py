"""What agents export of machines: their GPUs, their collectors, and the attempts that they have counted."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

import numpy as np

from rankwatch.conventions.states import FailureKind, Outcome, StartCause
from support.alerts.fleet.day import Attempt, Node, Place, Run, gpu_name
from support.alerts.fleet.nodes import GPU_MODEL, GPU_PRICE, SETTLE_SECONDS
from support.alerts.fleet.page import ABSENT, Flags, Pages, Values

_BORN_SECONDS = 60.0
_COLLECTORS = ("ranks", "gpu", "host", "kernel_log", "rdma", "network", "clock", "cost", "xid", "tcp")
_EVENTS = ("oom_kill", "cgroup_oom_kill", "hung_task", "nvswitch_fatal", "gpu_fallen_off_bus")
_HELD = ("hw_thermal_slowdown", "sw_thermal_slowdown", "hw_power_brake_slowdown", "sw_power_cap")
_STEADY: Mapping[str, float] = {
    "agent_info": 1,
    "collectors": len(_COLLECTORS),
    "host_clock_max_error_seconds": 0.01,
    "host_oom_kills_total": 0,
}
_PORT: Mapping[str, float] = {"rdma_port_up": 1, "rdma_link_downed_total": 0}
_GPU_STEADY: Mapping[str, float] = {
    "gpu_nvlinks_active": 18, "gpu_pcie_generation": 5, "gpu_pcie_generation_max": 5, "gpu_pcie_width": 16,
    "gpu_pcie_width_max": 16, "gpu_row_remap_failed": 0, "gpu_row_remap_pending": 0,
    "gpu_sram_ecc_threshold_exceeded": 0,
}  # fmt: skip


class Machine:
    """The series of a node, whatever runs on it."""

    def __init__(self, pages: Pages, node: Node, attempts: list[tuple[Run, Attempt]]) -> None:
        self.pages, self.node, self.attempts = pages, node, attempts
        self.times = pages.times

    def add(self, name: str, values: Values | float, /, **labels: str) -> None:
        """Add a series of the node."""
        given = np.broadcast_to(np.asarray(values, np.float64), len(self.times))
        self.pages.add(self.node.name, f"rankwatch_{name}", labels, 0, given)

    def write(self) -> None:
        """Add all series of the node."""
        for name, value in _STEADY.items():
            self.add(name, value)
        for collector in _COLLECTORS:
            self.add("collector_state", 1, collector=collector, state="ok")
        self.add("host_time_seconds", self.times)
        self._hosts()
        for index in range(self.node.gpus):
            self._gpu(index)
        self._counts()

    def _hosts(self) -> None:
        lost = self._bad & (self._bad_xid == 79)
        for event in _EVENTS:
            fallen = lost & (event == "gpu_fallen_off_bus")
            self.add("kernel_log_events_total", np.where(fallen, 1.0, 0.0), event=event)
        self.add("tcp_sent_segments_total", 1000 * self.times)
        self.add("tcp_retransmitted_segments_total", self.times / 100)
        self.add("network_info", 1, device="eth0", driver="ena", pci_bus_id="0000:00:03.0")
        self.add("network_up", 1, device="eth0")
        for name in (
            "network_link_flaps_total",
            "network_receive_errors_total",
            "network_transmit_errors_total",
        ):
            self.add(name, 0, device="eth0")
        for name, value in _PORT.items():
            self.add(name, value, device="mlx5_0", port="1")
        price = {"gpu_model": GPU_MODEL, "currency": "EUR", "basis": "list"}
        self.add("gpu_price_per_hour", GPU_PRICE, **price)
        self.add("filesystem_available_bytes", 6e13, path="/data")
        self.add("filesystem_size_bytes", 1e14, path="/data")
        self.add("gpu_driver_state", 1, state="in_use")
        self.add("gpus_expected", self.node.gpus)
        self.add("gpus_visible", np.where(lost, self.node.gpus - 1.0, float(self.node.gpus)))

    @property
    def _bad(self) -> Flags:
        if self.node.bad_gpu is None:
            return np.zeros(len(self.times), dtype=np.bool_)
        start, end, *_ = self.node.bad_gpu
        return (self.times >= start) & (self.times < end)

    @property
    def _bad_xid(self) -> int:
        return 0 if self.node.bad_gpu is None else self.node.bad_gpu[3]

    def _gpu(self, index: int) -> None:
        gpu = {"gpu": gpu_name(self.node.name, index)}
        broken = self.node.bad_gpu is not None and self.node.bad_gpu[2] == index
        bad = self._bad & broken
        lost = bad & (self._bad_xid == 79)
        self.add("gpu_up", np.where(lost, 0.0, 1.0), **gpu)

        def some(values: Values | float) -> Values:
            return np.where(lost, ABSENT, values)

        self.add("gpu_utilization_ratio", some(self._utilisation(Place(self.node.name, index))), **gpu)
        for name, value in _GPU_STEADY.items():
            down = 1.0 if name == "gpu_nvlinks_active" and self._bad_xid == 74 else 0.0
            self.add(name, some(np.where(bad, value - down, value)), **gpu)
        self.add("gpu_recovery_action", some(1), action="none", **gpu)
        for kind in ("corrected", "uncorrected"):
            self.add("gpu_ecc_errors_total", some(0), kind=kind, scope="volatile", **gpu)
        for kind in ("replay", "recovery", "crc"):
            self.add("gpu_nvlink_errors_total", some(0), kind=kind, **gpu)
        for reason in _HELD:
            self.add("gpu_throttle_active", some(0), reason=reason, **gpu)
            self.add("gpu_throttle_seconds_total", some(0), reason=reason, **gpu)
        for severity in ("info", "application", "warning", "critical"):
            critical = severity == "critical"
            self.add("gpu_xid_events_total", np.where(bad & critical, 1.0, 0.0), severity=severity, **gpu)
        if broken:
            self._xid(bad, gpu)

    def _xid(self, bad: Flags, gpu: Mapping[str, str]) -> None:
        """The code that the GPU reports."""
        xid, since = str(self._bad_xid), self.times[int(np.argmax(bad))]
        self.add("gpu_xid_last_timestamp_seconds", np.where(bad, since, ABSENT), xid=xid, **gpu)
        meaning = {"severity": "critical", "action": "reset_gpu", "meaning": f"XID {xid}"}
        self.add("xid_info", np.where(bad, 1.0, ABSENT), xid=xid, **meaning)

    def _utilisation(self, place: Place) -> Values:
        busy = np.zeros(len(self.times))
        for _, attempt in self.attempts:
            if place in attempt.places:
                stop = attempt.end if attempt.hangs is None else attempt.hangs
                busy[(self.times >= attempt.first_step) & (self.times < stop)] = 0.95
                if attempt.hangs is not None:  # NCCL's kernels spin
                    busy[(self.times >= stop) & (self.times < attempt.end)] = 1.0
        return busy

    def _counts(self) -> None:
        """Attempts by class, which the agent keeps across its restarts."""
        classes: dict[str, list[tuple[Run, Attempt]]] = defaultdict(list)
        for run, attempt in self.attempts:
            classes[run.run_class].append((run, attempt))
        for run_class, attempts in classes.items():
            born = min(attempt.start for _, attempt in attempts)
            there = self.times >= born
            counts: dict[tuple[str, str], Values] = defaultdict(lambda: np.zeros(len(self.times)))
            for run, attempt in attempts:
                for key, moment in self._counted(run, attempt):
                    counts[key] += self.times >= max(moment, born + _BORN_SECONDS)
            for (name, label), values in self._all(counts):
                kind = {"starts": "cause", "attempts": "outcome", "failures": "kind"}[name]
                given = np.where(there, values, ABSENT)
                self.add(f"run_{name}_total", given, **{kind: label, "run_class": run_class})

    @staticmethod
    def _all(counts: Mapping[tuple[str, str], Values]) -> Iterator[tuple[tuple[str, str], Values]]:
        for name, values in (("starts", StartCause), ("attempts", Outcome), ("failures", FailureKind)):
            for each in values:
                yield (name, str(each)), counts[name, str(each)]

    def _counted(self, run: Run, attempt: Attempt) -> Iterator[tuple[tuple[str, str], float]]:
        """What this node counts of an attempt, and when."""
        here, end = attempt.ranks_of(self.node.name), attempt.end + attempt.spread + SETTLE_SECONDS
        if self.node.name == attempt.lost_node:
            return
        if 0 in here:
            requeued = run.ending == "preempted"
            again = StartCause.REQUEUE if requeued else StartCause.RESTART
            yield ("starts", StartCause.FIRST if attempt.number == 0 else again), attempt.start
            yield ("attempts", self._outcome(attempt, here)), end
        if attempt.kind is not None and (attempt.root in here or len(here) == run.ranks):
            yield ("failures", attempt.kind), end

    @staticmethod
    def _outcome(attempt: Attempt, here: list[int]) -> str:
        victim = attempt.outcome is Outcome.FAILED and attempt.root not in here and attempt.hangs is None
        return Outcome.TERMINATED if victim else attempt.outcome


def write_machines(pages: Pages) -> None:
    """Add the series of all machines."""
    attempts: dict[str, list[tuple[Run, Attempt]]] = defaultdict(list)
    for run in pages.day.runs:
        for attempt in run.attempts:
            for name in {place.node for place in attempt.places}:
                attempts[name].append((run, attempt))
    for name, node in pages.day.nodes.items():
        Machine(pages, node, sorted(attempts[name], key=lambda each: each[1].start)).write()
        pages.flush()
