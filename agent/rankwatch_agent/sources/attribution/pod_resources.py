"""Asks the kubelet which container was given which device: gRPC over its unix socket.

Importing this costs 25 MB of memory (gRPC and protobuf), so it is left to nodes that have a kubelet.
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

_PACKAGE = "rankwatch.v1"
"""Not the kubelet's own: its name is no part of what travels, and `v1` may be taken in another pool."""

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
"""Message -> field -> its number and what it repeats: another message, strings, or nothing (one string)."""


@functools.cache
def response_class() -> Any:
    """The class of ListPodResourcesResponse; made once, in a pool of its own."""
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


MAX_ANSWER_BYTES = 16 << 20
"""gRPC's own 4 MiB are too few for a full node: NVIDIA/dcgm-exporter#509. 20,000 pods have 6.7 MB."""
MAX_DEVICES = 4096
"""Devices of all containers; sixteen GPUs cut into seven and shared by ten each are 1,120."""

_METHOD = "/v1.PodResourcesLister/List"
_OPTIONS = (
    ("grpc.max_receive_message_length", MAX_ANSWER_BYTES),
    ("grpc.enable_http_proxy", 0),
    ("grpc.enable_retries", 0),
    # Else a later channel inherits the pause after a failure, although the kubelet answers again.
    ("grpc.use_local_subchannel_pool", 1),
    # Go servers refuse the path of a socket as the name of a host.
    ("grpc.default_authority", "localhost"),
)

_RESOURCES = "nvidia.com/"
_DRA_DRIVER = "gpu.nvidia.com"
_CDI_KINDS = (f"k8s.{_DRA_DRIVER}/", _RESOURCES)
_CDI_GPU = re.compile(r"gpu-\d+(?:-mig-[\d-]+)?$")
"""Behind the id of a claim: k8s.gpu.nvidia.com/claim=<uid>-gpu-0."""
_PCI_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]", re.IGNORECASE)
"""Network cards of NVIDIA's network operator, and GPUs handed to virtual machines: none that NVML shows."""


class PodDevice(NamedTuple):
    """A device that a container was given."""

    namespace: str
    pod: str
    container: str
    device_id: str
    """As the device plugin or the DRA driver names it."""


def ask_kubelet(socket: Path, timeout_seconds: float) -> bytes:
    """The kubelet's answer, not yet parsed; raises CollectError.

    Each call has a connection of its own: a kubelet that restarts makes a new socket, and between two
    calls nothing is left behind, neither a thread nor an attempt to connect.
    """
    target = f"unix://{quote(str(socket.absolute()))}"
    try:
        with grpc.insecure_channel(target, options=_OPTIONS) as channel:
            answer: bytes = channel.unary_unary(_METHOD)(b"", timeout=timeout_seconds)
    except grpc.RpcError as error:
        raise CollectError(f"could not ask the kubelet at {socket}: {_reason(error)}") from None
    return answer


def parse_answer(answer: bytes) -> list[PodDevice]:
    """The devices of NVIDIA in the answer, each once; raises CollectError.

    Pods that have ended may still be among them (kubernetes/kubernetes#132020), and several may share
    a device.
    """
    response = response_class()()
    try:
        response.ParseFromString(answer)
    except DecodeError:
        raise CollectError("could not parse the kubelet's answer: it is no list of pod resources") from None
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
            yield from _claimed(resource)


def _claimed(resource: Any) -> Iterator[str]:
    """Devices of one resource of a claim; older kubelets tell only names of CDI devices."""
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
