"""Values of verdicts as JSON knows them."""

from __future__ import annotations

import math
from collections.abc import Mapping


def json_value(value: object) -> object:
    """Return the value with dicts and lists for mappings and sequences, null for NaN and infinite numbers."""
    if isinstance(value, Mapping):
        return {str(key): json_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [json_value(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
