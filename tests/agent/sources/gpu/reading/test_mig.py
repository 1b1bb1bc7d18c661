"""GPUs cut into MIG instances."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from rankwatch_agent.sources.gpu.reading.mig import profile
from support.gpu.nvml_node import split_into_instances
from support.gpu.reading import Node, values_of

MIB = 1 << 20


def cut(node: Node, index: int = 0) -> tuple[str, str]:
    """Cut a GPU in two; the UUIDs of the instances."""
    node.driver.update(lambda fake: split_into_instances(fake["gpus"][index]))
    first, second = (each["uuid"] for each in node.driver.node["gpus"][index]["mig"]["devices"])
    return first, second


def test_instances_have_identity_memory_and_activity(node: Node) -> None:
    """All of them series of their GPU."""
    first, second = cut(node)
    node.values_with_activity(0)
    values = node.values_with_activity(0)
    assert values["mig_info", first, "3g.40gb", "1", "0"] == 1.0
    assert values["mig_info", second, "3g.40gb", "2", "0"] == 1.0
    assert values["mig_memory_total_bytes", first] == 40_448 * MIB
    assert values["mig_memory_used_bytes", second] == 2000 * MIB
    assert values["mig_activity_ratio", first, "sm"] == 0.12
    assert values["mig_activity_ratio", second, "sm"] == 0.22


def test_the_gpu_as_a_whole_has_no_utilisation_or_activity_then(node: Node) -> None:
    """It is not said to lack the feature: the mode is what keeps it from telling."""
    uuids = cut(node)
    gpu = node.read().gpus[0]
    values = values_of(gpu)
    assert not [
        key for key in values if key[0] in ("utilization_ratio", "activity_ratio", "counters_suspect")
    ]
    assert values["memory_total_bytes",] == 81559 * MIB
    assert "utilization" not in gpu.unsupported
    assert gpu.mig_uuids == uuids


def test_compute_instances_of_one_gpu_instance_have_no_activity_of_their_own(node: Node) -> None:
    """GPM measures the GPU instance: given to both, it would count twice."""
    cut(node)
    node.driver.update(
        lambda fake: fake["gpus"][0]["mig"]["devices"][1].update(gpu_instance=1, compute_instance=1)
    )
    node.values_with_activity(1)
    values = node.values_with_activity(1)
    assert values
    assert not [key for key in node.values(0) if key[0] == "mig_activity_ratio"]


def test_a_gpu_without_mig_has_no_series_of_it(node: Node) -> None:
    """Most have none."""
    assert not [key for key in node.values(0) if key[0].startswith("mig")]


@pytest.mark.parametrize(
    ("name", "slices", "expected"),
    [
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", (1, 1, 9984), "1g.10gb"),
        ("NVIDIA H100 80GB HBM3", (1, 1, 9984), "1g.10gb"),
        (None, (1, 2, 19968), "1c.2g.20gb"),
        (None, None, ""),
    ],
)
def test_the_profile_is_in_the_name_or_computed(
    name: str | None, slices: tuple[int, int, int] | None, expected: str
) -> None:
    """From slices and memory, as nvidia-smi writes it."""
    attributes = slices and SimpleNamespace(
        computeInstanceSliceCount=slices[0], gpuInstanceSliceCount=slices[1], memorySizeMB=slices[2]
    )
    assert profile(name, attributes) == expected
