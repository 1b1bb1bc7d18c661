"""One record of /dev/kmsg: `priority,sequence,microseconds,flags;message`, then indented lines.

The format is that of the kernel's Documentation/ABI/testing/dev-kmsg.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_HEADER = re.compile(rb"\d{1,6},(\d{1,18}),(\d{1,18}),[^;]{0,200};")
_ESCAPED_NEWLINE = "\\x0a"


class Record(NamedTuple):
    """What the agent needs of a record."""

    sequence: int
    """Number of the record since boot; a gap means that records were overwritten."""
    seconds: float
    """Time since boot on the log's own clock, which is not set and may drift against the wall clock."""
    text: str
    """The message on one line; unprintable bytes stay escaped as the kernel writes them."""


def parse_record(line: bytes) -> Record | None:
    """The record that begins on this line; None for continuation lines and for what is no record."""
    header = _HEADER.match(line)
    if header is None:
        return None
    text = line[header.end() :].decode("utf-8", "replace")
    return Record(int(header[1]), int(header[2]) / 1e6, text.replace(_ESCAPED_NEWLINE, " ").strip())
