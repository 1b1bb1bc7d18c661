"""The collector `xid`."""

from __future__ import annotations

import pytest

from rankwatch_agent.runtime.collector import Schedule
from rankwatch_agent.runtime.errors import NotApplicable
from rankwatch_agent.sources.gpu.inventory import GpuIdentity, GpuInventory
from rankwatch_agent.sources.xid import MAX_CODES, XidCollector, XidCounter, load_table
from support.agent.process import values

GPU = GpuIdentity(uuid="GPU-a", pci_bus_id="0000:3b:00.0", index=0, minor_number=0, model="H100")


def collector(*gpus: GpuIdentity) -> tuple[XidCollector, GpuInventory, XidCounter]:
    inventory, xids = GpuInventory(), XidCounter(load_table(None))
    inventory.publish(gpus, ())
    return XidCollector(inventory=inventory, xids=xids, schedule=Schedule(5, 5)), inventory, xids


def test_severities_start_at_0() -> None:
    """So the first error is an increase."""
    xid, _, _ = collector(GPU)
    assert values([xid.collect()]) == {
        ("rankwatch_gpu_xid_events_total", "GPU-a", severity): 0
        for severity in ("info", "application", "warning", "critical")
    }


def test_error() -> None:
    """It has a count, a time and a meaning."""
    xid, _, xids = collector(GPU)
    xids.add("nvml", "GPU-a", 79, 1234.5)
    found = values([xid.collect()])
    meaning = ("79", "critical", "reboot_node", "GPU has fallen off the bus")
    assert found["rankwatch_gpu_xid_errors_total", "GPU-a", "79"] == 1
    assert found["rankwatch_gpu_xid_last_timestamp_seconds", "GPU-a", "79"] == 1234.5
    assert found["rankwatch_gpu_xid_events_total", "GPU-a", "critical"] == 1
    assert found["rankwatch_gpu_xid_events_total", "GPU-a", "info"] == 0
    assert found[("rankwatch_xid_info", *meaning)] == 1


def test_gpu_becomes_known() -> None:
    """Errors at its address move to it, and stay when the driver no longer shows the GPU."""
    xid, inventory, xids = collector()
    xids.add("kernel_log", "0000:3b:00.0", 79, None, severity="critical")
    found = values([xid.collect()])
    assert found["rankwatch_gpu_xid_errors_total", "0000:3b:00.0", "79"] == 1
    assert not [key for key in found if key[0] == "rankwatch_gpu_xid_last_timestamp_seconds"]
    inventory.publish([GPU], ())
    assert values([xid.collect()])["rankwatch_gpu_xid_errors_total", "GPU-a", "79"] == 1
    inventory.publish([], ())
    xids.add("kernel_log", "0000:3b:00.0", 79, None, severity="critical")
    found = values([xid.collect()])
    assert found["rankwatch_gpu_xid_errors_total", "GPU-a", "79"] == 2
    assert ("rankwatch_gpu_xid_errors_total", "0000:3b:00.0", "79") not in found


def test_many_codes() -> None:
    """Codes beyond the limit share one series, which has no meaning."""
    xid, _, xids = collector(GPU)
    for code in range(1, MAX_CODES + 3):
        xids.add("kernel_log", "GPU-a", code, 1.0, severity="info")
    found = values([xid.collect()])
    assert found["rankwatch_gpu_xid_errors_total", "GPU-a", "other"] == 2
    assert found["rankwatch_gpu_xid_events_total", "GPU-a", "info"] == MAX_CODES + 2
    assert len([key for key in found if key[0] == "rankwatch_xid_info"]) == MAX_CODES


def test_no_gpu_and_no_errors() -> None:
    with pytest.raises(NotApplicable):
        collector()[0].collect()
