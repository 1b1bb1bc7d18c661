"""A rule configuration as a TOML file that loads to the same rules."""

from __future__ import annotations

import json
from dataclasses import asdict

from rankwatch_alerts.config import RuleConfig


def to_toml(config: RuleConfig) -> str:
    """One line per field."""
    return "".join(f"{name} = {_value(value)}\n" for name, value in asdict(config).items())


def _value(value: str | float) -> str:
    # Texts are printable ASCII (config_checks), which JSON and TOML quote alike.
    return json.dumps(value) if isinstance(value, str) else repr(value)
