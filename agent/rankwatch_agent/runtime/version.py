"""The version of the installed distribution."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as _installed


def version() -> str:
    """Version of the installed `rankwatch`, or `unknown` where the code runs without being installed."""
    try:
        return _installed("rankwatch")
    except PackageNotFoundError:
        return "unknown"
