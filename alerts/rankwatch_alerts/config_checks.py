"""What a rule configuration may hold: values outside would make rules that never fire, or always do."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from urllib.parse import urlsplit

from rankwatch_alerts.config_error import RuleConfigError

MAX_TIME_SCALE = 1000.0
"""Largest divisor of times. From 240 on every default time is at its floor, so more changes nothing."""

SHORTEST_SECONDS = 0.001
"""Prometheus writes durations in whole milliseconds."""
LONGEST_SECONDS = 365 * 86400.0
"""A year: no run, and no rule about one, looks further."""

_SHARES = (
    "straggler_cost",
    "cause_share",
    "cause_cost",
    "imbalance_sigma",
    "imbalance_correlation",
    "starvation_share",
    "jitter_rank_share",
)
_JOB = re.compile(r"[\w./:-]+", re.ASCII)
# Alert and dashboard are appended as a path, and Prometheus expands braces in annotations.
_URL = re.compile(r"https?://[^\s{}?#\"\\]+")


def check_fields(values: Mapping[str, object]) -> None:
    """Check each field by itself; raises RuleConfigError for the first that cannot be used."""
    for name, value in values.items():
        if isinstance(value, int | float):
            _check_number(name, value)
        elif name.endswith("_url"):
            _expect(name, value, _is_url, "an http(s) URL without template braces, query and fragment")
        else:
            _expect(name, value, _is_job, "a name of letters, digits and _ . / : -")


def check_time_scale(time_scale: float) -> None:
    """Refuse a divisor of times that is no number above 0, or is larger than MAX_TIME_SCALE."""
    if not 0 < time_scale <= MAX_TIME_SCALE:
        expected = f"a number above 0 and at most {MAX_TIME_SCALE:g}"
        raise RuleConfigError(f"time_scale is {time_scale}; expected {expected}")


def _check_number(name: str, value: float) -> None:
    if not 0 < value < math.inf:
        raise RuleConfigError(f"{name} is {value}; expected a number above 0")
    if name.endswith("_seconds") and not SHORTEST_SECONDS <= value <= LONGEST_SECONDS:
        between = f"a number of seconds from {SHORTEST_SECONDS} to {LONGEST_SECONDS:.0f}"
        raise RuleConfigError(f"{name} is {value}; expected {between}")
    if name in _SHARES and value >= 1:
        raise RuleConfigError(f"{name} is {value}; expected a share below 1")


def _expect(name: str, value: object, holds: Callable[[str], bool], expected: str) -> None:
    if not holds(str(value)):
        raise RuleConfigError(f"{name} is {str(value)!r}; expected {expected}")


def _is_job(text: str) -> bool:
    return _JOB.fullmatch(text) is not None


def _is_url(text: str) -> bool:
    if not (text.isascii() and text.isprintable() and _URL.fullmatch(text)):
        return False
    try:
        parts = urlsplit(text)
        return bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port or an IPv6 host that is none
        return False
