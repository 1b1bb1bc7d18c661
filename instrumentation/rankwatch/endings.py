"""How an exception ends a run: the event, and what of the exception is kept."""

from __future__ import annotations

import stat

from rankwatch.blackbox import layout
from rankwatch.conventions import Lifecycle
from rankwatch.processes import umask
from rankwatch.untrusted.text import message_of

LONGEST_ERROR = 252
"""Characters of an error in one text, as many as a black box holds of a message."""

Ending = tuple[Lifecycle, list[str]]
"""An event that ends a run, the type of the exception if there is one, and its message in pieces."""


def ending_by(error: BaseException | type[BaseException]) -> Ending:
    """The end of a run by this exception. Holds nothing of it, such as its frames.

    Every user of the node can read a black box, whatever the umask. Where the umask takes that from other
    users, the message stays out of it.
    """
    kind = error if isinstance(error, type) else type(error)
    if issubclass(kind, KeyboardInterrupt):
        return Lifecycle.INTERRUPTED, []
    message = "" if error is kind or umask() & stat.S_IROTH else _message(error)
    return Lifecycle.FAILED, [kind.__qualname__, *_pieces(message)]


def error_text(error: BaseException | str) -> str:
    """An exception in one line: `OSError: [Errno 28] No space left on device`; a text in one line.

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
