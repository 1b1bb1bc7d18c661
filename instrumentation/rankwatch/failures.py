"""Failures inside rankwatch: caught, counted in the black box, logged once.

The training process is sacred: once a run is under way nothing in here may end it.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, TypeVar

from rankwatch.blackbox import layout
from rankwatch.blackbox.layout import Now
from rankwatch.blackbox.writer import Writer
from rankwatch.compiling import is_compiling
from rankwatch.endings import error_text
from rankwatch.errors import UsageError
from rankwatch.messages import warn

F = TypeVar("F", bound=Callable[..., Any])


class Failures:
    """Counts and reports what went wrong inside rankwatch."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._logged: set[str] = set()
        writer.refused_name = self._refused_name
        self.strict = True
        """Wrong use raises until the first step or the run has ended. After that it is only logged, because a
        branch first taken at step 10,000 must not end the run."""

    def note(self, what: str, error: BaseException) -> None:
        """Count the failure; log it if it is the first of its kind. Raises nothing, whatever the handlers of
        the script do."""
        try:
            self._writer.integers[Now.ERRORS] += 1
            kind = f"{what}: {type(error).__name__}"
            if kind not in self._logged:
                self._logged.add(kind)
                text = error_text(error)
                warn("rankwatch could not %s: %s (training goes on; logged once)", what, text)
        except Exception:  # noqa: BLE001 - a filter that raises, or the end of the stack
            return

    def _refused_name(self, name: str) -> None:
        """Say once that the table of names is full."""
        if "names" not in self._logged:
            self._logged.add("names")
            warn(
                "rankwatch has no place for the name %.100r: a black box holds %d names, and values under "
                "further names are dropped (said once)",
                name,
                layout.NAME_COUNT - 1,
            )

    def caught(self, what: str, error: Exception) -> None:
        """Count and log an exception that a guard has caught; wrong use may raise."""
        if isinstance(error, UsageError):
            self.misuse(str(error))
        else:
            self.note(what, error)

    def misuse(self, message: str) -> None:
        """Raise UsageError while `strict`; else count and log.

        It never takes the place of an exception of the training, as in a `finally` or at the end of a `with`.
        """
        under_way = sys.exception()
        while isinstance(under_way, UsageError):
            under_way = under_way.__context__
        if self.strict and under_way is None:
            raise UsageError(message)
        self.note("follow the calls of the training loop", UsageError(message))


def _nothing(*args: object, **kwargs: object) -> None: ...


def guarded(what: str, otherwise: Callable[..., object] = _nothing) -> Callable[[F], F]:
    """Decorate a method that the training thread calls: it raises nothing but the UsageError of `misuse`.

    The object must have `_failures`. Where the method fails, and in a compiled graph, `otherwise` returns the
    result for the same arguments.
    """

    def decorate(method: F) -> F:
        @functools.wraps(method)
        def call(self: Any, /, *args: Any, **kwargs: Any) -> Any:
            if is_compiling():
                return otherwise(*args, **kwargs)
            try:
                return method(self, *args, **kwargs)
            except Exception as error:  # noqa: BLE001 - nothing of ours may end the training
                self._failures.caught(what, error)
            return otherwise(*args, **kwargs)

        return call  # type: ignore[return-value]

    return decorate
