"""A GPU that falls off the bus is told of by several lines, one of which may be an XID: it falls once."""

from __future__ import annotations

from typing import NamedTuple

from rankwatch_agent.sources.kernel_log.xid_line import FALLEN_OFF_THE_BUS, XidLine

SAME_FALL_SECONDS = 60.0
"""Lines about one fall lie closer together than this; some drivers repeat them for as long as it is down."""
_MAX_GPUS = 64


class _Fall(NamedTuple):
    seconds: float
    """Time of the latest line, on the log's clock."""
    explicit: bool
    """Whether a line with the code was among them."""


class Falls:
    """Says which of the lines count."""

    def __init__(self) -> None:
        self._falls: dict[str, _Fall] = {}

    def counts(self, line: XidLine, seconds: float) -> bool:
        """False for a line that tells again of a fall that was counted; True for all other errors."""
        if line.xid != FALLEN_OFF_THE_BUS:
            return True
        known = self._falls.get(line.bus_id)
        if known is None and len(self._falls) >= _MAX_GPUS:
            self._falls.clear()
        same = known if known is not None and abs(seconds - known.seconds) < SAME_FALL_SECONDS else None
        explicit = not line.implied
        self._falls[line.bus_id] = _Fall(seconds, explicit or (same is not None and same.explicit))
        return same is None or (explicit and same.explicit)
