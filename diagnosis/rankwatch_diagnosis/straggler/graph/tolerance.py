"""How far the times of ranks that share a clock may disagree."""

from __future__ import annotations

import numpy as np

from rankwatch_diagnosis.operations.table import OperationTable

ROUNDING_SECONDS = 2e-6
"""Start and duration rounded to a microsecond each. Seconds since 1970 are exact to 0.24 us as it is."""
_SECONDS = 2e-3
"""Members of one collective leave it 0.3 ms apart in real jobs, and clocks drift by 2 ms in a long step."""
_SHARE_OF_STEP = 0.01
"""In a short step 2 ms would be much."""


def clock_seconds(table: OperationTable) -> float:
    """Seconds by which one moment may differ between ranks of one clock."""
    span = table.median_span_seconds()
    return _SECONDS if np.isnan(span) else min(_SECONDS, _SHARE_OF_STEP * span)
