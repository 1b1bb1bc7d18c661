"""The GPUs that all collectors share."""

from __future__ import annotations

import threading

import pytest

from rankwatch_agent.sources.gpu.inventory import GpuIdentity, GpuInventory, normalise_bus_id

GPU = GpuIdentity("GPU-a", "0000:3b:00.0", index=0, minor_number=2, model="H100", mig_uuids=("MIG-a",))


@pytest.mark.parametrize(
    "text",
    ["0000:3b:00.0", "00000000:3B:00.0", "0000:3b:00", "3B:00.0", "PCI:0000:3b:00".removeprefix("PCI:")],
)
def test_forms_of_an_address(text: str) -> None:
    """NVML pads the domain to 8 digits, the kernel to 4, and the log omits the function."""
    inventory = GpuInventory()
    inventory.publish([GPU], ())
    assert inventory.by_bus_id(text) is GPU


def test_no_address() -> None:
    """Other text comes back in lower case."""
    assert normalise_bus_id(" Not:An:Address ") == "not:an:address"
    assert GpuInventory().by_bus_id("") is None


def test_by_uuid() -> None:
    """A MIG instance leads to its GPU."""
    inventory = GpuInventory()
    inventory.publish([GPU], ())
    assert inventory.by_uuid("GPU-a") is inventory.by_uuid("MIG-a") is GPU
    assert inventory.by_uuid("GPU-b") is None


def test_first_call_waits() -> None:
    """Collectors that start together must not find an empty node. A hung driver costs only one wait."""
    inventory = GpuInventory(first_wait_seconds=3600.0)
    threading.Timer(0.05, inventory.publish, ([GPU], ())).start()
    assert inventory.gpus() == (GPU,)
    hung = GpuInventory(first_wait_seconds=0.01)
    assert hung.gpus() == ()
    assert hung.exported() == frozenset()


def test_failed_collection() -> None:
    """It ends the wait for the first one, and known GPUs stay."""
    inventory = GpuInventory(first_wait_seconds=3600.0)
    inventory.forget_exported()
    assert inventory.gpus() == ()
    inventory.publish([GPU], [("rankwatch_gpu_up", ("GPU-a",))])
    inventory.forget_exported()
    assert inventory.gpus() == (GPU,)
    assert inventory.exported() == frozenset()
