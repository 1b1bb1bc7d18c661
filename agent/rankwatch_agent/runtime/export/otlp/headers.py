"""Headers sent with every export: credentials of the endpoint, mostly."""

from __future__ import annotations

import re
from pathlib import Path

from rankwatch_agent.runtime.errors import UserError

_LINE = re.compile(r"(?P<name>[!#$%&'*+.^_`|~0-9A-Za-z-]+)\s*=\s*(?P<value>[\x20-\x7e]*)")
"""A header's name (RFC 9110, token) and a value of printable ASCII."""


def load_headers(path: Path) -> dict[str, str]:
    """The headers in the file; raises UserError where it cannot be read or a line is no NAME=VALUE."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"could not read otlp_headers_file {path}: {reason}") from None
    try:
        return parse_headers(text)
    except ValueError as error:
        raise UserError(f"could not use otlp_headers_file {path}: {error}") from None


def parse_headers(text: str) -> dict[str, str]:
    """NAME=VALUE lines; empty ones and those that begin with # count for nothing.

    Raises ValueError with the number of a line that is wrong, never with its content: it is secret.
    """
    found = {}
    for number, line in enumerate(text.splitlines(), start=1):
        stripped = line.strip()
        if not stripped or stripped.startswith("#"):
            continue
        match = _LINE.fullmatch(stripped)
        if match is None:
            raise ValueError(f"expected NAME=VALUE in line {number}")
        found[match["name"]] = match["value"]
    return found
