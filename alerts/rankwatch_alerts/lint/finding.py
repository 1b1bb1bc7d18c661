"""What a lint rule returns."""

from __future__ import annotations

from typing import NamedTuple


class Finding(NamedTuple):
    """One fault: which rule found it, where, and what is wrong."""

    rule: str
    where: str
    message: str
