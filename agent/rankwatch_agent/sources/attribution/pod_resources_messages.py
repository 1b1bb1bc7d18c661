"""The messages of the kubelet's pod-resources API that are read here, as data instead of generated code.

Names and numbers are those of `k8s.io/kubelet/pkg/apis/podresources/v1/api.proto`. Fields left out
(processors, memory, topology) are skipped when a message is parsed.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

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
