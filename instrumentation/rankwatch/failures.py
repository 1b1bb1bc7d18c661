"""Failures inside rankwatch: caught, counted in the black box, logged once; and what is kept of exceptions.

The training process is sacred: once a run is under way nothing in here may end it.
"""

from __future__ import annotations

import functools
import stat
import sys
from collections.abc import Callable
from typing import Any, TypeVar

from rankwatch.blackbox import layout
from rankwatch.blackbox.layout import Now
from rankwatch.blackbox.writer import Writer
from rankwatch.compiling import is_compiling
from rankwatch.conventions.vocabulary import Lifecycle
from rankwatch.errors import UsageError, warn
from rankwatch.processes import umask
from rankwatch.untrusted.text import message_of

F = TypeVar("F", bound=Callable[..., Any])
LONGEST_ERROR = 252
"""Characters of an error in one text, as many as a black box holds of a message."""
Ending = tuple[Lifecycle, list[str]]
"""An event that ends a run, the type of the exception if there is one, and its message in pieces."""


class Failures:
    """Counts and reports what went wrong inside rankwatch."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._logged: set[str] = set()
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

    def attempt(self, what: str, action: Callable[..., object], *arguments: object) -> None:
        """Call what must not get in the way of the trainer's own code around it, nor of a destructor."""
        try:
            action(*arguments)
        except Exception as error:  # noqa: BLE001 - nothing of ours may end the training
            self.note(what, error)

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


def ending_by(error: BaseException | type[BaseException]) -> Ending:
    """Return the end of a run by this exception. Holds nothing of it, such as its frames.

    Every user of the node can read a black box, whatever the umask. Where the umask takes that from other
    users, the message stays out of it.
    """
    kind = error if isinstance(error, type) else type(error)
    if issubclass(kind, KeyboardInterrupt):
        return Lifecycle.INTERRUPTED, []
    message = "" if error is kind or umask() & stat.S_IROTH else _message(error)
    return Lifecycle.FAILED, [kind.__qualname__, *_pieces(message)]


def error_text(error: BaseException | str) -> str:
    """Return an exception in one line: `OSError: [Errno 28] No space left on device`; a text in one line.

    Neither holds credentials. Raises nothing, whatever it is given.
    """
    name = "" if issubclass(type(error), str) else type(error).__qualname__
    return ": ".join(filter(None, (name, _message(error))))[:LONGEST_ERROR]


def _message(error: object) -> str:
    try:
        return message_of(str(error))
    except Exception:  # noqa: BLE001 - the code of any exception
        return ""


def _pieces(text: str) -> list[str]:
    """Cut a text into pieces that each fit a name. The end of a long text is lost."""
    size = layout.NAME_SIZE - 1
    pieces: list[str] = []
    while text and len(pieces) < layout.MESSAGE_NAMES:
        # `replace` first, because a lone surrogate cannot be encoded.
        piece = text.encode("utf-8", "replace")[:size].decode("utf-8", "ignore")
        pieces.append(piece)
        text = text[len(piece) :]
    return pieces
