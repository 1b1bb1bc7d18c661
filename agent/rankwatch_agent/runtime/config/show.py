"""The effective configuration as a TOML file that loads to the same settings."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rankwatch_agent.runtime.config.fields import FIELD_NAMES
from rankwatch_agent.runtime.config.load import EffectiveConfig


def to_toml(config: EffectiveConfig) -> str:
    """One line per setting, each with a comment saying where its value came from."""
    return "".join(
        _line(name, getattr(config.values, name), config.origins[name]) + "\n" for name in FIELD_NAMES
    )


def _line(name: str, value: Any, origin: str) -> str:
    comment = " ".join(origin.split())
    if value is None:
        return f"# {name} is not set  # {comment}"
    return f"{name} = {toml_value(value)}  # {comment}"


def toml_value(value: Any) -> str:
    """A setting as the right-hand side of a line of TOML."""
    if isinstance(value, str | Path):
        return _quoted(str(value))
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_quoted(key)} = {each!r}" for key, each in value.items()) + "}"
    if isinstance(value, Sequence):
        return "[" + ", ".join(toml_value(each) for each in value) + "]"
    return repr(value)


def _quoted(text: str) -> str:
    # A basic string of TOML escapes as JSON does, except for DEL. Lone surrogates (from a path that
    # is not UTF-8) exist in neither.
    readable = text.encode("utf-8", "replace").decode("utf-8")
    return json.dumps(readable, ensure_ascii=False).replace("\x7f", "\\u007f")
