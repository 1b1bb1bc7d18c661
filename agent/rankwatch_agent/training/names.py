"""Keeps the number of distinct names small: names come from the training process and become labels."""

from __future__ import annotations

OVERFLOW = "(more)"
"""Stands for every name beyond the bound."""


class BoundedNames:
    """Lets through the first `most` names of each kind; later ones become `(more)` or nothing."""

    def __init__(self, most: int) -> None:
        self.dropped = 0
        """Uses of a name beyond the bound."""
        self._most = most
        self._known: dict[str, set[str]] = {}

    def bound(self, kind: str, name: str) -> str:
        """The name itself, or `(more)` where there are too many of its kind."""
        known = self._known.get(kind)
        if known is None:
            known = self._known[kind] = set()
        if name in known:
            return name
        if len(known) < self._most:
            known.add(name)
            return name
        self.dropped += 1
        return OVERFLOW
