"""`nvidia-smi`, the second opinion on what the agent reads of a real GPU.

A value has the name of its field in --query-gpu, the path of its element in -q -x (/pci/replay_counter), or
the words of `nvidia-smi nvlink` (nvlink Data Tx), where it is the sum over the links.
"""

from __future__ import annotations

import re
import subprocess
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Callable, Iterable
from typing import NamedTuple

from rankwatch_agent.sources.gpu.inventory import normalise_bus_id
from rankwatch_agent.sources.gpu.protocol import Reading
from support.gpu.reading import Values, values_of

Key = tuple[str, ...]
"""A series: metric without rankwatch_gpu_, labels other than the GPU."""
Look = dict[str, str]
"""Name of a value -> the text of nvidia-smi, for one GPU."""

TIMEOUT_SECONDS = 60.0
"""Of one query: without persistence mode each one initialises the driver."""
MIB = 1024.0**2


class Check(NamedTuple):
    """A number that both report: ours is `scale` times theirs, give or take `slack` in our unit."""

    name: str
    scale: float = 1.0
    slack: float = 0.0


def _each(pattern: str, names: Iterable[str], scale: float, slack: float = 0.0) -> dict[str, Check]:
    return {name: Check(pattern.format(name), scale, slack) for name in names}


_CLOCKS = ("graphics", "sm", "memory")
_SLOWDOWNS = ("sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown")
_TIMES = _each("clocks_event_reasons_counters.{}", ("sw_power_cap", "sync_boost", *_SLOWDOWNS), 1e-6, 0.05)
_SCOPES = ("volatile", "aggregate")
_SRAM = {
    "corrected": "sram_correctable",
    "uncorrected_parity": "sram_uncorrectable_parity",
    "uncorrected_secded": "sram_uncorrectable_secded",
}
_HISTOGRAM = "/remapped_rows/row_remapper_histogram/row_remapper_histogram"
_AVAILABILITIES = ("max", "high", "partial", "low", "none")
NUMBERS: dict[Key, Check] = {
    ("memory_total_bytes",): Check("memory.total", MIB, MIB),
    ("memory_used_bytes",): Check("memory.used", MIB, 64 * MIB),
    ("processes",): Check("processes"),
    ("utilization_ratio",): Check("utilization.gpu", 0.01, 0.1),
    ("temperature_celsius", "core"): Check("temperature.gpu", slack=2),
    ("temperature_celsius", "memory"): Check("temperature.memory", slack=2),
    ("temperature_margin_celsius",): Check("temperature.gpu.tlimit", slack=2),
    ("power_watts",): Check("power.draw", slack=20),
    ("power_limit_watts",): Check("enforced.power.limit", slack=0.01),
    **{("clock_hertz", k): v for k, v in _each("clocks.current.{}", (*_CLOCKS, "video"), 1e6, 30e6).items()},
    **{("clock_max_hertz", k): v for k, v in _each("clocks.max.{}", _CLOCKS, 1e6).items()},
    ("clock_max_hertz", "video"): Check("/max_clocks/video_clock", 1e6),
    **{("throttle_seconds_total", k): v for k, v in _TIMES.items()},
    ("pcie_generation",): Check("pcie.link.gen.current"),
    ("pcie_generation_max",): Check("pcie.link.gen.max"),
    ("pcie_width",): Check("pcie.link.width.current"),
    ("pcie_width_max",): Check("pcie.link.width.max"),
    ("pcie_replays_total",): Check("/pci/replay_counter"),
    **{
        ("ecc_errors_total", kind, scope): Check(f"ecc.errors.{kind}.{scope}.total")
        for kind in ("corrected", "uncorrected")
        for scope in _SCOPES
    },
    ("video_utilization_ratio", "encoder"): Check("utilization.encoder", 0.01, 0.1),
    ("video_utilization_ratio", "decoder"): Check("utilization.decoder", 0.01, 0.1),
    ("fan_speed_ratio", "0"): Check("fan.speed", 0.01, 0.05),
    ("sram_ecc_threshold_exceeded",): Check("/ecc_errors/aggregate/sram_threshold_exceeded"),
    **{
        ("sram_ecc_errors_total", kind, scope): Check(f"/ecc_errors/{scope}/{name}")
        for kind, name in _SRAM.items()
        for scope in _SCOPES
    },
    **{("row_remap_banks", k): v for k, v in _each(f"{_HISTOGRAM}_{{}}", _AVAILABILITIES, 1).items()},
    ("retired_pages", "corrected"): Check("retired_pages.single_bit_ecc.count"),
    ("retired_pages", "uncorrected"): Check("retired_pages.double_bit.count"),
    ("page_retirement_pending",): Check("retired_pages.pending"),
    ("remapped_rows", "corrected"): Check("/remapped_rows/remapped_row_corr"),
    ("remapped_rows", "uncorrected"): Check("/remapped_rows/remapped_row_unc"),
    ("row_remap_pending",): Check("/remapped_rows/remapped_row_pending"),
    ("row_remap_failed",): Check("/remapped_rows/remapped_row_failure"),
    ("fabric_degraded", "degraded_bandwidth"): Check("/fabric/health/bandwidth"),
    ("fabric_degraded", "route_recovery"): Check("/fabric/health/route_recovery_in_progress"),
    ("fabric_degraded", "route_unhealthy"): Check("/fabric/health/route_unhealthy"),
    ("fabric_degraded", "access_timeout_recovery"): Check("/fabric/health/access_timeout_recovery"),
    ("nvlinks_active",): Check("nvlink active"),
    ("nvlink_bytes_total", "transmit"): Check("nvlink Data Tx", 1024),
    ("nvlink_bytes_total", "receive"): Check("nvlink Data Rx", 1024),
    ("nvlink_errors_total", "replay"): Check("nvlink Replay Errors"),
    ("nvlink_errors_total", "recovery"): Check("nvlink Recovery Errors"),
    ("nvlink_errors_total", "crc"): Check("nvlink CRC Errors"),
}
_REASONS = (
    *("gpu_idle", "applications_clocks_setting", "sw_power_cap", "hw_slowdown", "sync_boost"),
    *("sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown", "display_clock_setting"),
    *("board_limit", "reliability"),
)
REASONS = {reason: 1 << bit for bit, reason in enumerate(_REASONS)}
"""Bits of clocks_event_reasons.active and .supported (nvml.h, nvmlClocksEventReason...)."""
_ACTIVE, _SUPPORTED = "clocks_event_reasons.active", "clocks_event_reasons.supported"
STATES = {
    ("fabric_state", "not_started"): ("fabric.state", ("Not Started",)),
    ("fabric_state", "in_progress"): ("fabric.state", ("In Progress",)),
    ("fabric_state", "completed"): ("fabric.state", ("Completed",)),
    ("recovery_action", "none"): ("/gpu_recovery_action", ("None",)),
    ("recovery_action", "gpu_reset"): ("/gpu_recovery_action", ("Reset", "GPU Reset")),
    ("recovery_action", "node_reboot"): ("/gpu_recovery_action", ("Reboot", "Node Reboot")),
    ("recovery_action", "drain_p2p"): ("/gpu_recovery_action", ("Drain P2P",)),
    ("recovery_action", "drain_and_reset"): ("/gpu_recovery_action", ("Drain and Reset",)),
}
"""Series -> name and words of nvidia-smi for that state."""
UNCHECKED = {
    "activity_ratio": "nvidia-smi has no GPM: a test of its own checks it under load",
    "counters_suspect": "our own verdict: a test of its own checks it under load",
    "energy_joules_total": "not in nvidia-smi: a test of its own compares it with power over time",
    "pcie_throughput_bytes": "measured over another time: a test of its own compares it with the link",
    "process_memory_bytes": "not known to nvidia-smi for each kind of process",
    "performance_state": "changes from one look to the next; P0 is written with a letter",
    "firmware_info": "text, not a number",
    **dict.fromkeys(
        ("nvlink_link_up", "nvlink_link_bytes_total", "nvlink_link_errors_total"),
        "off by default; the sums over the links are compared",
    ),
    **dict.fromkeys(
        ("c2c_links", "c2c_links_active", "c2c_links_low_power", "c2c_bandwidth_bytes", "c2c_errors_total"),
        "no machine with Grace CPUs was at hand",
    ),
    "nvlinks": "nvidia-smi does not list the ports while all of them are inactive",
    **dict.fromkeys(
        ("mig_info", "mig_memory_total_bytes", "mig_memory_used_bytes"), "no machine with MIG was at hand"
    ),
    "mig_activity_ratio": "nvidia-smi has no GPM",
}
"""Metrics without a counterpart in nvidia-smi, and why."""

_FLAGS = {
    **dict.fromkeys(("Yes", "True", "Degraded", "Enabled"), 1.0),
    **dict.fromkeys(("No", "False", "Full", "Disabled"), 0.0),
}
_ABSENT = ("N/A", "Not Supported", "Not Available")
_BAD_FIELD = re.compile(r'Field "([^"]+)" is not a valid field')
_LINK_GPU = re.compile(r"GPU \d+: .*\(UUID: (\S+)\)")
_LINK = re.compile(r"\s*Link \d+: (?:([A-Z][A-Za-z ]+): (\d+)(?: KiB)?|[\d.]+ GB/s)\s*")


class Smi:
    """nvidia-smi of one machine. `run` calls it with arguments and returns status and output."""

    def __init__(self, run: Callable[..., tuple[int, str]]) -> None:
        self._run = run
        names = {check.name for check in NUMBERS.values()} | {"fabric.state", "fabric.status"}
        more = ("uuid", "index", "name", "serial", "pci.bus_id", _ACTIVE, _SUPPORTED)
        self._fields = [*more, *sorted(each for each in names if "." in each)]
        self._paths = ["/product_architecture", "/gpu_recovery_action"]
        self._paths += sorted(each for each in names if each.startswith("/"))

    def look(self) -> dict[str, Look]:
        """Every value, by the UUID of the GPU."""
        looks = self._query()
        xml = self._ask("-q", "-x")
        for gpu in ElementTree.fromstring(xml[xml.find("<") : xml.rfind(">") + 1]).iter("gpu"):
            look = looks[gpu.findtext("uuid", "").strip()]
            for path in self._paths:
                text = gpu.findtext(f".{path}")
                if text is not None:
                    look[path] = text.strip()
            kinds = [each.findtext("type", "") for each in gpu.iter("process_info")]
            look["processes"] = str(sum("C" in each for each in kinds))
        for arguments in (("-s",), ("-gt", "d"), ("-e",)):
            status, output = self._run("nvlink", *arguments)
            for uuid, sums in link_sums(output).items() if status == 0 else ():
                looks[uuid].update(sums)
        return looks

    def _query(self) -> dict[str, Look]:
        while True:
            status, output = self._run(
                f"--query-gpu={','.join(self._fields)}", "--format=csv,noheader,nounits"
            )
            bad = _BAD_FIELD.search(output)
            if bad is None:
                assert status == 0, output
                rows = [line.split(", ") for line in output.splitlines()]
                rows = [row for row in rows if len(row) == len(self._fields)]  # not its warnings
                return {row[0]: dict(zip(self._fields, row, strict=True)) for row in rows}
            self._fields.remove(bad[1])  # this nvidia-smi is older or newer

    def _ask(self, *arguments: str) -> str:
        status, output = self._run(*arguments)
        assert status == 0, output
        return output


def command_run(program: str) -> Callable[..., tuple[int, str]]:
    """The program, as `Smi` calls it."""

    def run(*arguments: str) -> tuple[int, str]:
        done = subprocess.run(
            [program, *arguments], capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False
        )
        return done.returncode, done.stdout

    return run


def link_sums(output: str) -> dict[str, Look]:
    """Sums over the links in the output of `nvidia-smi nvlink`, by UUID; `nvlink active` counts those up."""
    found: dict[str, Counter[str]] = {}
    sums: Counter[str] = Counter()
    for line in output.splitlines():
        gpu, link = _LINK_GPU.match(line), _LINK.fullmatch(line)
        if gpu:
            sums = found.setdefault(gpu[1], Counter())
        elif link:
            sums[f"nvlink {link[1] or 'active'}"] += int(link[2] or 1)
    return {uuid: {name: str(number) for name, number in sums.items()} for uuid, sums in found.items()}


def number(text: str) -> float | None:
    """The number in a cell, an element (`1545 MHz`) or a word; None where there is none."""
    if text in _FLAGS:
        return _FLAGS[text]
    try:
        return float(int(text, 16)) if text.startswith("0x") else float(text.partition(" ")[0])
    except ValueError:
        return None


def is_absent(text: str) -> bool:
    """Whether nvidia-smi says that the GPU lacks the value."""
    return text.strip("[] ") in _ABSENT


def compare(smi: Smi, read: Callable[[], Reading], rounds: int = 5) -> dict[tuple[str, Key], str]:
    """(UUID, series) -> what differs in every round: a clock may jump between two looks and back."""
    lasting: dict[tuple[str, Key], str] | None = None
    for _ in range(rounds):
        before, reading, after = smi.look(), read(), smi.look()
        assert {gpu.uuid for gpu in reading.gpus if gpu.up} == set(before) == set(after)
        found = {
            (gpu.uuid, key): text
            for gpu in reading.gpus
            for key, text in differences(values_of(gpu), before[gpu.uuid], after[gpu.uuid]).items()
        }
        lasting = found if lasting is None else {each: found[each] for each in lasting if each in found}
        if not lasting:
            break
    return lasting or {}


def differences(values: Values, before: Look, after: Look) -> dict[Key, str]:
    """Series -> how it differs from what nvidia-smi reported just before and just after."""
    found: dict[Key, str] = {}
    for key, check in NUMBERS.items():
        texts = [look[check.name] for look in (before, after) if check.name in look]
        numbers = [each for each in map(number, texts) if each is not None]
        ours = values.get(key)
        if ours is None:
            # older drivers number these fields otherwise, so the agent does not read them there
            differs = bool(numbers) and key[-1] not in _SLOWDOWNS
        elif numbers:
            low, high = min(numbers) * check.scale - check.slack, max(numbers) * check.scale + check.slack
            differs = not low <= ours <= high
        else:
            differs = any(map(is_absent, texts))
        if differs:
            found[key] = f"ours {ours}, nvidia-smi {check.name} {texts}"
    found.update(_state_differences(values, before, after))
    return found


def _state_differences(values: Values, before: Look, after: Look) -> dict[Key, str]:
    found: dict[Key, str] = {}
    for key, (name, words) in STATES.items():
        texts = {look[name] for look in (before, after) if name in look}
        if key[0] == "fabric_state" and before.get("fabric.status") != "Success":
            continue  # the probe failed, or there is no fabric
        if texts and (key in values) != bool(texts & set(words)):
            found[key] = f"ours {values.get(key)}, nvidia-smi {name} {texts}"
    masks = [(number(look.get(_ACTIVE, "")), number(look.get(_SUPPORTED, ""))) for look in (before, after)]
    for reason, bit in REASONS.items():
        known = [now for now, supported in masks if now is not None and int(supported or 0) & bit]
        ours = values.get(("throttle_active", reason))
        if known and ours not in {float(bool(int(now) & bit)) for now in known}:
            found["throttle_active", reason] = f"ours {ours}, nvidia-smi {masks}"
    info = [key for key in values if key[0] == "info"]
    architecture = before["/product_architecture"].lower().partition(" ")[0]
    theirs = (before["index"], normalise_bus_id(before["pci.bus_id"]), before["name"], architecture)
    if [key[1:5] for key in info] != [theirs]:
        found["info",] = f"ours {info}, nvidia-smi {theirs}"
    return found
