"""From text or TOML to the value of a field, by the type the field declares."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, get_type_hints

from rankwatch_agent.runtime.config.error import ConfigError
from rankwatch_agent.runtime.config.fields import AgentConfig

_WHOLE = "a whole number"
_NUMBER = "a number"
_TEXT = "a string"
_LIST = "a list of strings"
_TABLE = "a table of numbers"
_PAIRS = "NAME=NUMBER,NAME=NUMBER,..."


def from_text(name: str, text: str) -> Any:
    """Value of the field out of a flag or an environment variable; raises ConfigError."""
    kind = _kind(name)
    if kind == Mapping[str, float]:
        return _pairs(name, text)
    if kind in (tuple[str, ...], tuple[Path, ...]):
        return _items(kind, [part.strip() for part in text.split(",") if part.strip()])
    if kind is int:
        return _number(name, text, int, _WHOLE)
    if kind is float:
        return _number(name, text, float, _NUMBER)
    return _single(kind, text)


def from_toml(name: str, value: Any) -> Any:
    """Value of the field out of a TOML file; raises ConfigError where the type is another."""
    kind = _kind(name)
    if kind == Mapping[str, float]:
        if not (isinstance(value, dict) and all(_is_number(each) for each in value.values())):
            raise ConfigError(name, value, _TABLE)
        return {key: float(each) for key, each in value.items()}
    if kind in (tuple[str, ...], tuple[Path, ...]):
        if not (isinstance(value, list) and all(_is_text(each) for each in value)):
            raise ConfigError(name, value, _LIST)
        return _items(kind, value)
    if kind is int:
        if not isinstance(value, int) or isinstance(value, bool):
            raise ConfigError(name, value, _WHOLE)
        return value
    if kind is float:
        if not _is_number(value):
            raise ConfigError(name, value, _NUMBER)
        return float(value)
    if not _is_text(value):
        raise ConfigError(name, value, _TEXT)
    return _single(kind, value)


def _kind(name: str) -> Any:
    return get_type_hints(AgentConfig)[name]


def _single(kind: Any, text: str) -> Any:
    if kind == Path | None:
        return Path(text) if text else None
    return Path(text) if kind is Path else text


def _items(kind: Any, parts: list[str]) -> tuple[Any, ...]:
    return tuple(Path(part) for part in parts) if kind == tuple[Path, ...] else tuple(parts)


def _is_text(value: Any) -> bool:
    # No path, host or label can hold NUL; flags and environment variables cannot bring one.
    return isinstance(value, str) and "\0" not in value


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and not math.isnan(value)


def _number(name: str, text: str, kind: Callable[[str], float], expected: str) -> float:
    try:
        return kind(text)
    except ValueError:
        raise ConfigError(name, text, expected) from None


def _pairs(name: str, text: str) -> dict[str, float]:
    found = {}
    for part in filter(None, text.split(",")):
        key, _, number = part.partition("=")
        try:
            found[key.strip()] = float(number)
        except ValueError:
            raise ConfigError(name, text, _PAIRS) from None
    return found
