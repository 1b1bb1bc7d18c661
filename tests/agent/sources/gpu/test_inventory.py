"""The GPUs as all collectors share them."""

from __future__ import annotations

import threading

import pytest

from rankwatch_agent.sources.gpu.inventory import GpuIdentity, GpuInventory, normalise_bus_id

GPU = GpuIdentity("GPU-a", "0000:3b:00.0", index=0, minor_number=2, model="H100", mig_uuids=("MIG-a",))


@pytest.mark.parametrize(
    "text",
    ["0000:3b:00.0", "00000000:3B:00.0", "0000:3b:00", "3B:00.0", "PCI:0000:3b:00".removeprefix("PCI:")],
)
def test_one_device_is_found_however_its_address_is_written(text: str) -> None:
    """NVML pads the domain to 8 digits, the kernel to 4, the log leaves the function out."""
    inventory = GpuInventory()
    inventory.publish([GPU], ())
    assert inventory.by_bus_id(text) is GPU


def test_text_that_is_no_address_names_no_gpu() -> None:
    """It comes back as it is."""
    assert normalise_bus_id(" Not:An:Address ") == "not:an:address"
    assert GpuInventory().by_bus_id("") is None


def test_a_gpu_is_found_by_its_uuid_and_those_of_its_instances() -> None:
    """A MIG instance belongs to its GPU."""
    inventory = GpuInventory()
    inventory.publish([GPU], ())
    assert inventory.by_uuid("GPU-a") is inventory.by_uuid("MIG-a") is GPU
    assert inventory.by_uuid("GPU-b") is None


def test_the_first_question_waits_for_the_first_look_and_no_later_one_does() -> None:
    """Collectors that start together must not find an empty node; a driver that hangs costs one wait."""
    inventory = GpuInventory(first_wait_seconds=3600.0)
    threading.Timer(0.05, inventory.publish, ([GPU], ())).start()
    assert inventory.gpus() == (GPU,)
    hung = GpuInventory(first_wait_seconds=0.01)
    assert hung.gpus() == ()
    assert hung.exported() == frozenset()


def test_a_failed_look_is_a_look() -> None:
    """Nobody waits for a driver that has failed already; what was known of it stays."""
    inventory = GpuInventory(first_wait_seconds=3600.0)
    inventory.forget_exported()
    assert inventory.gpus() == ()
    inventory.publish([GPU], [("rankwatch_gpu_up", ("GPU-a",))])
    inventory.forget_exported()
    assert inventory.gpus() == (GPU,)
    assert inventory.exported() == frozenset()
