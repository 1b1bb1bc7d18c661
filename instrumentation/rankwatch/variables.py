"""What the environment says of a run. A value that cannot be used is ignored, with one warning."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from rankwatch.conventions import environment
from rankwatch.errors import warn
from rankwatch.identity import as_contact

if TYPE_CHECKING:
    from datetime import datetime

_END_OF_TIME = 1e11
_FINGERPRINT_STEPS = 100
_BOX_WRITES = {"": None, "mapped": False, "copied": True}
MOST_PROFILES = 10
"""Traces of slow steps that a rank keeps at most."""


def is_on(switch: str, env: Mapping[str, str]) -> bool:
    """Return True unless the variable turns off what is on by default."""
    return env.get(switch, "1").lower() not in environment.OFF


def is_disabled(env: Mapping[str, str]) -> bool:
    """Return True if nothing at all is to be recorded."""
    return env.get(environment.DISABLE, "").lower() not in environment.OFF


def target_steps(env: Mapping[str, str]) -> int | None:
    """Return the declared number of steps; None where there is none."""
    text = env.get(environment.TARGET_STEPS, "")
    if not text or (text.isdecimal() and 0 < int(text) < 10**15):
        return int(text) if text else None
    warn("%s is %.100r, expected a whole number: it is ignored", environment.TARGET_STEPS, text)
    return None


def contact(env: Mapping[str, str]) -> str:
    """Return the declared channel or mail address of the run; empty where there is none."""
    text = env.get(environment.CONTACT, "")
    if text and not as_contact(text):
        expected = "expected #channel or name@example.com, at most 64 characters"
        warn("%s is %.100r, %s: it is ignored", environment.CONTACT, text, expected)
    return as_contact(text)


def deadline(env: Mapping[str, str]) -> float:
    """Return the declared end of the run as Unix time; 0 where there is none."""
    text = env.get(environment.DEADLINE, "")
    try:
        return unix_time(text) if text else 0.0
    except ValueError as error:
        warn("%s is %.100r, %s: it is ignored", environment.DEADLINE, text, error)
        return 0.0


def amount(variable: str, env: Mapping[str, str], expected: str = "a number") -> float:
    """Return a declared number from 0 up; 0 where there is none."""
    text = env.get(variable, "")
    try:
        found = float(text or 0)
    except ValueError:
        found = -1.0
    if 0 <= found < math.inf:
        return found
    warn("%s is %.100r, expected %s: it is ignored", variable, text, expected)
    return 0.0


def unix_time(value: float | str | datetime) -> float:
    """Return the Unix time of a number of seconds, a text or a datetime with its zone. Raises ValueError."""
    from datetime import datetime

    expected = "expected Unix seconds or a time with its zone, such as 2026-12-01T08:00Z"
    try:
        if isinstance(value, datetime) or (isinstance(value, str) and "-" in value):
            moment = value if isinstance(value, datetime) else datetime.fromisoformat(value.strip())
            if moment.tzinfo is None:
                raise ValueError(expected)
            value = moment.timestamp()
        seconds = float(value)
    except (ValueError, TypeError, OverflowError):
        raise ValueError(expected) from None
    if not 0.0 < seconds < _END_OF_TIME:
        raise ValueError(expected)
    return seconds


def profile_on_slow(env: Mapping[str, str]) -> int:
    """Return how many traces of slow steps a rank may keep; 0: it never profiles."""
    text = env.get(environment.PROFILE_ON_SLOW, "")
    if text.lower() in environment.OFF:
        return 0
    if text.isdecimal() and 1 <= int(text) <= MOST_PROFILES:
        return int(text)
    expected = f"expected 1 to {MOST_PROFILES}"
    warn("%s is %.60r, %s: no step is profiled", environment.PROFILE_ON_SLOW, text, expected)
    return 0


def boxes_are_copied(env: Mapping[str, str]) -> bool | None:
    """Return True if memory is to be copied into boxes, False if they are to be mapped; None if unsaid."""
    text = env.get(environment.BOX_WRITES, "")
    if text in _BOX_WRITES:
        return _BOX_WRITES[text]
    expected = "expected mapped or copied"
    warn("%s is %.60r, %s: it is ignored", environment.BOX_WRITES, text, expected)
    return None


def fingerprint_steps(env: Mapping[str, str]) -> int:
    """Return steps between two fingerprints of the parameters; 0: none."""
    text = env.get(environment.FINGERPRINT_STEPS, str(_FINGERPRINT_STEPS))
    if text.lower() in environment.OFF:
        return 0
    if text.isdecimal() and int(text) < 10**9:
        return int(text)
    expected = f"expected a whole number of steps: it is {_FINGERPRINT_STEPS}"
    warn("%s is %.60r, %s", environment.FINGERPRINT_STEPS, text, expected)
    return _FINGERPRINT_STEPS
