"""Lines of the kernel log that tell of a known fault: the one list of them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple


class KnownFault(NamedTuple):
    """A fault and how its line is known."""

    event: str
    """Value of the label `event`."""
    mark: str
    """Text that every such line holds: most lines are ruled out by it without the pattern."""
    pattern: re.Pattern[str]


def _fault(event: str, mark: str, pattern: str = "") -> KnownFault:
    return KnownFault(event, mark, re.compile(pattern or re.escape(mark)))


KNOWN_FAULTS = (
    # GPUs and their links
    _fault("gpu_fallen_off_bus", "fallen off the bus", r"NVRM: .{0,200}fallen off the bus"),
    _fault("gpu_initialisation_failed", "RmInitAdapter failed"),
    _fault("nvidia_driver_loaded", "NVRM: loading NVIDIA"),
    _fault("nvswitch_fatal", "SXid (PCI:", r"SXid \(PCI:[^)]{1,40}\): \d{1,6}, Fatal"),
    _fault("nvswitch_nonfatal", "SXid (PCI:", r"SXid \(PCI:[^)]{1,40}\): \d{1,6}, Non-fatal"),
    _fault("nvlink_peer_not_found", "postRxDetLinkMask failed"),
    _fault("nvidia_peermem_invalid_context", "nvidia-peermem", r"nvidia-peermem .{0,80}invalid context"),
    _fault("nccl_segfault", "libnccl", r"segfault at .{0,200} in libnccl(-net)?\.so"),
    # NICs
    _fault("mlx5_insufficient_power", "Detected insufficient power on the PCIe slot"),
    _fault("mlx5_high_temperature", "High Temperature", r"Port module event.{0,80}High Temperature"),
    _fault("mlx5_module_error", "Port module event[error]"),
    _fault("mlx5_access_reg_failed", "ACCESS_REG", r"mlx5_cmd_.{0,60}ACCESS_REG.{0,60}failed"),
    _fault("mlx5_device_unhealthy", "mlx5_core", r"mlx5_core .{0,80}device's health compromised"),
    _fault("transmit_timeout", "transmit queue", r"NETDEV WATCHDOG: .{0,80}transmit queue \d+ timed out"),
    # Memory, processors, buses
    _fault("oom_kill", "Out of memory: Killed process"),
    _fault("cgroup_oom_kill", "Memory cgroup out of memory: Killed process"),
    _fault("machine_check", "[Hardware Error]", r"mce: .{0,40}\[Hardware Error\]: Machine [Cc]heck"),
    _fault("firmware_error", "Hardware error from APEI"),
    _fault("memory_error_corrected", "EDAC", r"EDAC .{0,20}\b\d+ CE\b"),
    _fault("memory_error_uncorrected", "EDAC", r"EDAC .{0,20}\b\d+ UE\b"),
    _fault("pcie_error_corrected", "PCIe Bus Error", r"PCIe Bus Error: severity=Correct(?:ed|able)"),
    _fault("pcie_error_uncorrected", "PCIe Bus Error", r"PCIe Bus Error: severity=Uncorrect"),
    _fault("hung_task", "blocked for more than", r"INFO: task .{1,80} blocked for more than \d+ seconds"),
    _fault("soft_lockup", "BUG: soft lockup"),
    _fault("rcu_stall", "rcu", r"rcu.{0,60}detected (?:expedited )?stalls?\b|rcu.{0,60}self-detected stall"),
    _fault("kernel_oops", "Oops", r"\bOops(?::| - )"),
    # Where data and checkpoints live
    _fault("file_system_error", "error", r"(?:EXT4-fs|BTRFS)\b.{0,80}\berror\b"),
    _fault("xfs_corruption", "XFS", r"XFS .{0,80}(?:Corruption|metadata I/O error)"),
    _fault("nfs_not_responding", "nfs: server", r"nfs: server .{1,200} not responding"),
    _fault("nvme_timeout", "nvme", r"nvme\S* .{0,80}(?:timeout, (?:aborting|reset)|controller is down)"),
)

EVENTS = tuple(fault.event for fault in KNOWN_FAULTS)
"""Every event, each with a series from the start."""


def events_in(text: str) -> Iterator[str]:
    """The events a line tells of: mostly none."""
    for event, mark, pattern in KNOWN_FAULTS:
        if mark in text and pattern.search(text):
            yield event
