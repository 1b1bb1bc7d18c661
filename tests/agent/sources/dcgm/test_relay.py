"""Which series a sample of DCGM becomes."""

from __future__ import annotations

import math

import pytest

from rankwatch_agent.runtime.collector import Collection
from rankwatch_agent.sources.dcgm import DcgmSample, relay
from rankwatch_agent.sources.dcgm_fields import KNOWN_FIELDS, all_names, is_blank
from rankwatch_agent.sources.gpu.inventory import ExportedKey, GpuIdentity, GpuInventory
from support.agent.process import values

A, B = "GPU-a", "GPU-b"
ACTIVE = "DCGM_FI_PROF_GR_ENGINE_ACTIVE"


def sample(field: str, value: float, *, uuid: str = A, bus_id: str = "", **more: str) -> DcgmSample:
    return DcgmSample(field, uuid, bus_id, more.get("gpu_instance", ""), more.get("link", ""), value)


def node(*exported: ExportedKey, gpus: tuple[str, ...] = (A, B)) -> GpuInventory:
    inventory = GpuInventory()
    identities = (GpuIdentity(gpu, f"0000:{0x3B + n:02x}:00.0", n, n, "A100") for n, gpu in enumerate(gpus))
    inventory.publish(identities, exported)
    return inventory


def relayed(inventory: GpuInventory, *samples: DcgmSample) -> dict[tuple[str, ...], float]:
    return values([Collection(relay(samples, inventory).series)])


@pytest.mark.parametrize(
    ("field", "raw", "expected"),
    [
        (ACTIVE, 0.5, ("rankwatch_gpu_activity_ratio", A, "graphics", 0.5)),
        ("DCGM_FI_PROF_SM_UTIL_RATIO", 0.5, ("rankwatch_gpu_activity_ratio", A, "sm", 0.5)),
        ("DCGM_FI_PROF_PCIE_RX_BYTES", 1e9, ("rankwatch_gpu_pcie_throughput_bytes", A, "receive", 1e9)),
        ("DCGM_FI_DEV_GPU_UTIL", 50, ("rankwatch_gpu_utilization_ratio", A, 0.5)),
        ("DCGM_FI_DEV_BOARD_POWER_WATTS", 300, ("rankwatch_gpu_power_watts", A, 300)),
        ("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", 4000, ("rankwatch_gpu_energy_joules_total", A, 4.0)),
        ("DCGM_FI_DEV_SM_CLOCK", 1980, ("rankwatch_gpu_clock_hertz", A, "sm", 1.98e9)),
        ("DCGM_FI_DEV_FB_USED", 2, ("rankwatch_gpu_memory_used_bytes", A, 2 * 1024**2)),
        ("DCGM_FI_DEV_GPU_TEMP", -3, ("rankwatch_gpu_temperature_celsius", A, "core", -3)),
        ("DCGM_FI_DEV_ENC_UTIL", 7, ("rankwatch_dcgm_field", A, "", "DCGM_FI_DEV_ENC_UTIL", 7)),
    ],
)
def test_known_fields(field: str, raw: float, expected: tuple[str | float, ...]) -> None:
    """A field becomes our metric in base units, by its old and its new name. Others are relayed unchanged."""
    ((key, value),) = relayed(node(), sample(field, raw)).items()
    assert (*key, pytest.approx(value)) == expected


def test_labels_of_known_fields() -> None:
    """Each has as many label values as its metric has labels, for the GPU and for an instance."""
    for name, known in KNOWN_FIELDS.items():
        assert len(known.metric.labels) == 1 + len(known.extra), name
        if known.mig is not None:
            assert len(known.mig.labels) == 2 + len(known.extra), name


def test_series_of_nvml() -> None:
    """A series that NVML exports is not relayed; the one of the other GPU is."""
    inventory = node(("rankwatch_gpu_activity_ratio", (A, "graphics")))
    found = relayed(inventory, sample(ACTIVE, 0.5), sample(ACTIVE, 0.25, uuid=B))
    assert found == {("rankwatch_gpu_activity_ratio", B, "graphics"): 0.25}
    inventory.forget_exported()
    assert len(relayed(inventory, sample(ACTIVE, 0.5), sample(ACTIVE, 0.25, uuid=B))) == 2


def test_gpu_without_uuid() -> None:
    """Its address identifies it, in any form."""
    found = relayed(node(), sample(ACTIVE, 0.5, uuid="", bus_id="00000000:3C:00.0"))
    assert found == {("rankwatch_gpu_activity_ratio", B, "graphics"): 0.5}


def test_shared_gpu() -> None:
    """dcgm-exporter repeats its value for each pod; it is relayed once."""
    assert len(relay([sample("DCGM_FI_DEV_POWER_USAGE", 300)] * 5, node()).series) == 1


def test_mig_instance() -> None:
    """It has its own activity but no temperature. Without its UUID from NVML it goes by its number."""
    info = ("rankwatch_gpu_mig_info", (A, "MIG-x", "1g.10gb", "7", "0"))
    samples = [
        sample(field, value, gpu_instance=instance)
        for instance in ("7", "8")
        for field, value in ((ACTIVE, 0.5), ("DCGM_FI_DEV_GPU_TEMP", 41), ("DCGM_FI_DEV_ENC_UTIL", 7))
    ]
    assert relayed(node(info), *samples) == {
        ("rankwatch_gpu_mig_activity_ratio", A, "MIG-x", "graphics"): 0.5,
        ("rankwatch_gpu_mig_activity_ratio", A, "gpu_instance 8", "graphics"): 0.5,
        ("rankwatch_gpu_temperature_celsius", A, "core"): 41,
        ("rankwatch_dcgm_field", A, "MIG-x", "DCGM_FI_DEV_ENC_UTIL"): 7,
        ("rankwatch_dcgm_field", A, "gpu_instance 8", "DCGM_FI_DEV_ENC_UTIL"): 7,
    }


def test_gpu_instance_with_compute_instances() -> None:
    """dcgm-exporter does not say which of them it means, so the number stands for all."""
    infos = [("rankwatch_gpu_mig_info", (A, f"MIG-{part}", "1c.3g", "1", part)) for part in "012"]
    found = relayed(node(*infos), sample(ACTIVE, 0.5, gpu_instance="1"))
    assert list(found) == [("rankwatch_gpu_mig_activity_ratio", A, "gpu_instance 1", "graphics")]


def test_links() -> None:
    """The name of the field contains the number of the link."""
    found = relayed(node(), *[sample("DCGM_FI_DEV_NVLINK_X", n, link=str(n)) for n in (1, 2)])
    assert found == {("rankwatch_dcgm_field", A, "", f"DCGM_FI_DEV_NVLINK_X link {n}"): n for n in (1, 2)}


@pytest.mark.parametrize(
    "value",
    [math.nan, math.inf, 2**31 - 16, 2**31 - 13, 2**32 - 1, 2**47, 2**47 + 3, 2**63 - 16, 2**63 - 1, 2**64],
)
def test_blank_values(value: float) -> None:
    """Not found, not supported, not permitted."""
    assert is_blank(float(value))
    assert relayed(node(), sample("DCGM_FI_DEV_ENC_UTIL", float(value))) == {}


@pytest.mark.parametrize(
    ("field", "value"), [(ACTIVE, 1.5), (ACTIVE, -0.1), ("DCGM_FI_DEV_GPU_TEMP", 900), (ACTIVE, 100)]
)
def test_implausible_values(field: str, value: float) -> None:
    """A ratio above 1, 900 degrees."""
    assert relayed(node(), sample(field, value)) == {}


def test_unknown_devices() -> None:
    """Each counts once. Switches and lines without identity are no GPUs."""
    buses = ("00000000:99:00.0", "garbage", "")
    samples = [sample(ACTIVE, 0.5, uuid="GPU-z"), sample("DCGM_FI_DEV_GPU_TEMP", 40, uuid="GPU-z")]
    samples += [sample(ACTIVE, 0.5, uuid="", bus_id=each) for each in buses]
    result = relay(samples, node())
    assert (result.series, result.unmatched) == ((), {"GPU-z", "0000:99:00.0"})


def test_nvml_shows_no_gpu() -> None:
    """GPUs are exported under the names from dcgm-exporter."""
    samples = (sample(ACTIVE, 0.5, uuid="GPU-z"), sample(ACTIVE, 0.25, uuid="", bus_id="00000000:3B:00.0"))
    result = relay(samples, node(gpus=()))
    names = {"GPU-z", "0000:3b:00.0"}
    assert {series.labels for series in result.series} == {(name, "graphics") for name in names}
    assert (result.unmatched, result.adopted) == (frozenset(), names)


def test_names_of_a_field() -> None:
    """The setting may use the old or the new name."""
    both = {"DCGM_FI_PROF_SM_ACTIVE", "DCGM_FI_PROF_SM_UTIL_RATIO"}
    assert [all_names((name,)) for name in sorted(both)] == [both, both]
    assert all_names(("X",)) == {"X"}
