"""Tables of the kernel, such as one line per device: what is garbled costs only its own entry."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

from rankwatch_agent.runtime.collector import CollectError

Key = TypeVar("Key")
Value = TypeVar("Value")

_MAX_NAMED = 5


class Table(NamedTuple, Generic[Key, Value]):
    """What could be read, and the names of what could not."""

    found: dict[Key, Value]
    broken: tuple[str, ...] = ()

    def errors(self, path: Path) -> list[CollectError]:
        """One error that names the broken entries of the file at `path`; none where all is sound."""
        if not self.broken:
            return []
        more = len(self.broken) - _MAX_NAMED
        named = ", ".join(self.broken[:_MAX_NAMED]) + (f" and {more} more" if more > 0 else "")
        return [CollectError(f"could not parse {path}: {named}")]


def parse_lines(
    text: str, parse: Callable[[str], tuple[Key, Value]], *, heading: int = 0
) -> Table[Key, Value]:
    """Each line by itself, after `heading` lines; one that `parse` rejects with ValueError is broken.

    Raises ValueError where not even the heading is there.
    """
    lines = text.splitlines()
    if len(lines) < heading:
        raise ValueError("it has no heading")
    found = {}
    broken = []
    for number, line in enumerate(lines[heading:], start=heading + 1):
        try:
            key, value = parse(line)
        except (ValueError, LookupError):
            broken.append(f"line {number}")
        else:
            found[key] = value
    return Table(found, tuple(broken))


def parse_fields(fields: Iterable[tuple[str, str]], parse: Callable[[str], Value]) -> Table[str, Value]:
    """Each named text by itself; one that `parse` rejects with ValueError is broken."""
    found = {}
    broken = []
    for name, text in fields:
        try:
            found[name] = parse(text)
        except (ValueError, LookupError):
            broken.append(name)
    return Table(found, tuple(broken))
