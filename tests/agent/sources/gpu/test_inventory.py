"""The GPUs that all collectors share: the names that schedulers give them, and whose processes they run."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from rankwatch_agent.sources.gpu.inventory import (
    FoundGpu,
    GpuFinder,
    GpuIdentity,
    GpuInventory,
    gpu_users,
    normalise_bus_id,
)

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
    assert [inventory.by_uuid(each) for each in ("GPU-a", "MIG-a", "GPU-b")] == [GPU, GPU, None]


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


FIRST = "GPU-11111111-aaaa-bbbb-cccc-0123456789ab"
SECOND = "GPU-22222222-aaaa-bbbb-cccc-0123456789ab"
SLICE = "MIG-33333333-aaaa-bbbb-cccc-0123456789ab"
HALF = "MIG-44444444-aaaa-bbbb-cccc-0123456789ab"
OTHER_HALF = "MIG-55555555-aaaa-bbbb-cccc-0123456789ab"

GPUS = (
    # Index and minor number differ: which of the two a name means is seen.
    GpuIdentity(FIRST, "0000:3b:00.0", index=0, minor_number=1, model="H100"),
    GpuIdentity(SECOND, "0000:5e:00.0", 1, 0, "H100", mig_uuids=(SLICE, HALF, OTHER_HALF)),
)
EXPORTED = (
    ("rankwatch_gpu_mig_info", (SECOND, SLICE, "1g.10gb", "7", "0")),
    ("rankwatch_gpu_mig_info", (SECOND, HALF, "1c.2g.20gb", "3", "0")),
    ("rankwatch_gpu_mig_info", (SECOND, OTHER_HALF, "1c.2g.20gb", "3", "1")),
    ("rankwatch_gpu_mig_memory_used_bytes", (SECOND, SLICE)),
)
FINDER = GpuFinder(GPUS, EXPORTED)


@pytest.mark.parametrize(
    ("device_id", "gpu", "mig"),
    [
        pytest.param(FIRST, FIRST, "", id="UUID"),
        pytest.param(f"{FIRST}::3", FIRST, "", id="a share of a GPU by time slicing"),
        pytest.param(SLICE, SECOND, SLICE, id="UUID of a MIG instance"),
        pytest.param(f"{SLICE}::0", SECOND, SLICE, id="a share of a MIG instance"),
        pytest.param(f"MIG-{SECOND}/7/0", SECOND, SLICE, id="MIG instance before R470"),
        pytest.param(f"MIG-{SECOND}/3/1", SECOND, OTHER_HALF, id="by its compute instance"),
        pytest.param(f"MIG-{FIRST}/2/0", FIRST, f"MIG-{FIRST}/2/0", id="whose UUID is not known"),
        pytest.param("nvidia0", SECOND, "", id="device node"),
        pytest.param("nvidia1/vgpu4", FIRST, "", id="a share on GKE"),
        pytest.param("nvidia0/gi7", SECOND, SLICE, id="MIG instance on GKE"),
        pytest.param("nvidia0/gi7/vgpu1", SECOND, SLICE, id="a share of a MIG instance on GKE"),
        pytest.param("nvidia0/gi3", SECOND, "gpu_instance 3", id="GPU instance with two compute instances"),
        pytest.param("gpu-0", SECOND, "", id="DRA by minor number"),
        pytest.param("gpu-0-mig-9-0-4", SECOND, "gpu-0-mig-9-0-4", id="DRA MIG instance"),
        pytest.param(FIRST.lower(), FIRST, "", id="DRA by UUID"),
    ],
)
def test_device_ids(device_id: str, gpu: str, mig: str) -> None:
    """An instance whose UUID is unknown has another name, so that it is not taken for the whole GPU."""
    assert FINDER.by_device_id(device_id) == FoundGpu(gpu, mig)


@pytest.mark.parametrize(
    "device_id",
    ["", "GPU-unknown", "MIG-unknown", "MIG-GPU-unknown/1/0", "nvidia7", "nvidia7/gi1", "nvidiactl", "gpu-9",
     "gpu-9-mig-1-2-3", "gpu-vfio-0", "nvidia٣", "nvidia0/gi", "0", "::1", "x" * 100_000, "gpu-0\n"],
)  # fmt: skip
def test_unknown_device_ids(device_id: str) -> None:
    assert FINDER.by_device_id(device_id) is None


def test_index_instead_of_minor_number() -> None:
    """A driver may hide minor numbers. Both numbers are equal on nearly all machines."""
    finder = GpuFinder([GpuIdentity(FIRST, "0000:3b:00.0", index=2, minor_number=-1, model="H100")])
    assert finder.by_device_id("nvidia2") == FoundGpu(FIRST, "")


@pytest.mark.parametrize(
    ("gpu", "found"),
    [
        ((0,), FoundGpu(FIRST, "")),
        ((1, 7), FoundGpu(SECOND, SLICE)),
        ((1, 5), FoundGpu(SECOND, "gpu_instance 5")),
        ((2,), None),
        ((2, 7), None),
    ],
)
def test_by_index(gpu: tuple[int, ...], found: FoundGpu | None) -> None:
    """As in dcgm-exporter's job map."""
    assert FINDER.by_index(*gpu) == found


def gpu(*pids: int, migs: tuple[str, ...] = ()) -> GpuIdentity:
    return GpuIdentity("GPU-0", "0000:1b:00.0", 0, 0, "NVIDIA L4", migs, pids)


def process(procfs: Path, pid: int, user: int, name: str = "python3") -> None:
    (procfs / str(pid)).mkdir()
    status = f"Name:\t{name}\nUmask:\t0022\nUid:\t{user}\t0\t0\t0\nGid:\t7\t7\t7\t7\n"
    (procfs / str(pid) / "status").write_text(status)


def test_users(tmp_path: Path) -> None:
    """All users of the processes that live, for the GPU and for each of its MIG instances."""
    process(tmp_path, 7, 1001)
    process(tmp_path, 8, 1002)
    both = frozenset((1001, 1002))
    assert gpu_users([gpu(7, 8, 9)], tmp_path) == {"GPU-0": both}
    assert gpu_users([gpu(8, 7, migs=("MIG-a",))], tmp_path) == {"GPU-0": both, "MIG-a": both}


def test_unknown(tmp_path: Path) -> None:
    """Nothing is said of a GPU without processes, or whose processes have ended."""
    process(tmp_path, 7, 1001)
    (tmp_path / "8").mkdir()
    (tmp_path / "8" / "status").write_bytes(b"Name:\tx\nUid:\t\xff\n")
    assert gpu_users([gpu(), gpu(8), gpu(9)], tmp_path) == {}


def test_multi_process_service(tmp_path: Path) -> None:
    """Its server computes for the processes of all users."""
    process(tmp_path, 7, 0, "nvidia-cuda-mps-server"[:15])
    process(tmp_path, 8, 1001)
    assert gpu_users([gpu(7, 8)], tmp_path) == {}
