"""Parses the answer of a living rank, in the agent itself: into a typed dump, and never into plain objects.

As plain objects a text takes fifty times its size, and the interpreter stands while they are made. Here no
more is made than what a dump has, so whoever asks bounds time and memory by counting the values of the text.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from typing import TypeVar

import msgspec

from rankwatch_agent.training.flight_recorder.parse import (
    DOCUMENT,
    NOT_UNDERSTOOD,
    Document,
    Dump,
    DumpError,
    Entry,
    GroupConfig,
    GroupStatus,
    dump_of,
)

_MAX_ODD_ENTRIES = 1024
"""Entries that are not understood: each takes as long as ten others."""
_CHUNK_BYTES = 1 << 18
_T = TypeVar("_T")


class _Loose(msgspec.Struct):
    """A dump in which all that may be odd is left as text."""

    entries: list[msgspec.Raw] | None = None
    trace: list[msgspec.Raw] | None = None
    pg_status: msgspec.Raw = msgspec.Raw(b"")
    pg_config: msgspec.Raw = msgspec.Raw(b"")


_LOOSE = msgspec.json.Decoder(_Loose)
_ENTRY = msgspec.json.Decoder(Entry, strict=False)
_STATUS = msgspec.json.Decoder(dict[str, GroupStatus], strict=False)
_CONFIG = msgspec.json.Decoder(dict[str, GroupConfig], strict=False)


def parse_reply(text: bytes | bytearray) -> Dump:
    """The dump in the answer; raises DumpError."""
    text = _as_utf8(text)
    try:
        document = DOCUMENT.decode(text)
    except msgspec.ValidationError:
        return _entry_by_entry(text)
    except NOT_UNDERSTOOD as error:
        raise DumpError(f"it is no JSON: {error}") from None
    if document.entries is None and document.trace is None and document.pg_status is None:
        raise DumpError("it holds neither entries nor pg_status")
    return dump_of(document)


def _as_utf8(text: bytes | bytearray) -> bytes | bytearray:
    """The text, in which a byte that is no UTF-8, as a name may hold, is replaced."""
    if text.isascii():
        return text
    chunks = (bytes(text[place : place + _CHUNK_BYTES]) for place in range(0, len(text), _CHUNK_BYTES))
    return b"".join(each.encode() for each in codecs.iterdecode(chunks, "utf-8", "replace"))


def _entry_by_entry(text: bytes | bytearray) -> Dump:
    """What can be understood of a reply that does not fit as a whole."""
    try:
        document = _LOOSE.decode(text)
    except NOT_UNDERSTOOD as error:
        raise DumpError(f"it holds no dump: {error}") from None
    entries = document.entries if document.entries is not None else document.trace
    if entries is None:
        raise DumpError("it holds no entries")
    understood = [entry for entry in _understood(entries) if entry is not None]
    found = Document(
        entries=understood,
        pg_status=_decoded_or_none(_STATUS, document.pg_status),
        pg_config=_decoded_or_none(_CONFIG, document.pg_config),
    )
    return msgspec.structs.replace(dump_of(found), skipped=len(entries) - len(understood))


def _understood(entries: list[msgspec.Raw]) -> Iterator[Entry | None]:
    odd = 0
    for each in entries:
        entry = _decoded_or_none(_ENTRY, each)
        odd += entry is None
        if odd > _MAX_ODD_ENTRIES:
            raise DumpError(f"more than {_MAX_ODD_ENTRIES} of its entries cannot be understood")
        yield entry


def _decoded_or_none(decoder: msgspec.json.Decoder[_T], text: msgspec.Raw) -> _T | None:
    try:
        return decoder.decode(text)
    except NOT_UNDERSTOOD:
        return None
