"""The kubelet's answer, from literal bytes."""

from __future__ import annotations

import pytest

from rankwatch_agent.runtime.errors import CollectError
from rankwatch_agent.sources.pod_resources import MAX_DEVICES, PodDevice, parse_answer
from support.sources.kubelet import claim, devices, pod, text


def ids(answer: bytes) -> list[str]:
    return [each.device_id for each in parse_answer(answer)]


def test_devices_with_their_containers() -> None:
    """GPUs, MIG instances and shares. Devices of other vendors are left out."""
    gpus, instance = devices("nvidia.com/gpu", "GPU-a", "GPU-b"), devices("nvidia.com/mig-1g.10gb", "MIG-c")
    nic, share = devices("rdma/hca", "mlx5_0"), devices("nvidia.com/gpu.shared", "GPU-a::1")
    answer = pod("train-0", gpus, instance, nic, namespace="research", container="trainer")
    assert parse_answer(answer + pod("web-0", share)) == [
        *(PodDevice("research", "train-0", "trainer", each) for each in ("GPU-a", "GPU-b", "MIG-c")),
        PodDevice("team", "web-0", "main", "GPU-a::1"),
    ]


def test_duplicate_devices() -> None:
    """A pod that has ended may be listed beside the present owner: both count."""
    twice = pod("a", devices("nvidia.com/gpu", "GPU-a", "GPU-a")) * 2
    listed = parse_answer(twice + pod("b", devices("nvidia.com/gpu", "GPU-a")))
    assert listed == [PodDevice("team", name, "main", "GPU-a") for name in "ab"]


def test_claimed_devices() -> None:
    """Dynamic Resource Allocation gives the driver's name of the device, or that of its CDI device."""
    assert ids(pod("a", claim("gpu-3", cdi=["k8s.gpu.nvidia.com/device=gpu-3"]))) == ["gpu-3"]
    assert ids(pod("a", claim("gpu-3-mig-9-0-4"))) == ["gpu-3-mig-9-0-4"]


@pytest.mark.parametrize(
    ("name", "device_id"),
    [
        ("k8s.gpu.nvidia.com/device=gpu-3", "gpu-3"),
        ("k8s.gpu.nvidia.com/claim=0f7a-11ee-gpu-3", "gpu-3"),
        ("k8s.gpu.nvidia.com/claim=0f7a-11ee-gpu-3-mig-9-0-4", "gpu-3-mig-9-0-4"),
        (
            "nvidia.com/gpu=GPU-11111111-aaaa-bbbb-cccc-0123456789ab",
            "GPU-11111111-aaaa-bbbb-cccc-0123456789ab",
        ),
    ],
)
def test_cdi_devices_only(name: str, device_id: str) -> None:
    """Older kubelets report neither driver nor device."""
    assert ids(pod("a", claim(driver="", cdi=[name]))) == [device_id]


def test_devices_of_other_drivers() -> None:
    """Channels between nodes, network cards, GPUs passed to a virtual machine."""
    answer = pod(
        "a",
        claim("channel-0", driver="compute-domain.nvidia.com"),
        claim(driver="", cdi=["k8s.compute-domain.nvidia.com/channel=gpu-3", "vendor.com/nic=gpu-3", "odd"]),
        devices("nvidia.com/hostdev", "0000:17:00.2"),
        devices("nvidia.com/GH100_H100", "0000:9A:00.0"),
    )
    assert ids(answer) == []


@pytest.mark.parametrize("answer", [b"", pod("a"), text(1, b"")])
def test_no_devices(answer: bytes) -> None:
    """A node without pods gives an empty answer."""
    assert ids(answer) == []


@pytest.mark.parametrize(
    "answer",
    [b"\xff" * 20, b"<html>", pod("a", devices("nvidia.com/gpu", "GPU-a"))[:-3], text(1, text(1, b"\xff"))],
)
def test_malformed_answer(answer: bytes) -> None:
    """Garbage, another protocol, half a message, names that are not text."""
    with pytest.raises(CollectError, match="as a list of pod resources"):
        parse_answer(answer)


def test_number_of_devices_is_bounded() -> None:
    """Each would become a series."""
    many = [f"GPU-a::{number}" for number in range(MAX_DEVICES + 1)]
    assert len(ids(pod("a", devices("nvidia.com/gpu", *many[1:])))) == MAX_DEVICES
    with pytest.raises(CollectError, match="more than 4096"):
        parse_answer(pod("a", devices("nvidia.com/gpu", *many)))
