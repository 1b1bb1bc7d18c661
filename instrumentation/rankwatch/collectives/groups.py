"""The process groups in which the rank communicates, and their tables in the black box.

A group is identified by PyTorch's name for it, which is unique. Its label is the description that the trainer
gave (`default_pg`, `mesh_tp`), which all groups of one mesh dimension share. Two groups with one label but
other members have two numbers of names in the black box, with the same text.
"""

from __future__ import annotations

import importlib
import itertools
import weakref
from collections.abc import Callable
from typing import Any

from rankwatch.blackbox import layout
from rankwatch.blackbox.layout import Now
from rankwatch.blackbox.writer import Writer
from rankwatch.members import members_text

_MOST_KNOWN = 1024
"""Groups that are remembered before destroyed ones are forgotten."""
_TRIES = 8


class Group:
    """One process group: its counters, and its row in the tables of the black box.

    number: of its name. place: its row, None if the tables are full.
    """

    def __init__(self, writer: Writer, number: int, place: int | None) -> None:
        self.number = number
        self._writer = writer
        self._collectives = itertools.count()
        self._point_to_point = itertools.count()
        self._incomplete: dict[object, float] = {}
        self.process_group: Callable[[], Any] = lambda: None
        """Returns the process group that it counts for; None once that is gone."""
        self._has_row = place is not None
        row = place or 0
        self._enqueued_word = Now.GROUP_ENQUEUED + row
        self._oldest_word = Now.GROUP_OLDEST + row
        self._operation_word = Now.GROUP_OPERATION + row

    def gone(self) -> bool:
        """Return True once PyTorch has destroyed the process group."""
        process_group = self.process_group()
        return process_group is None or process_group not in _world().pg_map

    def collective(self, operation: int) -> int:
        """Count one more enqueued collective; returns its number, from 0."""
        count = next(self._collectives)
        if self._has_row:
            integers = self._writer.integers
            integers[self._operation_word] = operation
            integers[self._enqueued_word] = count + 1
        return count

    def collective_in_flight(self, call: object, operation: int, since: float) -> int:
        """Count one more enqueued collective whose end will be seen; returns its number, as `collective`."""
        count = next(self._collectives)
        incomplete = self._incomplete
        incomplete[call] = since
        if self._has_row:
            writer = self._writer
            integers = writer.integers
            integers[self._operation_word] = operation
            integers[self._enqueued_word] = count + 1
            if len(incomplete) == 1:
                writer.floats[self._oldest_word] = since
        return count

    def refused(self, count: int) -> None:
        """Take back the collective with this number: its arguments were refused."""
        self._collectives = itertools.count(count)
        if self._has_row:
            self._writer.integers[self._enqueued_word] = count

    def point_to_point(self, operation: int) -> int:
        """Count one more enqueued send or receive; returns its number among these, from 0."""
        if self._has_row:
            self._writer.integers[self._operation_word] = operation
        return next(self._point_to_point)

    def in_flight(self, operation: object, since: float) -> None:
        """Note that the operation is not complete. `since` is on the monotonic clock."""
        incomplete = self._incomplete
        incomplete[operation] = since
        if len(incomplete) == 1 and self._has_row:
            self._writer.floats[self._oldest_word] = since

    def complete(self, operation: object) -> None:
        """Note that the operation is complete. Any thread may call this."""
        incomplete = self._incomplete
        incomplete.pop(operation, None)
        if not self._has_row:
            return
        if not incomplete:
            self._writer.floats[self._oldest_word] = 0.0
            if not incomplete:
                return
        # Several threads may be here at once, and no lock is held. Each checks again after it has written,
        # so that the last one to write leaves the right value.
        oldest = self._oldest()
        self._writer.floats[self._oldest_word] = oldest
        for _ in range(_TRIES):
            if not incomplete and not oldest:
                return
            before, oldest = oldest, self._oldest()
            if before == oldest:
                return
            self._writer.floats[self._oldest_word] = oldest

    def forget(self) -> None:
        """Forget what is in flight, in a forked child."""
        self._incomplete.clear()

    def _oldest(self) -> float:
        for _ in range(_TRIES):
            try:
                return next(iter(self._incomplete.values()), 0.0)
            except RuntimeError:  # another thread changed it meanwhile
                continue
        return 0.0


class Groups:
    """Finds the group of an operation, and enters it into the black box at its first operation."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._known: dict[str, Group] = {}
        self._by_id: dict[int, Group] = {}
        self._rows: dict[tuple[str, str], Group] = {}
        self._labels: set[str] = set()
        self._next_place = itertools.count().__next__
        self._entered: list[int] = []

    def of(self, process_group: Any) -> Group:
        """Return the group that counts for this process group."""
        found = self._by_id.get(id(process_group))
        if found is not None and found.process_group() is process_group:
            return found
        name = process_group.group_name
        group = self._known.get(name)
        if group is None or group.process_group() is not process_group:
            group = self._register(name, process_group, group)
        return group

    def forget(self) -> None:
        """Forget what is in flight, in a forked child."""
        for group in list(self._known.values()):
            group.forget()

    def _register(self, name: str, process_group: Any, known: Group | None) -> Group:
        world = _world()
        if known is not None and process_group not in world.pg_map:
            return known  # not created by PyTorch's own functions: its Python object comes and goes
        ranks = world.pg_group_ranks.get(process_group, ())
        label = process_group.group_desc
        if not label or label == "undefined":
            label = name
        group = self._row(label, members_text(list(ranks)), process_group.size())
        group.process_group = weakref.ref(process_group)
        if len(self._known) >= _MOST_KNOWN:
            self._known = {each: other for each, other in self._known.items() if not other.gone()}
        self._known[name] = group
        if len(self._by_id) >= _MOST_KNOWN:
            self._by_id = {}
        self._by_id[id(process_group)] = group  # ids may be reused, so the object is compared
        return group

    def _row(self, label: str, members: str, size: int) -> Group:
        """Return the row, which a group that was destroyed and created again keeps. Of two that are alive and
        look the same, the second has a number added to its label."""
        text = label
        for again in itertools.count(2):
            row = self._rows.get((text, members))
            if row is None:
                return self._enter(text, members, size)
            if row.gone():
                return row
            text = f"{label} #{again}"
        raise AssertionError("unreachable")

    def _enter(self, label: str, members: str, size: int) -> Group:
        writer = self._writer
        number = writer.new_name(label) if label in self._labels else writer.name_number(label)
        place = self._next_place()
        if place >= layout.MAX_GROUPS:
            return Group(writer, number, None)
        self._labels.add(label)
        group = self._rows[label, members] = Group(writer, number, place)
        integers = writer.integers
        integers[Now.GROUP_NAME + place] = number
        integers[Now.GROUP_MEMBERS + place] = writer.name_number(members) if members else 0
        integers[Now.GROUP_SIZE + place] = size
        self._entered.append(place)
        # Another thread may write a smaller number meanwhile.
        while integers[Now.GROUPS] < len(self._entered):
            integers[Now.GROUPS] = len(self._entered)
        return group


def _world() -> Any:
    c10d: Any = importlib.import_module("torch.distributed.distributed_c10d")
    return c10d._world
