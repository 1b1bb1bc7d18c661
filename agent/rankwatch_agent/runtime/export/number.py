"""Numbers as the exposition formats write them."""

from __future__ import annotations

from prometheus_client.utils import floatToGoString


def format_number(value: float) -> str:
    """As Go prints a float: 1.0, 2.5e-05, +Inf, NaN."""
    text: str = floatToGoString(value)  # type: ignore[no-untyped-call]
    return text
