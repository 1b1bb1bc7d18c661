"""Which network interfaces are watched."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase


@dataclass(frozen=True, kw_only=True)
class InterfaceChoice:
    """Globs over interface names; `include` empty means those with hardware behind them."""

    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ("lo",)

    def choose(self, names: Iterable[str], physical: frozenset[str]) -> list[str]:
        """The names to watch, sorted; `physical` are those with a device behind them.

        Where nothing physical is to be seen, as in a pod with its own network namespace, all that
        is not excluded is watched: it is the only sign of traffic there.
        """
        left = sorted(name for name in names if not _matches(name, self.exclude))
        if self.include:
            return [name for name in left if _matches(name, self.include)]
        return [name for name in left if name in physical] or left


def _matches(name: str, globs: Iterable[str]) -> bool:
    return any(fnmatchcase(name, glob) for glob in globs)
