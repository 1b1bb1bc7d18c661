"""GPUs cut into MIG instances."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from rankwatch_agent.sources.gpu.reading.activity import profile
from support.gpu.nvml_node import split_into_instances
from support.gpu.reading import Node, values_of

MIB = 1 << 20


def cut(node: Node, index: int = 0) -> tuple[str, str]:
    """Cut a GPU in two; returns the UUIDs of the instances."""
    node.driver.update(lambda fake: split_into_instances(fake["gpus"][index]))
    first, second = (each["uuid"] for each in node.driver.node["gpus"][index]["mig"]["devices"])
    return first, second


def test_instances(node: Node) -> None:
    """Identity, memory and activity, labelled by GPU and instance."""
    first, second = cut(node)
    node.values_with_activity(0)
    values = node.values_with_activity(0)
    assert values["mig_info", first, "3g.40gb", "1", "0"] == 1.0
    assert values["mig_info", second, "3g.40gb", "2", "0"] == 1.0
    assert values["mig_memory_total_bytes", first] == 40_448 * MIB
    assert values["mig_memory_used_bytes", second] == 2000 * MIB
    assert values["mig_activity_ratio", first, "sm"] == 0.12
    assert values["mig_activity_ratio", second, "sm"] == 0.22


def test_whole_gpu(node: Node) -> None:
    """It has no utilisation and activity, but does not lack the feature: the mode hides it."""
    uuids = cut(node)
    gpu = node.read().gpus[0]
    values = values_of(gpu)
    assert not [
        key for key in values if key[0] in ("utilization_ratio", "activity_ratio", "counters_suspect")
    ]
    assert values["memory_total_bytes",] == 81559 * MIB
    assert "utilization" not in gpu.unsupported
    assert gpu.mig_uuids == uuids


def test_compute_instances(node: Node) -> None:
    """GPM measures the GPU instance: counted for both, its activity would count twice."""
    cut(node)
    node.driver.update(
        lambda fake: fake["gpus"][0]["mig"]["devices"][1].update(gpu_instance=1, compute_instance=1)
    )
    node.values_with_activity(1)
    values = node.values_with_activity(1)
    assert values
    assert not [key for key in node.values(0) if key[0] == "mig_activity_ratio"]


def test_no_mig(node: Node) -> None:
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
def test_profile(name: str | None, slices: tuple[int, int, int] | None, expected: str) -> None:
    """From the name, else from slices and memory, as nvidia-smi writes it."""
    attributes = slices and SimpleNamespace(
        computeInstanceSliceCount=slices[0], gpuInstanceSliceCount=slices[1], memorySizeMB=slices[2]
    )
    assert profile(name, attributes) == expected
