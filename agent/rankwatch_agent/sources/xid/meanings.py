"""What XID codes mean: a table shipped with the agent, which the operator can correct.

NVLink 5 errors (XID 144 to 150) have a second table. There the action depends on the subcode and on the
registers in the line of the kernel log.
"""

from __future__ import annotations

import logging
import re
import tomllib
from collections.abc import Iterable, Mapping
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
LOG_LEVELS = {CRITICAL: logging.ERROR, WARNING: logging.WARNING}
"""Level of the log line about an error of a severity; INFO for the others."""

SEVERITY_IN_LOG = frozenset(range(144, 151))
"""NVLink 5 codes: the kernel log states for each error whether it is fatal."""

_CODE = re.compile(r"[1-9][0-9]{0,4}")
_ACTION = re.compile(r"[a-z][a-z0-9_]{0,63}")
_MAX_MEANING = 200


class XidMeaning(NamedTuple):
    """The entry of one code."""

    meaning: str
    severity: str
    """One of SEVERITIES."""
    action: str
    """What to do, as one word: reset_gpu, restart_app, none, ..."""


UNKNOWN = XidMeaning("unknown", WARNING, "look_up")
"""Stands for every code that is not in the table."""


def load_table(override: Path | None) -> Mapping[int, XidMeaning]:
    """The shipped table; fields that `override` sets replace the shipped ones. Raises UserError."""
    shipped = (
        resources.files("rankwatch_agent.sources.xid").joinpath("table.toml").read_text(encoding="utf-8")
    )
    table = _override({}, tomllib.loads(shipped), "table.toml")
    if override is not None:
        table = _override(table, _read(override), str(override))
    return MappingProxyType(table)


def _read(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"could not read XID table {file}: {error.strerror or error}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UserError(f"could not parse XID table {file}: {error}") from None


def _override(
    table: Mapping[int, XidMeaning], overrides: Mapping[str, Any], origin: str
) -> dict[int, XidMeaning]:
    merged = dict(table)
    for key, fields in overrides.items():
        if not _CODE.fullmatch(key):
            raise UserError(f"could not use key {key!r:.100} in {origin}: expected an XID code such as 79")
        if not isinstance(fields, dict):
            raise _refused(key, fields, origin, "a table of meaning, severity, action")
        for name, value in fields.items():
            _check(f"{key}.{name}", name, value, origin)
        merged[int(key)] = merged.get(int(key), UNKNOWN)._replace(**fields)
    return merged


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


_V1_BITS = 3
"""Drivers below R575 put three more bits (the number of the unit) below the bits that the rules name."""


class Nvlink5Error(NamedTuple):
    """One error as the driver logs it."""

    xid: int
    subcode: str
    """The part of NVLink, such as RLW_SRC_TRACK."""
    link: int
    """-1 where the error belongs to no single link."""
    interrupt: int
    """IntrInfo, the first register."""
    status: int | None
    """ErrorStatus, the second register; None where the line lacks it."""


class Nvlink5Rule(NamedTuple):
    """One row of NVIDIA's table; nvlink5.toml explains the fields."""

    xid: int
    subcodes: frozenset[str]
    action: str
    details: frozenset[int] = frozenset({0})
    statuses: frozenset[int] | None = None
    """None for any."""
    reset_if_set: int | None = None
    investigate: str = ""

    def fits(self, error: Nvlink5Error) -> bool:
        """Whether the rule covers this error."""
        return (
            error.xid == self.xid
            and error.subcode in self.subcodes
            and (error.interrupt >> 20) & 0x3F in self.details
            and (self.statuses is None or error.status in self.statuses)
        )

    def action_for(self, error: Nvlink5Error) -> str:
        """What to do about an error that the rule covers, as one word."""
        if self.reset_if_set is None:
            return self.action
        # Below R575 the lowest five bits hold the number of the unit: 1 for XID 144, 2 for 145, ...
        old = error.interrupt & 0x1F == error.xid - 143
        return "reset_gpu" if error.interrupt >> self.reset_if_set + _V1_BITS * old & 1 else self.action


def load_rules() -> tuple[Nvlink5Rule, ...]:
    """The rules shipped with the agent."""
    text = resources.files("rankwatch_agent.sources.xid").joinpath("nvlink5.toml").read_text(encoding="utf-8")
    return tuple(_rule(fields) for fields in tomllib.loads(text)["rule"])


def rule_for(rules: Iterable[Nvlink5Rule], error: Nvlink5Error) -> Nvlink5Rule | None:
    """The rule that covers the error; None where there is none."""
    return next((rule for rule in rules if rule.fits(error)), None)


def _rule(fields: dict[str, object]) -> Nvlink5Rule:
    sets = {
        name: frozenset(found)
        for name in ("subcodes", "details", "statuses")
        if isinstance(found := fields.get(name), list)
    }
    return Nvlink5Rule(**{**fields, **sets})  # type: ignore[arg-type]  # the file is ours and a test loads all of it
