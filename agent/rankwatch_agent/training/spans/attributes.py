"""Attributes of spans, with the names that other tools give them, bounded in length and number."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import islice

from rankwatch.conventions.traces import (
    ALIASES,
    ATTEMPT_ALIASES,
    COORDINATE_ALIASES,
    RUN_ALIASES,
    SCALARS,
    Attribute,
)
from rankwatch_agent.runtime.exposition import fit_label_value
from rankwatch_agent.runtime.spans import Value
from rankwatch_agent.training.spans.records import Process

_MAX_COORDINATES = 8


def fit(values: Mapping[Attribute, Value], aliases: Mapping[Attribute, str]) -> dict[str, Value]:
    """Attributes with their aliases; texts are bounded, and what is empty or no number is left out."""
    found: dict[str, Value] = {}
    for name, value in values.items():
        if isinstance(value, str):
            value = fit_label_value(value)
            if not value:
                continue
        elif isinstance(value, float) and not math.isfinite(value):
            value = str(value)  # a loss that is no number is what one looks for
        found[name.value] = value
        if name in aliases:
            found[aliases[name]] = value
    return found


def of_run(process: Process, values: Mapping[Attribute, Value]) -> dict[str, Value]:
    """Attributes of the span of a run."""
    named: dict[Attribute, Value] = {Attribute.RUN_CLASS: process.header.run_class}
    return fit({**_of_any(process), **named, **values}, RUN_ALIASES)


def of_attempt(process: Process, values: Mapping[Attribute, Value]) -> dict[str, Value]:
    """Attributes of the span of an attempt."""
    named: dict[Attribute, Value] = {Attribute.ATTEMPT: process.attempt}
    return fit({**_of_any(process), **named, **values}, ATTEMPT_ALIASES)


def _of_any(process: Process) -> dict[Attribute, Value]:
    identity = process.header.identity
    return {
        Attribute.RUN: process.run,
        Attribute.RUN_NAME: identity.short_name,
        Attribute.WORLD_SIZE: identity.world_size,
    }


def of_rank(process: Process, values: Mapping[Attribute, Value]) -> dict[str, Value]:
    """Attributes of a span of one rank."""
    identity = process.header.identity
    named: dict[Attribute, Value] = {
        Attribute.RUN: process.run,
        Attribute.ATTEMPT: process.attempt,
        Attribute.RANK: process.rank,
        Attribute.LOCAL_RANK: identity.local_rank,
        Attribute.WORLD_SIZE: identity.world_size,
        Attribute.NODE: identity.host,
    }
    found = fit({**named, **values}, ALIASES)
    for name, (index, size) in islice(identity.coordinates.items(), _MAX_COORDINATES):
        if alias := COORDINATE_ALIASES.get(name):
            found[f"{alias}.rank"], found[f"{alias}.size"] = index, size
    return found


def of_scalars(scalars: Mapping[str, float]) -> dict[Attribute, Value]:
    """Attributes of a step for the scalars that others name too."""
    return {SCALARS[name]: value for name, value in scalars.items() if name in SCALARS}
