"""Pickles of plain containers, loaded without executing anything.

An unpickler calls what a pickle names. This one refuses every name, so that only numbers, texts, lists,
tuples, sets and dicts can come of it. What a pickle may still do is exhaust memory, time or the stack: read
strange ones only in a process with limits (`worker`).
"""

from __future__ import annotations

import io
import pickle
from typing import Any, NoReturn

_ERRORS = (
    pickle.UnpicklingError,
    ArithmeticError,
    AttributeError,
    EOFError,
    LookupError,
    MemoryError,
    RecursionError,
    TypeError,
    ValueError,
)
"""What the standard library's unpickler raises on malformed input."""


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> NoReturn:
        raise pickle.UnpicklingError(f"it names {module[:60]}.{name[:60]}, and a dump holds plain data only")

    def persistent_load(self, pid: Any) -> NoReturn:
        raise pickle.UnpicklingError("it refers to objects outside, and a dump holds plain data only")


class PlainPart:
    """Loads parts of one pickle in turn: texts that an earlier part stored are known to the later."""

    def __init__(self) -> None:
        self._last: _PlainUnpickler | None = None

    def load(self, data: bytes) -> object:
        """One part, framed as a pickle of its own; raises ValueError."""
        try:
            unpickler = _PlainUnpickler(io.BytesIO(data))
            if self._last is not None:
                unpickler.memo = self._last.memo  # as it is: CPython loses the entries of a plain dict
            document = unpickler.load()
            self._last = unpickler
        except _ERRORS as error:
            raise ValueError(f"no usable part of a pickle: {error!s:.200}") from None
        return document

    def reference(self, text: str) -> bytes:
        """The bytes that stand for a text in later parts; raises ValueError where there are none."""
        stored: dict[int, Any] = self._last.memo.copy() if self._last is not None else {}
        for place, value in stored.items():
            if value == text:
                return b"h" + bytes([place]) if place < 256 else b"j" + place.to_bytes(4, "little")
        raise ValueError("the text was not stored")


def load_plain(data: bytes) -> object:
    """The plain object a pickle holds; raises ValueError that says why there is none."""
    try:
        return _PlainUnpickler(io.BytesIO(data)).load()
    except _ERRORS as error:
        reason = str(error) or type(error).__name__
        raise ValueError(f"no usable pickle: {reason:.200}") from None
