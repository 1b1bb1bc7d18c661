"""Waits for batches of torch's data loaders, with any kind of workers, and of torchdata's stateful ones."""

from __future__ import annotations

import sys
import time
from collections.abc import Hashable
from types import FrameType, ModuleType
from typing import Any

from rankwatch.automatic import loop
from rankwatch.automatic.patching import watch
from rankwatch.conventions.vocabulary import Capability

_FUNCTIONS = 8
"""Functions that are looked at to find where a loop asks for a batch."""


def patch(module: ModuleType) -> None:
    """Watch the base classes of their iterators."""
    names = ("_BaseDataLoaderIter", "_StatefulBaseDataLoaderIter")
    iterators = [each for name in names if "__next__" in vars(each := getattr(module, name, object))]
    for iterator in iterators or [None]:
        watch(iterator, "__next__", began=_began, ended=_ended, shows=Capability.DATA_WAIT)


_asked = 0.0
"""When a framework's loader was asked for the batch that it is about to ask torch's loader for; else 0."""


def loader_asked() -> None:
    """Note that a framework's loader was asked for a batch. What it does before it asks torch's belongs to
    the wait."""
    global _asked
    _asked = time.monotonic()


def _began(iterator: Any) -> tuple[float, Any]:
    global _asked
    began = loop.current().fetch_began(_place)
    if _asked:
        began, _asked = began and _asked, 0.0
    return began, iterator


def _place() -> Hashable:
    """Return where the script asks for the batch, by the instructions of the innermost functions: a loop may
    do so through a generator or a function that it calls at several places."""
    frame: FrameType | None = sys._getframe(1)
    place: list[Hashable] = []
    while frame is not None and len(place) < _FUNCTIONS:
        if not str(frame.f_globals.get("__name__")).startswith("rankwatch."):
            place.append((id(frame.f_code), frame.f_lasti))
        frame = frame.f_back
    return tuple(place)


def _ended(token: tuple[float, Any], batch: object, error: BaseException | None) -> None:
    began, iterator = token
    if began:
        loop.current().fetch_ended(began, iterator, batch, error)
