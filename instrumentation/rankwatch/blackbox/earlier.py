"""The attempts of a run that this node has seen before, by the black boxes that their ranks left."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from rankwatch.attempts import MOST_ATTEMPTS
from rankwatch.blackbox import layout
from rankwatch.blackbox.reader import Reader
from rankwatch.errors import BlackBoxError
from rankwatch.processes import own_start
from rankwatch.untrusted.folders import Folder

_MOST_BOXES = 512


def next_attempt(run: Folder, counted: int) -> int:
    """The number of the attempt that begins now: the one that the launcher counts, or a later one if ranks of
    that attempt or of a later one have run here and are gone, or live here in a later one.

    The last counts for a rank that is new here: the others may have replaced all boxes of earlier attempts.
    """
    return max([counted, *(attempt for attempt in _attempts(run) if attempt <= MOST_ATTEMPTS)])


def _attempts(run: Folder) -> Iterator[int]:
    """The least number that this attempt may have, by each box here. A rank that recorded before this process
    started, and lives no more, was in an earlier one; one that lives is in this one.

    All ranks of an attempt are started at about the same time, and record after they have imported torch."""
    this = own_start()
    if this is None:
        return
    for name in [each for each in islice(run.names(), _MOST_BOXES) if each.endswith(layout.SUFFIX)]:
        try:
            reader = Reader(run.path / name, folder=run)
        except (BlackBoxError, OSError):
            continue
        try:
            attempt = reader.header.identity.attempt
            if reader.writer_alive():
                yield attempt
            elif reader.header.started_wall < this:
                yield attempt + 1
        finally:
            reader.close()
