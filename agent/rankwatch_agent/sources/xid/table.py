"""What XID codes mean: the table that comes with the agent, corrected by the operator's own."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from rankwatch_agent.runtime.errors import UserError

INFO = "info"
APPLICATION = "application"
WARNING = "warning"
CRITICAL = "critical"
SEVERITIES = (INFO, APPLICATION, WARNING, CRITICAL)

SEVERITY_IN_LOG = frozenset(range(144, 151))
"""NVLink 5 codes: the kernel log says of each occurrence whether it is fatal."""

_CODE = re.compile(r"[1-9][0-9]{0,4}")
_ACTION = re.compile(r"[a-z][a-z0-9_]{0,63}")
_MAX_MEANING = 200


class XidMeaning(NamedTuple):
    """One code."""

    meaning: str
    severity: str
    """One of SEVERITIES."""
    action: str
    """What to do, in one word: reset_gpu, restart_app, none, ..."""


UNKNOWN = XidMeaning("unknown", WARNING, "look_up")
"""A code that no table holds."""


def load_table(override: Path | None) -> Mapping[int, XidMeaning]:
    """Every known code; what `override` says of a code wins, field by field. Raises UserError."""
    shipped = (
        resources.files("rankwatch_agent.sources.xid").joinpath("table.toml").read_text(encoding="utf-8")
    )
    table = _corrected({}, tomllib.loads(shipped), "table.toml")
    if override is not None:
        table = _corrected(table, _read(override), str(override))
    return MappingProxyType(table)


def _read(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"could not read XID table {file}: {error.strerror or error}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UserError(f"could not parse XID table {file}: {error}") from None


def _corrected(
    table: Mapping[int, XidMeaning], corrections: Mapping[str, Any], origin: str
) -> dict[int, XidMeaning]:
    corrected = dict(table)
    for key, fields in corrections.items():
        if not _CODE.fullmatch(key):
            raise UserError(f"could not use key {key!r:.100} in {origin}: expected an XID code such as 79")
        if not isinstance(fields, dict):
            raise _refused(key, fields, origin, "a table of meaning, severity, action")
        for name, value in fields.items():
            _check(f"{key}.{name}", name, value, origin)
        corrected[int(key)] = corrected.get(int(key), UNKNOWN)._replace(**fields)
    return corrected


def _check(key: str, name: str, value: object, origin: str) -> None:
    if name not in XidMeaning._fields:
        raise _refused(key, value, origin, "one of the fields meaning, severity, action")
    if name == "severity" and value not in SEVERITIES:
        raise _refused(key, value, origin, f"one of {', '.join(SEVERITIES)}")
    if name == "action" and not (isinstance(value, str) and _ACTION.fullmatch(value)):
        raise _refused(key, value, origin, "one word of lower-case letters, digits and _")
    if name == "meaning" and not (isinstance(value, str) and 0 < len(value) <= _MAX_MEANING):
        raise _refused(key, value, origin, f"a text of 1 to {_MAX_MEANING} characters")


def _refused(key: str, value: object, origin: str, expected: str) -> UserError:
    return UserError(f"could not use {key} = {value!r:.100} in {origin}: expected {expected}")
