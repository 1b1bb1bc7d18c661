"""The errors of the instrumentation, all of them:

RankwatchError
├── UsageError         the API was used wrongly; raised until the first step has ended
├── IdentityError      run, rank or world size could not be found
├── BlackBoxError      a black box could not be created or read
│   └── (reason)       one word for a metric's label: truncated, version, ...
└── SettingError       a flag, an environment variable or a configuration file cannot be used
    └── FieldError     the value of one field cannot be used (rankwatch.settings)

Beside them stands how a training process says what it cannot raise.
"""

from __future__ import annotations

import logging

_log = logging.getLogger("rankwatch")


class RankwatchError(Exception):
    """Base of every error that rankwatch raises on purpose."""


class UsageError(RankwatchError):
    """The API was used wrongly."""


class IdentityError(RankwatchError):
    """Run, rank or world size could not be found, or contradict each other."""


class BlackBoxError(RankwatchError):
    """A black box could not be created or read."""

    def __init__(self, message: str, *, reason: str = "unreadable") -> None:
        super().__init__(message)
        self.reason = reason
        """One word of a small fixed set, suitable as the label of a metric."""


class SettingError(RankwatchError):
    """A flag, an environment variable or a configuration file of one of our programs cannot be used.

    The message is one sentence for the user. Training reads no such settings and never sees this error.
    """


class TrackerError(RankwatchError):
    """An experiment tracker did not take what it was sent."""


def shown(value: object) -> str:
    """Return the text of any value for a message, of at most 100 characters. Raises nothing, and reads no
    tensor on a device: that would wait for the device."""
    try:
        if getattr(value, "is_cpu", True):
            return f"{value!r:.100}"
    except Exception:  # noqa: BLE001 - the code of any object
        pass
    return f"<{type(value).__name__}>"


def warn(message: str, *arguments: object) -> None:
    """Log a warning. Raises nothing, whatever filters and handlers the script has installed."""
    try:
        _log.warning(message, *arguments)
    except Exception:  # noqa: BLE001 - a filter that raises, or the end of the stack
        return
