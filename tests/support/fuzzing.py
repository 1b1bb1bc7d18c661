"""Settings of Hypothesis for busy machines, and documents that are almost valid."""

from __future__ import annotations

import re

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

BUSY_MACHINE = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
"""No deadline for an example, none for making it up: how long it takes is no fault of what is tested."""
_NUMBER = re.compile(rb"-?\d+(?:\.\d+)?")
_NUMBERS = (
    b"-1",
    b"0",
    b"1e400",
    b"-0.5",
    b"NaN",
    b"4294967296",
    b"9223372036854775808",
    b"9" * 400,
    b'"\xff"',
)
_BYTES = (b"", b"\xff", b"\0", b"\xed\xa0\x80", b'"', b"\n", b"{", b"]", b",")


@st.composite
def almost(draw: st.DrawFn, document: bytes) -> bytes:
    """The document with one byte, one piece or one number of it changed.

    Noise fails in the first line of a parser; what is nearly right reaches the lines behind it.
    """
    numbers = list(_NUMBER.finditer(document))
    if numbers and draw(st.booleans()):
        place = draw(st.sampled_from(numbers))
        return document[: place.start()] + draw(st.sampled_from(_NUMBERS)) + document[place.end() :]
    start = draw(st.integers(0, len(document) - 1))
    replaced = draw(st.sampled_from((0, 1, 1, 1, 4, 64)))
    byte = st.binary(min_size=1, max_size=1)
    return document[:start] + draw(st.sampled_from(_BYTES) | byte) + document[start + replaced :]
