"""Shares what is scarce between owners: places, time, series."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from heapq import heapify, heappop, heappush
from itertools import islice
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


def in_turns(streams: Iterable[Iterator[_Item]], *, most: int, at_once: int = 64) -> list[_Item]:
    """At most about `most` items: a few at a time of each stream, which is all that one owner has."""
    found: list[_Item] = []
    waiting = deque(streams)
    while waiting and len(found) < most:
        stream = waiting.popleft()
        part = list(islice(stream, at_once))
        found += part
        if len(part) == at_once:
            waiting.append(stream)
    return found


def excess(
    items: Iterable[_Item],
    *,
    owner: Callable[[_Item], Hashable],
    most: int,
    size: Callable[[_Item], int] = lambda _: 1,
) -> list[_Item]:
    """Return the items that go until the others fit in `most`: always the first of the owner that has most.

    So an owner with few items keeps all of them, however many the others bring.

    size: how much an item takes.
    """
    queues: dict[Hashable, deque[tuple[int, _Item, int]]] = {}
    sums: Counter[Hashable] = Counter()
    for number, item in enumerate(items):
        queues.setdefault(owner(item), deque()).append((number, item, size(item)))
        sums[owner(item)] += queues[owner(item)][-1][2]
    total = sums.total()
    largest = [(-sums[each], queue[0][0], each) for each, queue in queues.items()]
    heapify(largest)
    found: list[_Item] = []
    while total > most and largest:
        _, _, each = heappop(largest)
        _, item, taken = queues[each].popleft()
        found.append(item)
        total -= taken
        sums[each] -= taken
        if queues[each]:
            heappush(largest, (-sums[each], queues[each][0][0], each))
    return found


class Places:
    """Places for what comes one by one, where nothing that has one is taken away again.

    Once `most` are taken, each owner who has fewer than half of an equal share still gets up to that, until
    all together have twice as many.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._taken: Counter[Hashable] = Counter()

    def take(self, owner: Hashable) -> bool:
        """Take a place, if there is one for this owner."""
        taken, total = self._taken, self._taken.total()
        owners = len(taken) + (owner not in taken)
        if total >= self._most and (total >= 2 * self._most or taken[owner] >= self._most // (2 * owners)):
            return False
        taken[owner] += 1
        return True

    def free(self) -> None:
        """All places are free again."""
        self._taken.clear()
