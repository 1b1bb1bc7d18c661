"""What an evidence bundle tells of its copied boxes: when they were copied, and whether their ranks lived."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from rankwatch.conventions import RankState

NAME = "ranks.json"
_MOST_BYTES = 16 << 20
_MOST_RANKS = 1 << 17


@dataclass(frozen=True, kw_only=True)
class CopiedRanks:
    """Nothing is known where there is no such file, or it makes no sense."""

    moment: float | None = None
    """When the agent last read the boxes, monotonic."""
    states: Mapping[int, RankState] = field(default_factory=dict)


def read_copied_ranks(bundle: Path) -> CopiedRanks:
    """The file of a bundle; whatever it holds is no error."""
    path = bundle / NAME
    try:
        if not path.is_file() or path.stat().st_size > _MOST_BYTES:
            return CopiedRanks()
        document = msgspec.json.decode(path.read_bytes())
    except (OSError, msgspec.MsgspecError, RecursionError):
        return CopiedRanks()
    if not isinstance(document, dict):
        return CopiedRanks()
    moment = document.get("moment_monotonic_seconds")
    if not isinstance(moment, int | float) or not 0.0 < moment < 1e10:
        moment = None
    return CopiedRanks(moment=moment, states=_states(document.get("ranks")))


def _states(ranks: object) -> dict[int, RankState]:
    found: dict[int, RankState] = {}
    by_text = {state.value: state for state in RankState}
    for each in ranks[:_MOST_RANKS] if isinstance(ranks, list) else ():
        if isinstance(each, dict) and isinstance(each.get("rank"), int):
            state = by_text.get(str(each.get("state")))
            if state is not None:
                found[each["rank"]] = state
    return found
