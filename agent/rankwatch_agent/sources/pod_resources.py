"""Client of the kubelet's pod-resources API: lists the devices of all containers, by gRPC over a unix socket.

Importing this module costs 25 MB of memory (gRPC and protobuf), so only nodes with a kubelet do it. The
messages are declared as data instead of generated code. Names and numbers are those of
`k8s.io/kubelet/pkg/apis/podresources/v1/api.proto`; fields left out (processors, memory, topology) are
skipped when a message is parsed.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from rankwatch_agent.runtime.errors import CollectError

MAX_ANSWER_BYTES = 16 << 20
"""gRPC's default of 4 MiB is too small for a node (NVIDIA/dcgm-exporter#509).

20,000 pods take 6.7 MB.
"""
MAX_DEVICES = 4096
"""Devices of all containers. Sixteen GPUs cut into seven and shared by ten each are 1,120."""

_METHOD = "/v1.PodResourcesLister/List"
_OPTIONS = (
    ("grpc.max_receive_message_length", MAX_ANSWER_BYTES),
    ("grpc.enable_http_proxy", 0),
    ("grpc.enable_retries", 0),
    # Otherwise a later channel inherits the backoff after a failure, although the kubelet answers again.
    ("grpc.use_local_subchannel_pool", 1),
    # Go servers refuse the path of a socket as a host name.
    ("grpc.default_authority", "localhost"),
)

_RESOURCES = "nvidia.com/"
_DRA_DRIVER = "gpu.nvidia.com"
_CDI_KINDS = (f"k8s.{_DRA_DRIVER}/", _RESOURCES)
_CDI_GPU = re.compile(r"gpu-\d+(?:-mig-[\d-]+)?$")
"""Follows the id of a claim: k8s.gpu.nvidia.com/claim=<uid>-gpu-0."""
_PCI_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]", re.IGNORECASE)
"""Network cards of NVIDIA's network operator, and GPUs passed to virtual machines: NVML has none of them."""

_PACKAGE = "rankwatch.v1"
"""Not the kubelet's `v1`, which may be taken in another pool. The name is not part of a message."""

_FIELDS: Mapping[str, Mapping[str, tuple[int, str]]] = {
    "ListPodResourcesResponse": {"pod_resources": (1, "PodResources")},
    "PodResources": {"name": (1, ""), "namespace": (2, ""), "containers": (3, "ContainerResources")},
    "ContainerResources": {
        "name": (1, ""),
        "devices": (2, "ContainerDevices"),
        "dynamic_resources": (5, "DynamicResource"),
    },
    "ContainerDevices": {"resource_name": (1, ""), "device_ids": (2, "string")},
    # Number 1 was class_name, which the kubelet no longer sends.
    "DynamicResource": {"claim_resources": (4, "ClaimResource")},
    "ClaimResource": {"cdi_devices": (1, "CDIDevice"), "driver_name": (2, ""), "device_name": (4, "")},
    "CDIDevice": {"name": (1, "")},
}
"""Message -> field -> its number, and what it repeats: a message, `string`, or nothing (one string)."""


class PodDevice(NamedTuple):
    """A device allocated to a container."""

    namespace: str
    pod: str
    container: str
    device_id: str
    """As the device plugin or the DRA driver names it."""


def ask_kubelet(socket: Path, timeout_seconds: float) -> bytes:
    """Return the kubelet's unparsed answer. Raises CollectError.

    Each call has a connection of its own: a kubelet that restarts makes a new socket. No thread and no
    connection attempt outlives the call.
    """
    target = f"unix://{quote(str(socket.absolute()))}"
    try:
        with grpc.insecure_channel(target, options=_OPTIONS) as channel:
            answer: bytes = channel.unary_unary(_METHOD)(b"", timeout=timeout_seconds)
    except grpc.RpcError as error:
        raise CollectError(f"could not ask the kubelet at {socket}: {_reason(error)}") from None
    return answer


def parse_answer(answer: bytes) -> list[PodDevice]:
    """Return NVIDIA's devices in the answer, each once. Raises CollectError.

    Pods that have ended may still be listed (kubernetes/kubernetes#132020), and several may share a device.
    """
    response = response_class()()
    try:
        response.ParseFromString(answer)
    except DecodeError:
        raise CollectError("could not parse the kubelet's answer as a list of pod resources") from None
    found: dict[PodDevice, None] = {}
    for pod in response.pod_resources:
        for container in pod.containers:
            for device_id in _device_ids(container):
                found[PodDevice(pod.namespace, pod.name, container.name, device_id)] = None
                if len(found) > MAX_DEVICES:
                    raise CollectError(f"could not use the kubelet's answer: more than {MAX_DEVICES} devices")
    return list(found)


def _device_ids(container: Any) -> Iterator[str]:
    for devices in container.devices:
        if devices.resource_name.startswith(_RESOURCES):
            yield from (each for each in devices.device_ids if not _PCI_ADDRESS.fullmatch(each))
    for claim in container.dynamic_resources:
        for resource in claim.claim_resources:
            yield from _claimed_ids(resource)


def _claimed_ids(resource: Any) -> Iterator[str]:
    """Yield the devices of one resource of a claim. Older kubelets report only names of CDI devices."""
    if resource.driver_name == _DRA_DRIVER and resource.device_name:
        yield resource.device_name
    elif resource.driver_name in ("", _DRA_DRIVER):
        for device in resource.cdi_devices:
            kind, _, name = device.name.partition("=")
            if kind.startswith(_CDI_KINDS) and name:
                gpu = _CDI_GPU.search(name)
                yield gpu[0] if gpu else name


def _reason(error: grpc.RpcError) -> str:
    details = error.details() or "no reason given"
    return f"{error.code().name.lower().replace('_', ' ')}: {details[:200]}"


@functools.cache
def response_class() -> Any:
    """Return the class of ListPodResourcesResponse. It is built once, in a pool of its own."""
    pool = descriptor_pool.DescriptorPool()
    pool.Add(_file())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.ListPodResourcesResponse"))


def _file() -> Any:
    file = descriptor_pb2.FileDescriptorProto(
        name="rankwatch/pod_resources.proto", package=_PACKAGE, syntax="proto3"
    )
    for name, fields in _FIELDS.items():
        message = file.message_type.add(name=name)
        for field, (number, repeats) in fields.items():
            added = message.field.add(name=field, number=number)
            added.label = added.LABEL_REPEATED if repeats else added.LABEL_OPTIONAL
            added.type = added.TYPE_MESSAGE if repeats in _FIELDS else added.TYPE_STRING
            if repeats in _FIELDS:
                added.type_name = f".{_PACKAGE}.{repeats}"
    return file
