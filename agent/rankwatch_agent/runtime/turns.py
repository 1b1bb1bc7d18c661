"""Shares what is scarce between owners: places, time, series."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterable
from heapq import heapify, heappop, heappush
from typing import TypeVar

_Item = TypeVar("_Item")


def take_turns(
    items: Iterable[_Item],
    *,
    owner: Callable[[_Item], Hashable],
    use: Callable[[_Item], float],
    most: float,
) -> list[_Item]:
    """Use the items until `most` is used up, always next one of the owner that has used least.

    So an owner with few items gets all of them, however many the others have. Items of one owner keep their
    order.

    use: returns how much the item took.

    Returns the items that were left out.
    """
    queues: dict[Hashable, deque[_Item]] = {}
    for item in items:
        queues.setdefault(owner(item), deque()).append(item)
    turns = [(0.0, number, queue) for number, queue in enumerate(queues.values())]
    heapify(turns)
    used = 0.0
    while turns and used < most:
        before, number, queue = heappop(turns)
        taken = use(queue.popleft())
        used += taken
        if queue:
            heappush(turns, (before + taken, number, queue))
    return [item for _, _, queue in sorted(turns, key=lambda turn: turn[1]) for item in queue]


def share(
    items: Iterable[_Item], *, owner: Callable[[_Item], Hashable], most: int
) -> tuple[list[_Item], list[_Item]]:
    """Split the items into at most `most` that their owners picked in turns, and the others."""
    picked: list[_Item] = []

    def pick(item: _Item) -> float:
        picked.append(item)
        return 1.0

    others = take_turns(items, owner=owner, use=pick, most=most)
    return picked, others


def crowding(items: Iterable[_Item], *, owner: Callable[[_Item], Hashable]) -> _Item:
    """The first item of the owner that has most: the one that goes where there are too many."""
    listed = list(items)
    counts = Counter(map(owner, listed))
    return max(listed, key=lambda item: counts[owner(item)])
