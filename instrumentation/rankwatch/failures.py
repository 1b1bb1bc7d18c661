"""Failures inside rankwatch: caught, counted in the black box, logged once.

The training process is sacred: once a run is under way nothing in here may end it.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from rankwatch.blackbox import layout
from rankwatch.blackbox.layout import Now
from rankwatch.blackbox.writer import Writer
from rankwatch.compiling import is_compiling
from rankwatch.errors import UsageError

_log = logging.getLogger("rankwatch")
P = ParamSpec("P")


class Failures:
    """Counts and reports what went wrong inside rankwatch."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._logged: set[str] = set()
        writer.refused_name = self._refused_name
        self.strict = True
        """Wrong use raises until the first step has ended. After that it is only logged, because a branch
        first taken at step 10,000 must not end the run."""

    def note(self, what: str, error: BaseException) -> None:
        """Count the failure; log it if it is the first of its kind."""
        self._writer.integers[Now.ERRORS] += 1
        kind = f"{what}: {type(error).__name__}"
        if kind not in self._logged:
            self._logged.add(kind)
            _log.warning(
                "rankwatch could not %s: %s: %s (training goes on; logged once)",
                what,
                type(error).__name__,
                error,
            )

    def _refused_name(self, name: str) -> None:
        """Say once that the table of names is full."""
        if "names" not in self._logged:
            self._logged.add("names")
            _log.warning(
                "rankwatch has no place for the name %.100r: a black box holds %d names, and values under "
                "further names are dropped (said once)",
                name,
                layout.NAME_COUNT - 1,
            )

    def misuse(self, message: str) -> None:
        """Raise UsageError until the first step has ended; after that count and log."""
        if self.strict:
            raise UsageError(message)
        self.note("follow the calls of the training loop", UsageError(message))


class _Guarded(Protocol):
    _failures: Failures


S = TypeVar("S", bound=_Guarded)


def guarded(what: str) -> Callable[[Callable[Concatenate[S, P], None]], Callable[Concatenate[S, P], None]]:
    """Decorate a method that the training thread calls: it raises nothing but UsageError."""

    def decorate(method: Callable[Concatenate[S, P], None]) -> Callable[Concatenate[S, P], None]:
        @functools.wraps(method)
        def call(self: S, /, *args: P.args, **kwargs: P.kwargs) -> None:
            if is_compiling():
                return
            try:
                method(self, *args, **kwargs)
            except UsageError:
                raise
            except Exception as error:  # noqa: BLE001 - nothing of ours may end the training
                self._failures.note(what, error)

        return call

    return decorate
