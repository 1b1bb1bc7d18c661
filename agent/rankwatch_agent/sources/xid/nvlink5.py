"""What an error of NVLink 5 (XID 144 to 150) asks for, by the subcode and the registers the driver logs."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from importlib import resources
from typing import NamedTuple

_V1_BITS = 3
"""Drivers below R575 have the number of the unit beside that of the part: bits above lie so much higher."""


class Nvlink5Error(NamedTuple):
    """One occurrence, as the driver logs it."""

    xid: int
    subcode: str
    """The part of NVLink, as RLW_SRC_TRACK."""
    link: int
    """-1 where it is of no single link."""
    interrupt: int
    """IntrInfo, the first register."""
    status: int | None
    """ErrorStatus, the second register; None where the line does not hold it."""


class Rule(NamedTuple):
    """One line of NVIDIA's table."""

    xid: int
    subcodes: frozenset[str]
    action: str
    details: frozenset[int] = frozenset({0})
    statuses: frozenset[int] | None = None
    """None for any."""
    reset_if_set: int | None = None
    investigate: str = ""

    def fits(self, error: Nvlink5Error) -> bool:
        """Whether this is the rule of the error."""
        return (
            error.xid == self.xid
            and error.subcode in self.subcodes
            and (error.interrupt >> 20) & 0x3F in self.details
            and (self.statuses is None or error.status in self.statuses)
        )

    def action_for(self, error: Nvlink5Error) -> str:
        """What to do about the error, in one word."""
        if self.reset_if_set is None:
            return self.action
        # Below R575 the lowest five bits are the number of the unit, 1 for XID 144 and so on.
        old = error.interrupt & 0x1F == error.xid - 143
        return "reset_gpu" if error.interrupt >> self.reset_if_set + _V1_BITS * old & 1 else self.action


def load_rules() -> tuple[Rule, ...]:
    """The rules that come with the agent."""
    text = resources.files("rankwatch_agent.sources.xid").joinpath("nvlink5.toml").read_text(encoding="utf-8")
    return tuple(_rule(fields) for fields in tomllib.loads(text)["rule"])


def rule_for(rules: Iterable[Rule], error: Nvlink5Error) -> Rule | None:
    """The rule of the error; None where the table holds none."""
    return next((rule for rule in rules if rule.fits(error)), None)


def _rule(fields: dict[str, object]) -> Rule:
    sets = {
        name: frozenset(found)
        for name in ("subcodes", "details", "statuses")
        if isinstance(found := fields.get(name), list)
    }
    return Rule(**{**fields, **sets})  # type: ignore[arg-type]  # the file is ours; a test reads all of it
