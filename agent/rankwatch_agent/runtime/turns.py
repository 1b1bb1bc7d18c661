"""Shares what is scarce between owners: places, time, series."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from heapq import heapify, heappop, heappush
from itertools import islice
from typing import TypeVar

_Item = TypeVar("_Item")


class Turns(Iterable[_Item]):
    """Gives out the items until `most` is used up, always next one of the owner that has used least.

    So an owner with few items gets all of them, however many the others have. Items of one owner keep their
    order.

    spent: returns what is used up so far, such as a clock: what the caller takes for an item counts.
    """

    def __init__(
        self,
        items: Iterable[_Item],
        *,
        owner: Callable[[_Item], Hashable],
        spent: Callable[[], float],
        most: float,
    ) -> None:
        self._queues: dict[Hashable, deque[_Item]] = {}
        for item in items:
            self._queues.setdefault(owner(item), deque()).append(item)
        self._spent = spent
        self._most = most

    def __iter__(self) -> Iterator[_Item]:
        began = before = self._spent()
        turns = [(0.0, number, queue) for number, queue in enumerate(self._queues.values())]
        while turns and before - began < self._most:
            used, number, queue = heappop(turns)
            yield queue.popleft()
            now = self._spent()
            if queue:
                heappush(turns, (used + now - before, number, queue))
            before = now

    @property
    def left(self) -> list[_Item]:
        return [item for queue in self._queues.values() for item in queue]


def share(
    items: Iterable[_Item], *, owner: Callable[[_Item], Hashable], most: int
) -> tuple[list[_Item], list[_Item]]:
    """Split the items into at most `most` that their owners picked in turns, and the others."""
    picked: list[_Item] = []
    turns = Turns(items, owner=owner, spent=lambda: len(picked), most=most)
    for each in turns:
        picked.append(each)  # one by one: each counts at once
    return picked, turns.left


def in_turns(streams: Iterable[Iterator[_Item]], *, most: int, at_once: int = 64) -> list[_Item]:
    """Take at most about `most` items: a few at a time of each stream, which is all that one owner has."""
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
        """Free all places."""
        self._taken.clear()
