"""A fake `nvidia-smi` that speaks of a node as the fake NVML library does, from the same description.

Run as a program it prints what the real one would for the file in $RANKWATCH_FAKE_NVML; imported it gives
the same as a function. It reads the description itself and knows nothing of the agent. Words and layout
are those of driver 580.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from support.gpu.nvidia_smi import Run

_MIB = 1 << 20
_REASONS = {
    "gpu_idle": 0x1,
    "applications_clocks_setting": 0x2,
    "sw_power_cap": 0x4,
    "hw_slowdown": 0x8,
    "sync_boost": 0x10,
    "sw_thermal_slowdown": 0x20,
    "hw_thermal_slowdown": 0x40,
    "hw_power_brake_slowdown": 0x80,
}
_TIMES = {
    "sw_power_cap": "74",
    "sync_boost": "76",
    "sw_thermal_slowdown": "269",
    "hw_thermal_slowdown": "270",
    "hw_power_brake_slowdown": "271",
}
_FABRIC = (None, "Not Started", "In Progress", "Completed")
_HEALTH = {
    "bandwidth": (0, 0x3, ("N/A", "Degraded", "Full")),
    "route_recovery_in_progress": (2, 0x3, ("N/A", "True", "False")),
    "route_unhealthy": (4, 0x3, ("N/A", "True", "False")),
    "access_timeout_recovery": (6, 0x3, ("N/A", "True", "False")),
    "incorrect_configuration": (8, 0xF, ("N/A", "None", "Incorrect SysGuid")),
}
_ACTIONS = ("None", "Reset", "Reboot", "Drain P2P", "Drain and Reset")
_ARCHITECTURES = {7: "Ampere", 9: "Hopper", 10: "Blackwell"}


def main() -> int:
    node = json.loads(Path(os.environ["RANKWATCH_FAKE_NVML"]).read_text())
    status, output = answer(node, sys.argv[1:])
    sys.stdout.write(output)
    return status


def answer(node: dict[str, Any], arguments: list[str]) -> tuple[int, str]:
    """Exit status and output."""
    if arguments[:1] == ["nvlink"]:
        return 0, "".join(_links(index, gpu, arguments[1]) for index, gpu in enumerate(node["gpus"]))
    if arguments == ["-q", "-x"]:
        return 0, _xml(node)
    if arguments == ["-L"]:
        lines = (f"GPU {at}: {gpu['name']} (UUID: {gpu['uuid']})" for at, gpu in enumerate(node["gpus"]))
        return 0, "\n".join(lines)
    if arguments == ["--version"]:
        version, nvml = node["driver"]["version"], node["driver"]["nvml_version"].partition(".")[2]
        return 0, f"NVIDIA-SMI version  : {version}\nNVML version        : {nvml}\n"
    names = arguments[0].removeprefix("--query-gpu=").split(",")
    rows = [_cells(node, index, gpu) for index, gpu in enumerate(node["gpus"])]
    for name in names:
        if any(name not in row for row in rows):
            return 2, f'Field "{name}" is not a valid field to query.\n'
    return 0, "".join(", ".join(row[name] for name in names) + "\n" for row in rows)


def fake_run(node: dict[str, Any]) -> Callable[..., Run]:
    """The program without a process, as `Smi` calls it."""
    return lambda *arguments: Run(*answer(node, list(arguments)))


def _told(value: Any, form: Callable[[Any], str], absent: str = "[N/A]") -> str:
    return absent if value is None else form(value)


def _mib(value: int) -> str:
    return f"{value // _MIB} MiB"


def _cells(node: dict[str, Any], index: int, gpu: dict[str, Any]) -> dict[str, str]:
    fields, pci, reasons = gpu["fields"], gpu["pci"], gpu["clocks_event_reasons"]
    cells = {
        "uuid": gpu["uuid"],
        "index": str(index),
        "name": gpu["name"],
        "serial": gpu["serial"],
        "pci.bus_id": f"{pci['domain']:08X}:{pci['bus']:02X}:{pci['device']:02X}.0",
        **{f"memory.{part}": _mib(gpu["memory"][part]) for part in ("total", "used", "free", "reserved")},
        "utilization.gpu": _told(gpu["utilization"], lambda u: f"{u['gpu']} %"),
        "utilization.memory": _told(gpu["utilization"], lambda u: f"{u['memory']} %"),
        "temperature.gpu": _told(gpu["temperature"]["gpu"], str),
        "temperature.memory": _told(fields.get("82"), str, "N/A"),
        "temperature.gpu.tlimit": _told(gpu["temperature"]["margin"], str),
        "power.draw": _told(gpu["power"]["usage_mw"], lambda each: f"{each / 1000:.2f} W"),
        "enforced.power.limit": _told(gpu["power"]["enforced_limit_mw"], lambda e: f"{e / 1000:.2f} W"),
        "pcie.link.gen.current": str(gpu["pcie"]["generation"]),
        "pcie.link.gen.max": str(gpu["pcie"]["max_generation"]),
        "pcie.link.width.current": str(gpu["pcie"]["width"]),
        "pcie.link.width.max": str(gpu["pcie"]["max_width"]),
        "clocks_event_reasons.active": f"0x{reasons['current']:016X}",
        "clocks_event_reasons.supported": f"0x{reasons['supported']:016X}",
        "mig.mode.current": "Enabled" if gpu["mig"]["mode"] else "Disabled",
        "fabric.state": _told(_FABRIC[gpu["fabric"]["state"]], str, "N/A"),
        "fabric.status": "Success" if gpu["fabric"]["state"] else "N/A",
    }
    for clock in ("graphics", "sm", "memory", "video"):
        cells[f"clocks.current.{clock}"] = _told(gpu["clocks"][clock], lambda each: f"{each} MHz")
        if clock != "video":
            cells[f"clocks.max.{clock}"] = _told(gpu["max_clocks"][clock], lambda each: f"{each} MHz")
    for reason, bit in _REASONS.items():
        active = "Active" if reasons["current"] & bit else "Not Active"
        cells[f"clocks_event_reasons.{reason}"] = active
    for reason, field in _TIMES.items():
        cells[f"clocks_event_reasons_counters.{reason}"] = _told(
            fields.get(field), lambda each: f"{each // 1000} us"
        )
    for kind in ("corrected", "uncorrected"):
        for scope in ("volatile", "aggregate"):
            count = gpu["ecc"][kind][scope] if gpu["ecc"]["mode"] else None
            cells[f"ecc.errors.{kind}.{scope}.total"] = _told(count, str)
    return cells


def _xml(node: dict[str, Any]) -> str:
    version = node["driver"]["cuda_version"]
    gpus = "".join(map(_gpu_xml, node["gpus"]))
    return (
        '<?xml version="1.0" ?>\n<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">\n<nvidia_smi_log>\n'
        f"<driver_version>{node['driver']['version']}</driver_version>"
        f"<cuda_version>{version // 1000}.{version % 1000 // 10}</cuda_version>{gpus}</nvidia_smi_log>\n"
    )


def _gpu_xml(gpu: dict[str, Any]) -> str:
    fields, remapped = gpu["fields"], "N/A"
    if fields.get("142") is not None:
        pending, failure = ("Yes" if fields[each] else "No" for each in ("144", "145"))
        remapped = (
            f"<remapped_row_corr>{fields['142']}</remapped_row_corr>"
            f"<remapped_row_unc>{fields['143']}</remapped_row_unc>"
            f"<remapped_row_pending>{pending}</remapped_row_pending>"
            f"<remapped_row_failure>{failure}</remapped_row_failure>"
        )
    mask = gpu["fabric"]["health_mask"]
    health = "".join(
        f"<{name}>{words[min(mask >> shift & width, 2)]}</{name}>"
        for name, (shift, width, words) in _HEALTH.items()
    )
    processes = "".join(
        f"<process_info><pid>{each['pid']}</pid><type>{kind}</type>"
        f"<used_memory>{_told(each['memory'], _mib, 'N/A')}</used_memory></process_info>"
        for kind, part in (("C", "compute"), ("G", "graphics"))
        for each in gpu["processes"][part]
    )
    migs = "".join("<mig_device></mig_device>" for _ in gpu["mig"]["devices"])
    video = _told(gpu["max_clocks"]["video"], lambda each: f"{each} MHz", "N/A")
    action = _told(fields.get("230"), lambda each: _ACTIONS[each], "N/A")
    return (
        f"<gpu><uuid>{gpu['uuid']}</uuid>"
        f"<product_architecture>{_ARCHITECTURES[gpu['architecture']]}</product_architecture>"
        f"<gpu_recovery_action>{action}</gpu_recovery_action><mig_devices>{migs}</mig_devices>"
        f"<pci><replay_counter>{_told(fields.get('94'), str, 'N/A')}</replay_counter></pci>"
        f"<max_clocks><video_clock>{video}</video_clock></max_clocks>"
        f"<remapped_rows>{remapped}</remapped_rows><fabric><health>{health}</health></fabric>"
        f"<processes>{processes}</processes></gpu>"
    )


def _links(index: int, gpu: dict[str, Any], what: str) -> str:
    lines = [f"GPU {index}: {gpu['name']} (UUID: {gpu['uuid']})"]
    for link, port in enumerate(gpu["nvlinks"]):
        start = f"\t Link {link}:"
        if what == "-s":
            lines.append(f"{start} {'26.562 GB/s' if port['active'] else '<inactive>'}")
        elif port["active"]:
            names = (
                (("Data Tx", "138", " KiB"), ("Data Rx", "139", " KiB"))
                if what == "-gt"
                else (("Replay Errors", "161", ""), ("Recovery Errors", "162", ""), ("CRC Errors", "163", ""))
            )
            lines += [f"{start} {name}: {gpu['fields'][field][link]}{unit}" for name, field, unit in names]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
