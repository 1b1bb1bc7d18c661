"""What the ranks of a communicator have launched: who is behind, and by how much."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec

Counts = tuple[tuple[str, int], ...]
"""Kind of collective and launches of it, sorted; of one rank."""

_MAX_BYTES = 4096
_MAX_COUNT = 1 << 63
_MAX_KINDS = 64
"""NCCL has fewer than a dozen."""
_decode = msgspec.json.Decoder(dict[str, int]).decode


class LaunchReader:
    """Reads launch counts out of JSON; most ranks have the very same text."""

    def __init__(self) -> None:
        self._known: dict[bytes, Counts] = {}
        self._kinds: set[str] = set()

    def read(self, raw: msgspec.Raw) -> Counts:
        """The counts of one rank; raises msgspec.MsgspecError or ValueError."""
        text = bytes(raw)
        known = self._known.get(text)
        if known is None:
            if len(text) > _MAX_BYTES:
                raise ValueError("the launch counts of a rank are too long")
            known = tuple(sorted(_decode(text).items()))
            if any(not 0 <= count < _MAX_COUNT for _, count in known):
                raise ValueError("a launch count is out of range")
            self._kinds.update(kind for kind, _ in known)
            if len(self._kinds) > _MAX_KINDS:
                raise ValueError("there are too many kinds of collectives")
            self._known[text] = known
        return known


def total(counts: Counts) -> int:
    """Launches of all kinds."""
    return sum(count for _, count in counts)


def spread_of(ranks: Sequence[Counts]) -> int | None:
    """Most minus fewest launches, of the kind in which that is most; None without ranks."""
    if not ranks:
        return None
    fewest, most = _extremes(ranks)
    return max((most[kind] - fewest[kind] for kind in most), default=0)


def behind_others(ranks: Sequence[Counts]) -> dict[int, int]:
    """Position -> launches behind, of each rank that has fewer in all than another.

    Where all have as many, and not of the same kinds, it is those of another mind than most.
    """
    minds = Counter(ranks)
    most = max(map(total, minds), default=0)
    late = {mind for mind in minds if total(mind) < most}
    if not late and len(minds) > 1:
        usual, often = minds.most_common(1)[0]
        late = set(minds) - {usual} if 2 * often > len(ranks) else set()
    if not late:
        return {}
    _, tops = _extremes(ranks)
    behind = {mind: max(tops[kind] - dict(mind).get(kind, 0) for kind in tops) for mind in late}
    return {at: behind[mind] for at, mind in enumerate(ranks) if mind in late}


def _extremes(ranks: Sequence[Counts]) -> tuple[dict[str, int], dict[str, int]]:
    """Fewest and most launches of each kind; a kind that a rank does not tell counts as none of it."""
    minds = [dict(mind) for mind in set(ranks)]
    kinds = {kind for mind in minds for kind in mind}
    fewest = {kind: min(mind.get(kind, 0) for mind in minds) for kind in kinds}
    return fewest, {kind: max(mind.get(kind, 0) for mind in minds) for kind in kinds}
