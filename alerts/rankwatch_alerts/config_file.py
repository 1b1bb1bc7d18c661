"""A rule configuration from a TOML file, whose keys are the fields of RuleConfig."""

from __future__ import annotations

import tomllib
from dataclasses import fields
from pathlib import Path
from typing import Any, get_type_hints

from rankwatch_alerts.config import RuleConfig
from rankwatch_alerts.config_error import RuleConfigError

_LONGEST_SHOWN = 200
"""Characters of a wrong value that an error repeats."""


def load_config(file: Path) -> RuleConfig:
    """The defaults with what the file sets.

    Raises RuleConfigError with one sentence where the file cannot be read or parsed, or where a key,
    a type or a value is wrong.
    """
    kinds = get_type_hints(RuleConfig)
    names = [each.name for each in fields(RuleConfig)]
    settings = {}
    for name, value in _read(file).items():
        if name not in names:
            raise RuleConfigError(f"{file} has the key {name!r}; expected one of {', '.join(names)}")
        settings[name] = _typed(file, name, value, kinds[name])
    try:
        return RuleConfig(**settings)
    except RuleConfigError as error:
        raise RuleConfigError(f"in {file}, {error}") from None


def _read(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise RuleConfigError(f"could not read config file {file}: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:  # not UTF-8, not TOML, nested too deeply
        raise RuleConfigError(f"could not parse config file {file}: {error}") from None


def _typed(file: Path, name: str, value: Any, kind: type) -> Any:
    """The value as its field declares it; a whole number will do for a float. A boolean is no number."""
    accepted, expected = {
        float: ((int, float), "a number"),
        int: ((int,), "a whole number"),
        str: ((str,), "a string"),
    }[kind]
    if isinstance(value, bool) or not isinstance(value, accepted):
        shown = " ".join(repr(value)[:_LONGEST_SHOWN].split())
        raise RuleConfigError(f"in {file}, {name} is {shown}; expected {expected}")
    try:
        return kind(value)
    except OverflowError:  # TOML's whole numbers have no bound here
        raise RuleConfigError(f"in {file}, {name} is too large; expected {expected}") from None
