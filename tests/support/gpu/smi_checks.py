"""Which NVML series nvidia-smi tells too, under which names, and which it does not tell."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from rankwatch_agent.sources.gpu.inventory import normalise_bus_id
from support.gpu.smi_output import REASONS, is_absent

Key = tuple[str, ...]
"""A series: metric without its common beginning, labels other than the GPU."""

MIB = 1024.0**2
MEMORY_SLACK = 64 * MIB


class Check(NamedTuple):
    """A number that both tell."""

    key: Key
    sources: tuple[str, ...]
    """Other names of the same thing; drivers differ in which of them they have."""
    slack: float = 0.0
    """How far the series may lie outside of what nvidia-smi said before and after, in base units."""
    since: int = 0
    """Driver from which on the agent asks for it."""


class Words(NamedTuple):
    """A gauge that is 1 for one of several states, which nvidia-smi calls by words."""

    metric: str
    sources: tuple[str, ...]
    states: dict[str, str]
    verdicts: tuple[str, ...] = ()
    """Sources that say how it ended: any other word than `fine` means the state "failed"."""
    fine: str = "Success"


def _clocks() -> Iterable[Check]:
    for clock, element in (("graphics", "graphics"), ("sm", "sm"), ("memory", "mem"), ("video", "video")):
        now = (f"clocks.current.{clock}", f"/clocks/{element}_clock")
        most = (f"clocks.max.{clock}", f"/max_clocks/{element}_clock")
        yield Check(("clock_hertz", clock), now, slack=30e6)
        yield Check(("clock_max_hertz", clock), most)


def _reasons() -> Iterable[Check]:
    for reason in REASONS:
        element = {"display_clock_setting": "display_clocks_setting"}.get(reason, reason)
        yield Check(
            ("throttle_active", reason),
            (
                f"reason/{reason}",
                f"clocks_event_reasons.{reason}",
                f"/clocks_event_reasons/clocks_event_reason_{element}",
                f"/clocks_throttle_reasons/clocks_throttle_reason_{element}",
            ),
        )


def _reason_times() -> Iterable[Check]:
    for reason, element, since in (
        ("sw_power_cap", "sw_power_cap", 0),
        ("sync_boost", "sync_boost", 0),
        ("sw_thermal_slowdown", "sw_therm_slowdown", 580),
        ("hw_thermal_slowdown", "hw_therm_slowdown", 580),
        ("hw_power_brake_slowdown", "hw_power_brake", 580),
    ):
        told = f"/clocks_event_reasons_counters/clocks_event_reasons_counters_{element}"
        names = (f"clocks_event_reasons_counters.{reason}", told)
        yield Check(("throttle_seconds_total", reason), names, slack=0.05, since=since)


def _ecc() -> Iterable[Check]:
    for kind in ("corrected", "uncorrected"):
        for scope in ("volatile", "aggregate"):
            yield Check(("ecc_errors_total", kind, scope), (f"ecc.errors.{kind}.{scope}.total",))


def _rows() -> Iterable[Check]:
    for key, element in (
        (("remapped_rows", "corrected"), "corr"),
        (("remapped_rows", "uncorrected"), "unc"),
        (("row_remap_pending",), "pending"),
        (("row_remap_failed",), "failure"),
    ):
        told = (f"/remapped_rows/remapped_row_{element}", "/remapped_rows")
        yield Check(key, told)


def _fabric() -> Iterable[Check]:
    for reason, element in (
        ("degraded_bandwidth", "bandwidth"),
        ("route_recovery", "route_recovery_in_progress"),
        ("route_unhealthy", "route_unhealthy"),
        ("access_timeout_recovery", "access_timeout_recovery"),
        ("incorrect_configuration", "incorrect_configuration"),
    ):
        yield Check(("fabric_degraded", reason), (f"/fabric/health/{element}",))


def _memory() -> Iterable[Check]:
    for part in ("total", "used", "free", "reserved"):
        told = (f"memory.{part}", f"/fb_memory_usage/{part}")
        yield Check((f"memory_{part}_bytes",), told, slack=MIB if part == "total" else MEMORY_SLACK)


NUMBERS = (
    *_memory(),
    Check(("utilization_ratio",), ("utilization.gpu", "/utilization/gpu_util"), slack=0.1),
    Check(
        ("memory_controller_utilization_ratio",),
        ("utilization.memory", "/utilization/memory_util"),
        slack=0.1,
    ),
    Check(("temperature_celsius", "core"), ("temperature.gpu", "/temperature/gpu_temp"), slack=2.0),
    Check(("temperature_celsius", "memory"), ("temperature.memory", "/temperature/memory_temp"), slack=2.0),
    Check(
        ("temperature_margin_celsius",),
        ("temperature.gpu.tlimit", "/temperature/gpu_temp_tlimit"),
        slack=2.0,
    ),
    Check(
        ("power_watts",),
        ("power.draw", "/gpu_power_readings/average_power_draw", "/gpu_power_readings/power_draw"),
        slack=20.0,
    ),
    Check(("power_limit_watts",), ("enforced.power.limit", "/gpu_power_readings/current_power_limit")),
    *_clocks(),
    *_reasons(),
    *_reason_times(),
    Check(
        ("pcie_generation",), ("pcie.link.gen.current", "/pci/pci_gpu_link_info/pcie_gen/current_link_gen")
    ),
    Check(("pcie_generation_max",), ("pcie.link.gen.max", "/pci/pci_gpu_link_info/pcie_gen/max_link_gen")),
    Check(
        ("pcie_width",),
        ("pcie.link.width.current", "/pci/pci_gpu_link_info/link_widths/current_link_width"),
    ),
    Check(("pcie_width_max",), ("pcie.link.width.max", "/pci/pci_gpu_link_info/link_widths/max_link_width")),
    Check(("pcie_replays_total",), ("/pci/replay_counter",)),
    *_ecc(),
    *_rows(),
    *_fabric(),
    Check(("nvlinks",), ("nvlink/ports",)),
    Check(("nvlinks_active",), ("nvlink/active",)),
    Check(("nvlink_bytes_total", "transmit"), ("nvlink/tx",)),
    Check(("nvlink_bytes_total", "receive"), ("nvlink/rx",)),
    *(Check(("nvlink_errors_total", each), (f"nvlink/{each}",)) for each in ("replay", "recovery", "crc")),
    Check(("processes",), ("processes",)),
)
STATES = (
    Words(
        "fabric_state",
        ("fabric.state", "/fabric/state"),
        {"Not Started": "not_started", "In Progress": "in_progress", "Completed": "completed"},
        verdicts=("fabric.status", "/fabric/status"),
    ),
    Words(
        "recovery_action",
        ("/gpu_recovery_action",),
        {
            "None": "none",
            "Reset": "gpu_reset",
            "GPU Reset": "gpu_reset",
            "Reboot": "node_reboot",
            "Node Reboot": "node_reboot",
            "Drain P2P": "drain_p2p",
            "Drain and Reset": "drain_and_reset",
        },
    ),
)
LABELS: tuple[tuple[tuple[str, ...], Callable[[str], str]], ...] = (
    (("index",), str),
    (("pci.bus_id", "/pci/pci_bus_id"), normalise_bus_id),
    (("name", "/product_name"), str),
    (("/product_architecture",), lambda words: words.lower().partition(" ")[0]),
    (("serial", "/serial"), lambda words: "" if is_absent(words) else words),
)
"""Labels of the info series after the UUID, in declared order."""
UNCHECKED: dict[Key, str] = {
    ("activity_ratio",): "nvidia-smi has no GPM: held under load by a test of its own",
    ("counters_suspect",): "our own verdict: held under load by a test of its own",
    (
        "energy_joules_total",
    ): "nvidia-smi does not tell it: held against power over time by a test of its own",
    (
        "pcie_throughput_bytes",
    ): "measured over another time: held against the link's speed by a test of its own",
    ("throttle_seconds_total", "thermal"): "nvidia-smi has no counter for NVML's older policies",
    ("throttle_seconds_total", "board_limit"): "nvidia-smi has no counter for NVML's older policies",
    ("throttle_seconds_total", "low_utilization"): "nvidia-smi has no counter for NVML's older policies",
    ("throttle_seconds_total", "reliability"): "nvidia-smi has no counter for NVML's older policies",
    ("fabric_degraded", "no_partition"): "nvidia-smi 580 does not tell it",
    ("fabric_degraded", "fabric_manager_disconnected"): "nvidia-smi 580 does not tell it",
    ("nvlink_errors_total", "malformed_packet"): "NVLink 5: its names in nvidia-smi were not seen yet",
    ("nvlink_errors_total", "buffer_overrun"): "NVLink 5: its names in nvidia-smi were not seen yet",
    ("nvlink_errors_total", "effective"): "NVLink 5: its names in nvidia-smi were not seen yet",
    ("nvlink_errors_total", "symbol"): "NVLink 5: its names in nvidia-smi were not seen yet",
    ("nvlink_errors_total", "link_recovery_failed"): "NVLink 5: its names in nvidia-smi were not seen yet",
    ("mig_memory_total_bytes",): "the instances are counted only",
    ("mig_memory_used_bytes",): "the instances are counted only",
    ("mig_activity_ratio",): "nvidia-smi has no GPM",
}
"""Series that nothing in nvidia-smi holds, by their beginning, and why."""
_NO_FIELDS = {
    "clocks.max.video",
    "clocks_event_reasons.display_clock_setting",
    "clocks_event_reasons.board_limit",
    "clocks_event_reasons.reliability",
}
"""Names in the manner of --query-gpu for what it tells only in the mask, or the XML alone tells."""


def fields() -> list[str]:
    """What to ask --query-gpu for."""
    sources = {source for check in NUMBERS for source in check.sources}
    sources |= {source for state in STATES for source in (*state.sources, *state.verdicts)}
    sources |= {source for names, _ in LABELS for source in names}
    cells = {each for each in sources if "/" not in each and each not in ("processes", "index", "name")}
    more = ("clocks_event_reasons.active", "clocks_event_reasons.supported", "mig.mode.current")
    return ["uuid", "index", "name", *sorted(cells - _NO_FIELDS), *more]
