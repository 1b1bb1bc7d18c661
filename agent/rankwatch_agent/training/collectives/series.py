"""The series of collectives: of one rank, and of the ranks of a node together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from rankwatch.blackbox.records import GroupNow
from rankwatch.conventions import metric
from rankwatch_agent.runtime.collector import Series
from rankwatch_agent.training.collectives.rendezvous import RunRendezvous
from rankwatch_agent.training.collectives.totals import (
    OVERFLOW,
    CollectiveTotals,
    GroupKey,
    RankCollectives,
)

BLACK_BOX = "black_box"
FLIGHT_RECORDER = "flight_recorder"
"""Values of the label `source`."""


class Position(NamedTuple):
    """How far a rank has come in a group; numbers count from 1, 0 stands for none yet."""

    enqueued: int | None
    """None where only sends and receives are known, whose numbers differ between ranks by design."""
    completed: int | None
    """None where completions are not seen."""
    oldest: float | None
    """Unix time at which the oldest that is not complete was enqueued; None where all are complete."""
    signature: int | None = None
    """A number made of what the oldest one is."""


def totals_series(
    key: tuple[str, str], totals: Mapping[tuple[str, str, str], CollectiveTotals]
) -> Iterator[Series]:
    """Counts, bytes, time and wait of a rank by group and operation; `key` is (run, rank)."""
    counts, sizes = metric("rankwatch_collectives_total"), metric("rankwatch_collective_bytes_total")
    seconds = metric("rankwatch_collective_seconds_total")
    waits = metric("rankwatch_collective_wait_seconds_total")
    for kind, each in totals.items():
        at = (*key, *kind)
        yield Series(counts, at, each.count)
        yield Series(sizes, at, each.bytes)
        if each.timed:
            yield Series(seconds, at, each.seconds)
        if each.wait_seconds is not None:
            yield Series(waits, at, each.wait_seconds)


def position_series(
    key: tuple[str, str], source: str, places: Mapping[GroupKey, Position]
) -> Iterator[Series]:
    """How far a rank has come in each group."""
    for group, place in places.items():
        at = (*key, *group, source)
        if place.enqueued is not None:
            yield Series(metric("rankwatch_collective_last_enqueued"), at, place.enqueued)
        if place.completed is not None:
            yield Series(metric("rankwatch_collective_last_completed"), at, place.completed)
        if place.oldest is not None:
            yield Series(metric("rankwatch_collective_oldest_incomplete_timestamp_seconds"), at, place.oldest)
        if place.signature is not None:
            yield Series(metric("rankwatch_collective_oldest_incomplete_signature"), at, place.signature)


def run_series(run: str, rendezvous: RunRendezvous) -> Iterator[Series]:
    """Transfers of a run on this node."""
    counts = metric("rankwatch_collective_transfers_total")
    seconds = metric("rankwatch_collective_transfer_seconds_total")
    sizes = metric("rankwatch_collective_bus_bytes_total")
    for kind, each in rendezvous.transfers.items():
        at = (run, *kind)
        yield Series(counts, at, each.count)
        yield Series(seconds, at, each.seconds)
        if each.bus_bytes is not None:
            yield Series(sizes, at, each.bus_bytes)


def black_box_positions(
    collectives: RankCollectives, groups: Iterable[GroupNow], wall: Callable[[float], float]
) -> dict[GroupKey, Position]:
    """How far a rank has come by its black box. Of groups that bear the same labels the first counts."""
    places: dict[GroupKey, Position] = {}
    for group in groups:
        key = collectives.key(group.number)
        if key is not None and key.group != OVERFLOW and key not in places:
            places[key] = Position(
                enqueued=group.enqueued,
                completed=collectives.completed(group.number) or None,
                oldest=wall(group.oldest) if group.oldest else None,
            )
    return places
