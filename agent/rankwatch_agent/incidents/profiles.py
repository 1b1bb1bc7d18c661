"""Asks the ranks that an incident names for traces of their slowest later steps, for its bundle.

A rank answers if its run was started with `rankwatch run --profile-on-slow N`. Its traces appear beside its
black box once the run goes on, some steps after the incident.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from rankwatch import profiling, variables
from rankwatch.conventions.states import EvidenceFault
from rankwatch_agent.incidents.bundle import Bundle, BundleFolder, EvidenceError
from rankwatch_agent.incidents.episodes import Incident
from rankwatch_agent.incidents.registry import RootCause
from rankwatch_agent.incidents.untrusted_copy import copy_file
from rankwatch_agent.training.conditions import RankCondition

logger = logging.getLogger(__name__)

CHECK_SECONDS = 10.0
WATCH_SECONDS = 1800.0
"""Time after an incident in which traces of its ranks are added."""
MOST_RANKS = 4
"""Ranks asked for one incident."""
MOST_TRACES = variables.MOST_PROFILES * profiling.MOST_REQUESTS
"""Of one rank in a bundle."""


def add_profiles(bundle: Bundle) -> None:
    """Copies the traces that are there already, which somebody has asked for before."""
    for rank in bundle.ranks:
        for source in profiling.traces_beside(rank.path)[-MOST_TRACES:]:
            with bundle.part(_name(source)):
                _copy(source, bundle.folder, rank.owner)


class _Watched(NamedTuple):
    """A bundle that waits for traces."""

    folder: BundleFolder
    boxes: Mapping[Path, int]
    """Black box -> user id of its owner."""
    until: float
    tried: set[Path]
    """Traces that were copied, are not to be, or could not be."""


class ProfileWatcher:
    """Asks for traces when a bundle is complete, and adds them for half an hour."""

    def __init__(self, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._checked_at = float("-inf")
        self._watched: list[_Watched] = []

    def ask(
        self, incident: Incident, named: Sequence[RootCause], bundle: Path, free_bytes: int
    ) -> Counter[EvidenceFault]:
        """Leaves requests for the named ranks of this node that live. Returns what failed, by reason."""
        faults: Counter[EvidenceFault] = Counter()
        wanted = {each.rank for each in named}
        asked = [each for each in incident.condition.ranks if each.rank in wanted and not each.ended]
        boxes = {}
        for rank in asked[:MOST_RANKS]:
            try:
                ask_rank(rank)
                boxes[rank.path] = rank.owner
            except OSError as error:
                logger.info("could not ask rank %d for traces: %s", rank.rank, error.strerror)
                faults[EvidenceFault.PROFILE] += 1
        if boxes:
            folder = BundleFolder(bundle, max_bytes=free_bytes)
            folder.use_reserve()
            there = {each for box in boxes for each in profiling.traces_beside(box)}
            self._watched.append(_Watched(folder, boxes, self._monotonic() + WATCH_SECONDS, there))
        return faults

    def collect(self) -> Counter[EvidenceFault]:
        """Adds new traces to their bundles. Returns what failed, by reason."""
        faults: Counter[EvidenceFault] = Counter()
        now = self._monotonic()
        self._watched = [each for each in self._watched if each.until > now and each.folder.path.is_dir()]
        if not self._watched or now - self._checked_at < CHECK_SECONDS:
            return faults
        self._checked_at = now
        for watched in self._watched:
            for box, owner in watched.boxes.items():
                for source in profiling.traces_beside(box)[:MOST_TRACES]:
                    if source not in watched.tried:
                        watched.tried.add(source)
                        faults.update(_try(source, watched.folder, owner))
        return faults


def ask_rank(rank: RankCondition) -> None:
    """Leave a request for traces. Raises OSError."""
    folder = rank.path.parent
    profiling.request(folder.parent, folder.name, rank.rank)


def _try(source: Path, folder: BundleFolder, owner: int) -> list[EvidenceFault]:
    try:
        _copy(source, folder, owner)
    except EvidenceError as error:
        return [error.fault]
    return []


def _copy(source: Path, folder: BundleFolder, owner: int) -> None:
    copy_file(
        source,
        folder,
        _name(source),
        owner=owner,
        fault=EvidenceFault.PROFILE,
        max_bytes=profiling.MOST_BYTES,
    )


def _name(source: Path) -> str:
    return f"profiles/{source.name}"
