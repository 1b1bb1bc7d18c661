"""Whether a verdict is printed in colour."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TextIO


def wants_colour(stream: TextIO | None, environ: Mapping[str, str]) -> bool:
    """Only on a terminal, and not where NO_COLOR is set (no-color.org); None: the output is closed."""
    return stream is not None and stream.isatty() and not environ.get("NO_COLOR")
