"""Tells files of a checkpoint from other tensors that a script saves, such as predictions or a data set.

Looks at types and keys only, never at values, and never at more than a few hundred of them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from itertools import islice
from typing import Any

_MOST_ITEMS = 256
_MOST_DEPTH = 3


def holds_training_state(value: object, depth: int = _MOST_DEPTH) -> bool:
    """True if the value is or contains a module, an optimizer, or the `state_dict` of one."""
    torch: Any = sys.modules.get("torch")
    if torch is None or depth < 0 or isinstance(value, torch.Tensor):
        return False
    if isinstance(value, (torch.nn.Module, torch.optim.Optimizer)):
        return True
    if isinstance(value, dict):
        return _is_state_dict(value, torch.Tensor) or _any_holds(value.values(), depth)
    if isinstance(value, (list, tuple)):
        return _any_holds(value, depth)
    return _any_holds(getattr(value, "__dict__", {}).values(), min(depth, 1))


def is_tensor(value: object) -> bool:
    """True for a tensor of torch."""
    torch: Any = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def is_plain_tensor(value: object) -> bool:
    """True for a tensor of torch that holds all its elements, unlike a DTensor."""
    torch: Any = sys.modules.get("torch")
    if torch is None:
        return False
    # The first test spares the others, and a failed search for an attribute.
    return type(value) is torch.Tensor or (
        isinstance(value, torch.Tensor) and not hasattr(value, "placements")
    )


def _any_holds(values: Iterable[object], depth: int) -> bool:
    return any(holds_training_state(each, depth - 1) for each in islice(values, _MOST_ITEMS))


def _is_state_dict(mapping: dict[Any, Any], tensor: type) -> bool:
    if hasattr(mapping, "_metadata"):  # `Module.state_dict` gives its result this attribute
        return True
    if "param_groups" in mapping and "state" in mapping:
        return True
    return any(
        isinstance(key, str) and isinstance(each, tensor) and _names_parameter(key)
        for key, each in islice(mapping.items(), _MOST_ITEMS)
    )


def _names_parameter(key: str) -> bool:
    """True for names of parameters such as `layers.0.norm` and `weight`."""
    return "." in key or key.endswith(("weight", "bias"))
