"""The one place where label values are made fit for export, whatever a black box brought."""

from __future__ import annotations

import re
import zlib

MAX_BYTES = 256
"""Longest label value in UTF-8 bytes; Prometheus's own `label_value_length_limit` is commonly 2 kB."""

_CONTROL = re.compile("[\x00-\x09\x0b-\x1f\x7f]")
"""Control characters other than the newline, which the formats can escape. NUL ends the input of
Prometheus's parser, so that one value would cost the whole scrape."""


def fit_label_value(value: str) -> str:
    """Valid UTF-8 of at most MAX_BYTES without control characters.

    What is too long keeps its beginning and ends in `~` and the CRC-32 of the whole, so that two
    values that begin alike stay two series.
    """
    if len(value) <= MAX_BYTES and value.isascii() and value.isprintable():
        return value
    # Lone surrogates stand for bytes that were not UTF-8.
    encoded = _CONTROL.sub("\ufffd", value).encode("utf-8", "replace")
    if len(encoded) > MAX_BYTES:
        mark = f"~{zlib.crc32(value.encode('utf-8', 'surrogatepass')):08x}".encode()
        encoded = encoded[: MAX_BYTES - len(mark)] + mark
    # A character cut in two at the limit is left out.
    return encoded.decode("utf-8", "ignore")
