"""The fingerprints of a rank's parameters, so that rules can compare the ranks of a run at the same step.

Nodes are scraped at different moments, and between two scrapes a fast run takes many fingerprints. So the
newest one is exported on several levels: level 0 has each of them, and each further level only every eighth
of the level before. Some level changes seldom enough for all nodes to show the same step.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import NamedTuple

from rankwatch.blackbox import layout
from rankwatch_agent.runtime.collector import Series, sample

LEVELS = 4
FACTOR = 8
_DIGEST_BYTES = 6
"""A value of a metric holds 53 bits exactly."""
_LONGEST_SECONDS = 3600.0
_MOST_MEMBERS = 4
"""Sets of ranks that a rank is compared with."""


class Fingerprint(NamedTuple):
    """A fingerprint of all parameters that the same ranks hold."""

    step: int
    value: int
    """48 bits of a hash over both sums."""


class RankFingerprints:
    """The newest fingerprints of one rank."""

    def __init__(self) -> None:
        self.newest: dict[tuple[str, int], Fingerprint] = {}
        """Ranks that must be equal, level -> the newest fingerprint of that level."""
        self.norms: dict[tuple[str, int], float] = {}
        """The gradient norm of the step of each of them, where it is known."""
        self._norm = (-1, 0.0)
        """Step and value of the last gradient norm."""
        self.seconds = 0.0
        """That all of them took."""
        self.count = 0

    def begin_process(self) -> None:
        """Note that another process takes the rank, maybe from an earlier step."""
        self.newest.clear()
        self.norms.clear()
        self._norm = (-1, 0.0)

    def take(self, members: str, seconds: float, raw: bytes, at: int) -> None:
        """Take a record. That of a group of parameters is for whoever reads the black box."""
        step, weighted, hashed, every, group = layout.FINGERPRINT.unpack_from(raw, at)
        if group or step < 0 or every < 1 or not members:
            return
        known = {each for each, _ in self.newest}
        if members not in known and len(known) >= _MOST_MEMBERS:
            return
        if 0.0 <= seconds < _LONGEST_SECONDS:
            self.seconds += seconds
            self.count += 1
        fingerprint = Fingerprint(step, value_of(weighted, hashed))
        for level in range(level_of(step, every) + 1):
            self.newest[members, level] = fingerprint
            self.norms.pop((members, level), None)
        self.take_norm(*self._norm)

    def take_norm(self, step: int, norm: float) -> None:
        """Take the gradient norm of a step. It may come before the fingerprint of the step, or after it."""
        self._norm = (step, norm)
        for key, each in self.newest.items():
            if each.step == step:
                self.norms[key] = norm

    def series(self, key: tuple[str, str]) -> Iterator[Series]:
        """Yield the series of the rank; none where it takes no fingerprints."""
        for (members, level), each in self.newest.items():
            labels = (*key, members, str(level))
            yield sample("rankwatch_rank_fingerprint", labels, each.value)
            yield sample("rankwatch_rank_fingerprint_step", labels, each.step)
            if (members, level) in self.norms:
                norm = self.norms[members, level]
                yield sample("rankwatch_rank_fingerprint_gradient_norm", labels, norm)
        if self.count:
            yield sample("rankwatch_rank_fingerprints_total", key, self.count)
            yield sample("rankwatch_rank_fingerprint_seconds_total", key, self.seconds)


def level_of(step: int, every: int) -> int:
    """Return the highest level that shows the fingerprint of this step, with one every so many steps."""
    number, level = step // every, 0
    while level < LEVELS - 1 and number % FACTOR ** (level + 1) == 0:
        level += 1
    return level


def value_of(weighted: int, hashed: int) -> int:
    """Return both sums as a number that a metric can hold."""
    both = weighted.to_bytes(8, "little") + hashed.to_bytes(8, "little")
    return int.from_bytes(hashlib.blake2b(both, digest_size=_DIGEST_BYTES).digest(), "little")
