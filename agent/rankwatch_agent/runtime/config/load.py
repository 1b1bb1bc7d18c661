"""Merges flags, environment, TOML file and defaults, and remembers where each value came from."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rankwatch.conventions import environment
from rankwatch_agent.runtime.config.error import ConfigError
from rankwatch_agent.runtime.config.fields import FIELD_NAMES, AgentConfig
from rankwatch_agent.runtime.config.values import from_text, from_toml
from rankwatch_agent.runtime.errors import UserError

ENVIRONMENT_PREFIX = "RANKWATCH_AGENT_"
"""`RANKWATCH_AGENT_LISTEN` sets `listen`, and so on; `RANKWATCH_AGENT_CONFIG` names the TOML file."""
CONFIG_VARIABLE = ENVIRONMENT_PREFIX + "CONFIG"

# Kubernetes sets such variables in every pod where a Service is called rankwatch-agent.
_SERVICE_LINK = re.compile(r"(SERVICE_(HOST|PORT)|PORT)(_\w+)?")


@dataclass(frozen=True)
class EffectiveConfig:
    """The settings in force, and for each field a short text saying where its value came from."""

    values: AgentConfig
    origins: Mapping[str, str]


@dataclass(frozen=True)
class _Setting:
    value: Any
    origin: str


def load_config(
    *, flags: Mapping[str, str], environ: Mapping[str, str], file: Path | None = None
) -> EffectiveConfig:
    """The effective settings: flags win over environment, environment over file, file over default.

    `flags` maps field names to the text given. Raises UserError with one sentence that names the
    field, its value, its source and what was expected.
    """
    if file is None and environ.get(CONFIG_VARIABLE):
        file = Path(environ[CONFIG_VARIABLE])
    settings: dict[str, _Setting] = {}
    if file is not None:
        settings |= _from_file(file)
    settings |= _from_environment(environ)
    for name, text in flags.items():
        flag = flag_name(name)
        settings[name] = _Setting(_read(from_text, name, text, f"flag {flag}"), f"flag {flag}")
    return _build(settings)


def flag_name(field: str) -> str:
    """The flag that sets a field."""
    return "--" + field.replace("_", "-")


def _build(settings: Mapping[str, _Setting]) -> EffectiveConfig:
    origins = {name: settings[name].origin if name in settings else "default" for name in FIELD_NAMES}
    try:
        values = AgentConfig(**{name: setting.value for name, setting in settings.items()})
    except ConfigError as error:
        raise error.with_origin(origins[error.field]) from None
    return EffectiveConfig(values=values, origins=origins)


def _from_file(file: Path) -> dict[str, _Setting]:
    found = {}
    for name, value in _read_toml(file).items():
        if name not in FIELD_NAMES:
            raise UserError(_unknown(f"key {name!r} in {file}"))
        found[name] = _Setting(_read(from_toml, name, value, f"file {file}"), f"file {file}")
    return found


def _read_toml(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"could not read config file {file}: {error.strerror or error}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"could not parse config file {file}: {error}") from None


def _from_environment(environ: Mapping[str, str]) -> dict[str, _Setting]:
    found = {}
    # The variable the training process uses as well; the agent's own wins over it.
    if environ.get(environment.DIRECTORY):
        origin = f"environment {environment.DIRECTORY}"
        found["directory"] = _Setting(Path(environ[environment.DIRECTORY]), origin)
    for variable, text in environ.items():
        if not variable.startswith(ENVIRONMENT_PREFIX) or variable == CONFIG_VARIABLE:
            continue
        suffix = variable.removeprefix(ENVIRONMENT_PREFIX)
        name = suffix.lower()
        if name in FIELD_NAMES:
            origin = f"environment {variable}"
            found[name] = _Setting(_read(from_text, name, text, origin), origin)
        elif not _SERVICE_LINK.fullmatch(suffix):
            raise UserError(_unknown(f"environment variable {variable}"))
    return found


def _unknown(what: str) -> str:
    return f"could not use {what}: expected one of the settings {', '.join(FIELD_NAMES)}"


def _read(read: Callable[[str, Any], Any], name: str, value: Any, origin: str) -> Any:
    try:
        return read(name, value)
    except ConfigError as error:
        raise error.with_origin(origin) from None
