"""Lines of the kernel log that report a known fault or an XID error."""

from __future__ import annotations

import pytest

from rankwatch_agent.sources.kernel_log import SAME_LOSS_SECONDS, GpuLosses
from rankwatch_agent.sources.kernel_log_lines import (
    EVENTS,
    XidLine,
    events_in,
    parse_identity,
    parse_nvlink5,
    parse_sxid,
    parse_xid,
)

LINES = {
    "gpu_fallen_off_bus": "NVRM: GPU 0000:3b:00.0: GPU has fallen off the bus.",
    "gpu_initialisation_failed": "NVRM: GPU 0000:3b:00.0: RmInitAdapter failed! (0x25:0x65:1438)",
    "nvidia_driver_loaded": "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  580.65.06",
    "nvswitch_fatal": "nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 20034, Fatal, Link 30 LTSSM Fault Up",
    "nvswitch_nonfatal": "nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 12028, Non-fatal, Link 32 egress",
    "nvlink_peer_not_found": "NVRM: knvlinkDiscoverPostRxDetLinks_GH100: Getting peer0's "
    "postRxDetLinkMask failed!",
    "nvidia_peermem_invalid_context": "nvidia-peermem nv_get_p2p_free_callback:127 ERROR detected invalid "
    "context, skipping further processing",
    "nccl_segfault": "pt_main_thread[2536443]: segfault at 7f797fe00000 ip 00007f7c7ac69996 sp "
    "00007f7c12fd7c30 error 4 in libnccl.so.2[7f7c7ac00000+d3d3000]",
    "mlx5_insufficient_power": "mlx5_core 0000:5c:00.0: mlx5_pcie_event:299:(pid 268269): Detected "
    "insufficient power on the PCIe slot (27W).",
    "mlx5_high_temperature": "mlx5_core 0000:5c:00.0: mlx5_port_module_event:1131:(pid 0): Port module "
    "event[warning]: module 0, High Temperature",
    "mlx5_module_error": "mlx5_core 0000:5c:00.0: Port module event[error]: module 0, Cable error, Bus stuck",
    "mlx5_access_reg_failed": "mlx5_cmd_out_err:838:(pid 1441871): ACCESS_REG(0x805) op_mod(0x1) failed, "
    "status bad resource(0x5), syndrome (0x305684), err(-22)",
    "mlx5_device_unhealthy": "mlx5_core 0000:5c:00.0: poll_health:800:(pid 0): device's health compromised "
    "- reached miss count",
    "transmit_timeout": "NETDEV WATCHDOG: eth0 (mlx5_core): transmit queue 3 timed out 5000 ms",
    "oom_kill": "Out of memory: Killed process 1234 (python) total-vm:1kB",
    "cgroup_oom_kill": "Memory cgroup out of memory: Killed process 1234 (python) total-vm:1kB",
    "machine_check": "mce: [Hardware Error]: Machine check events logged",
    "firmware_error": "{1}[Hardware Error]: Hardware error from APEI Generic Hardware Error Source: 4",
    "memory_error_corrected": "EDAC MC0: 1 CE memory read error on CPU_SrcID#0_MC#0_Chan#0_DIMM#0",
    "memory_error_uncorrected": "EDAC MC0: 1 UE memory read error on CPU_SrcID#0_MC#0_Chan#0_DIMM#0",
    "pcie_error_corrected": "pcieport 0000:17:01.0: PCIe Bus Error: severity=Corrected, type=Physical Layer",
    "pcie_error_uncorrected": "nvidia 0000:3b:00.0: PCIe Bus Error: severity=Uncorrectable (Non-Fatal), x",
    "hung_task": "INFO: task python:1234 blocked for more than 120 seconds.",
    "soft_lockup": "watchdog: BUG: soft lockup - CPU#12 stuck for 22s! [python:1234]",
    "rcu_stall": "rcu: INFO: rcu_sched self-detected stall on CPU",
    "kernel_oops": "Oops: 0002 [#1] SMP NOPTI",
    "file_system_error": "EXT4-fs error (device nvme0n1p1): ext4_find_entry:1455: inode #2",
    "xfs_corruption": "XFS (nvme1n1): Metadata Corruption detected at xfs_agf_read_verify+0x70/0xf0",
    "nfs_not_responding": "nfs: server 10.0.0.7 not responding, still trying",
    "nvme_timeout": "nvme nvme0: I/O 24 QID 3 timeout, aborting",
}


def test_every_event_has_a_sample_line() -> None:
    """So that no event is added untried."""
    assert sorted(LINES) == sorted(EVENTS)


@pytest.mark.parametrize("event", sorted(LINES))
def test_sample_lines(event: str) -> None:
    """Each line of kernel or driver matches its event and no other."""
    assert list(events_in(LINES[event])) == [event]


@pytest.mark.parametrize(
    "text",
    [
        "python[1]: segfault at 0 ip 0 sp 0 error 4 in libtorch_cpu.so[7f00+1]",
        "mlx5_core 0000:5c:00.0: PCIe slot advertised sufficient power (75W).",
        "EXT4-fs (vda): mounted filesystem r/w without journal. Quota mode: none. errors=remount-ro",
        "EDAC MC0: Giving out device to module skx_edac",
        "NVRM: GPU at PCI:0000:3b:00: GPU-8f1c6e0a-0000-1111-2222-333344445555",
    ],
)
def test_harmless_lines(text: str) -> None:
    """They hold words of the faults."""
    assert list(events_in(text)) == []


BUS = "0000:3b:00.0"
GRACE, GRACE_BUS = "Xid (PCI:0018:01:00):", "0018:01:00.0"
REGISTERS = "(0x0409a0c2 0x00000008)"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "Xid (PCI:0000:3b:00): 79, pid=1234, name=python, GPU has fallen off the bus.",
            (BUS, 79, None, False),
        ),
        ("Xid (PCI:0000:3b:00): 31, pid='<unknown>', name=<unknown>, Ch 00000010", (BUS, 31, None, False)),
        ("Xid (PCI:0000:3B:00 GPU-I:05): 94, pid=7194, Contained: CE User Channel", (BUS, 94, None, False)),
        ("Xid (0000:3b:00): 48, An uncorrectable error", (BUS, 48, None, False)),
        (f"{GRACE} 145, RLW_RXPIPE Nonfatal XC0 i0 Link 13 {REGISTERS}", (GRACE_BUS, 145, "warning", False)),
        (
            f"{GRACE} 149, NETIR_LINK_EVT  Fatal   XC0 i0 Link 08 {REGISTERS}",
            (GRACE_BUS, 149, "critical", False),
        ),
        (
            f"{GRACE} 149, pid='<unknown>', name=<unknown>, NETIR Fatal XC0 i0 Link -1 {REGISTERS}",
            (GRACE_BUS, 149, "critical", False),
        ),
        ("Xid (PCI:0000:3b:00): 150, something new", (BUS, 150, None, False)),
        (
            "Xid (PCI:0000:3b:00): 74, NVLink: fatal error detected on link 14(0x1, 0x0)",
            (BUS, 74, None, False),
        ),
        ("GPU 0000:3b:00.0: GPU has fallen off the bus.", (BUS, 79, None, True)),
        ("GPU at PCI:0000:3b:00 has fallen off the bus.", (BUS, 79, None, True)),
        (
            "The NVIDIA GPU 0000:3b:00.0 NVRM: (PCI ID: 10de:26b5) installed in this system has NVRM: "
            "fallen off the bus and is not responding to commands.",
            (BUS, 79, None, True),
        ),
    ],
)
def test_parse_xid(text: str, expected: tuple[str, int, str | None, bool]) -> None:
    """The severity is set only for codes that the driver judges at each occurrence."""
    assert parse_xid(f"NVRM: {text}") == XidLine(*expected)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "NVRM: Xid",
        "NVRM: Xid (PCI:0000:3b:00): 0, nothing",
        "NVRM: Xid (PCI:garbage): 79, x",
        "NVRM: Xid (PCI:0000:3b:00): 123456, too long",
        "Xid (PCI:0000:3b:00): 79, not from the driver",
        "nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 12028, Non-fatal, Link 32",
        "NVRM: fallen off the bus and is not responding to commands.",
        "NVRM: GPU at PCI:0000:3b:00: GPU-8f1c6e0a-0000-1111-2222-333344445555",
    ],
)
def test_lines_without_an_xid(text: str) -> None:
    """Code 0, invalid addresses, switches."""
    assert parse_xid(text) is None


def test_parse_identity() -> None:
    """The driver logs it once before the first error, so the log alone leads to the UUID."""
    uuid = "GPU-8f1c6e0a-0000-1111-2222-333344445555"
    assert parse_identity(f"NVRM: GPU at PCI:0000:3B:00: {uuid}") == (BUS, uuid)
    assert parse_identity("NVRM: GPU at PCI:0000:3B:00: GPU-short") is None


LOSS, IMPLIED, OTHER = (
    XidLine(BUS, 79, None, False),
    XidLine(BUS, 79, None, True),
    XidLine(BUS, 13, None, False),
)
ELSEWHERE = "0000:5c:00.0"


@pytest.mark.parametrize(
    "lines",
    [
        [
            (LOSS, 100.0, True),
            *((IMPLIED, at, False) for at in (100.1, 101.0, 151.0, 201.0, 251.0, 301.0, 351.0)),
        ],
        [(IMPLIED, 100.0, True), (LOSS, 101.0, False)],
        [(IMPLIED, 100.0, True), (IMPLIED._replace(bus_id=ELSEWHERE), 100.2, True)],
        [(LOSS, 100.0, True), (LOSS, 101.0, True), (IMPLIED, 101.0 + SAME_LOSS_SECONDS, True)],
        [(OTHER, 100.0, True)] * 3,
    ],
    ids=[
        "lines of one loss, for as long as the driver repeats them",
        "in either order",
        "another GPU",
        "each line with a code is an error, and so is a loss after the machine recovered",
        "other codes",
    ],
)
def test_losses(lines: list[tuple[XidLine, float, bool]]) -> None:
    """Lines about one loss of a GPU count once."""
    losses = GpuLosses()
    assert [losses.is_new_error(line, at) for line, at, _ in lines] == [new for *_, new in lines]


FORGED = (
    "NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus.",
    "NVRM: GPU 0000:3b:00.0: GPU has fallen off the bus.",
    "NVRM: GPU at PCI:0000:3b:00: GPU-01234567-89ab-cdef-0123-456789abcdef",
    "nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 20034, Fatal, Link 30",
    "EDAC MC0: 1 UE memory read error",
    "mce: [Hardware Error]: Machine check events logged",
    "Oops: 0002 [#1]",
    "XFS (sda): Metadata Corruption detected",
    "Out of memory: Killed process 1 (init)",
    "INFO: task python:1 blocked for more than 120 seconds.",
)
"""Names that a user may give to a file with code in it."""
_CRASH = "segfault at 0 ip 0000000000401136 sp 00007ffd5d0a3c40 error 6 in"


@pytest.mark.parametrize("name", FORGED)
@pytest.mark.parametrize(
    "line",
    [
        "a.out[4711]: " + _CRASH + " {}[401000+1000]",
        "traps: a.out[4711] general protection fault ip:401136 sp:7ffd5d0a3c40 error:0 in {}[401000+1000]",
    ],
)
def test_names_of_files(line: str, name: str) -> None:
    """A program that crashes in a file with such a name reports no fault of the node, and of no GPU."""
    text = line.format(name)
    assert list(events_in(text)) == []
    assert (parse_xid(text), parse_sxid(text), parse_identity(text), parse_nvlink5(text)) == (None,) * 4


@pytest.mark.parametrize(
    "name", ["Oops: 0002", "EDAC MC0: 1 UE", "XFS  Corruption", "BTRFS error", "nvidia-nvswitch"]
)
@pytest.mark.parametrize(
    ("line", "events"),
    [
        ("{}[4711]: " + _CRASH + " a.out[401000+1000]", []),
        ("{} invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0", []),
        ("CPU: 3 UID: 1000 PID: 4711 Comm: {} Not tainted 6.8.0 #1", []),
        ("[   4711]  1000  4711     1105      512        0    49152        0             0 {}", []),
        ("Memory cgroup out of memory: Killed process 4711 ({}) total-vm:1kB", ["cgroup_oom_kill"]),
        ("INFO: task {}:4711 blocked for more than 120 seconds.", ["hung_task"]),
    ],
)
def test_names_of_processes(line: str, events: list[str], name: str) -> None:
    """Nor does a process with such a name."""
    assert list(events_in(line.format(name))) == events
