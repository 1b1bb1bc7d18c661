"""Kubernetes' strategic merge, as far as patches of a DaemonSet need it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from rankwatch_cli.deployment.names import Fields

LIST_KEYS: Mapping[str, str] = MappingProxyType(
    {
        "containers": "name",
        "initContainers": "name",
        "env": "name",
        "volumes": "name",
        "volumeMounts": "mountPath",
        "ports": "containerPort",
    }
)
"""Lists whose elements are told apart by a field (`x-kubernetes-patch-merge-key` in the API); any other
list is replaced as a whole."""


def merged(base: Fields, patch: Fields) -> dict[str, Any]:
    """`base` with the patch laid over it; None takes a field away."""
    result = dict(base)
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        elif isinstance(value, Mapping):
            result[key] = merged(result.get(key) or {}, value)
        elif key in LIST_KEYS:
            result[key] = _merged_list(result.get(key) or (), value, LIST_KEYS[key])
        else:
            result[key] = value
    return result


def _merged_list(base: Sequence[Fields], patch: Sequence[Fields], key: str) -> list[Fields]:
    """Elements of both, in the order of `base`; new ones come last."""
    found: dict[Any, Fields] = {each[key]: each for each in base}
    for each in patch:
        found[each[key]] = merged(found.get(each[key], {}), each)
    return list(found.values())
