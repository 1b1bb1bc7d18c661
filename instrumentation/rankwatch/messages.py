"""What rankwatch has to say to whoever runs the training."""

from __future__ import annotations

import logging

_log = logging.getLogger("rankwatch")


def warn(message: str, *arguments: object) -> None:
    """Log a warning. Raises nothing, whatever filters and handlers the script has installed."""
    try:
        _log.warning(message, *arguments)
    except Exception:  # noqa: BLE001 - a filter that raises, or the end of the stack
        return
