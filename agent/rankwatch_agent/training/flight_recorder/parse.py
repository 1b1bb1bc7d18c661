"""Parses the documents of PyTorch's flight recorder, JSON or pickle, into one typed dump.

The worker server of a rank answers in JSON, dump files are pickles. Formats 2.0 to 2.10 (PyTorch 2.3 to
2.13) differ in their keys, and NCCL's recorder and gloo's differ in what they fill in; numbers may be
written as text.

Every document is untrusted. An entry that cannot be understood is left out and counted. Pickles are loaded as
plain containers only, so nothing in them runs, but a hostile one can still exhaust memory, time or the stack:
parse a file of unknown origin in a process with limits.
"""

from __future__ import annotations

import io
import pickle
import re
from collections.abc import Mapping
from typing import Annotated, Any, NoReturn, TypeVar

import msgspec

from rankwatch_agent.runtime.errors import AgentError
from rankwatch_agent.training.flight_recorder.operations import (
    MAY_BE_COALESCED,
    NO_PART,
    SUFFIX,
    join_calls,
)

NCCL2 = "fr_trace_json_nccl2"
RECORDERS = ("fr_trace_json", NCCL2, "dump_nccl_trace_json")
"""Recorders of a rank, by handlers of the worker server. Torch built with CUDA has two, each with its own
entries and record ids: that of gloo and other backends, and that of NCCL. Earlier releases have NCCL's alone.
From 2.15 on NCCL2, the backend behind NCCL, has its own at the handler of the first."""
TORCHCOMMS = (
    "torchcomms numbers the operations of all groups together and does not see when they complete, so ranks "
    "cannot be compared"
)
MAX_ENTRIES = 500_000
"""PyTorch's advice is a ring of 2,000 entries; large jobs use 20,000."""
UNKNOWN = -1
BOM = b"\xef\xbb\xbf"
_JSON = re.compile(rb"\s*\{")
"""No pickle begins with a brace."""
_MESSAGE = re.compile(r"(send|recv) \d{1,9}(?:->|<-)\d{1,9}")
_PICKLE_BUFFER_BYTES = 1 << 14
"""Without a buffer the unpickler asks the file for each value, which takes four times as long."""
_ENTRIES_AT_ONCE = 64
_FIRST_ENTRY = b"}(X\x09\x00\x00\x00record_idq"
_NEXT_ENTRY = b"}(h"
"""Later entries refer to the text `record_id` by its number in the memo, one byte."""
_PICKLE_END = re.compile(rb"(?<=u)eu(?:q.|r.{4})?\.\Z", re.DOTALL)
"""The end of the list of entries, of the document, and of the pickle."""

Int = Annotated[int, msgspec.Meta(ge=-(1 << 62), le=1 << 62)]
Shapes = tuple[tuple[Int, ...], ...]
_T = TypeVar("_T")


class DumpError(AgentError):
    """A document is no usable dump; the message says why."""


class Entry(msgspec.Struct, gc=False):
    """One operation of a process group."""

    record_id: Int
    """Position in the recorder, from 0 in each process."""
    pg_id: Int = UNKNOWN
    """Local id of the group: the key of `Dump.pg_status`."""
    process_group: tuple[str, str] | None = None
    """Name and description of the group."""
    collective_seq_id: Int = UNKNOWN
    """Number of the collective in the group, from 1; for a send or a receive, collectives before it."""
    seq_id: Int = UNKNOWN
    """The one number of formats before 2.0, of operations of any kind."""
    p2p_seq_id: Int = UNKNOWN
    """Number of the send or receive in the group; parts of a coalesced call share one."""
    op_id: Int = 0
    """Number of the operation of any kind in the group."""
    is_p2p: bool | None = None
    """A send, a receive, or a coalesced call of these; never None in a parsed dump. NCCL writes False for the
    last."""
    profiling_name: str = ""
    """Backend and operation: nccl:all_reduce, nccl:send 0->3."""
    input_sizes: Shapes | None = None
    output_sizes: Shapes | None = None
    input_dtypes: tuple[str, ...] | None = None
    output_dtypes: tuple[str, ...] | None = None
    state: str = ""
    retired: bool | None = False
    """No longer watched, because it completed or failed. Gloo's entries stay `scheduled` for ever; of NCCL's
    the state alone tells whether they completed."""
    time_created_ns: Int = 0
    """Unix time of the enqueue."""
    time_discovered_completed_ns: Int | None = None
    """Unix time at which the rank noticed the end."""
    duration_ms: float | None = None
    """Time on the GPU, waiting for peers included; only of NCCL, and only with timing switched on."""
    closed_by: Int = NO_PART
    """Set by the parser, of a part of a coalesced call: the record id of the entry that closes it, or
    UNCLOSED. The part has the state of that entry."""

    @property
    def complete(self) -> bool:
        """Whether it has ended. What NCCL's watchdog gave up is retired, and still on the device."""
        if self.state == "completed":
            return True
        return bool(self.retired) and not (self.state and self.profiling_name.startswith("nccl:"))

    @property
    def group(self) -> tuple[str, str]:
        """Name and description of the group; the local id replaces a missing name."""
        return self.process_group or (str(self.pg_id), "")


class GroupStatus(msgspec.Struct):
    """How far a group has come, in operations of any kind; -1 before the first."""

    last_enqueued_collective: Int = UNKNOWN
    last_completed_collective: Int = UNKNOWN


class GroupConfig(msgspec.Struct):
    """A group by its name; gloo's recorder leaves all of it empty."""

    desc: str = ""
    ranks: str | list[Int] = ""
    """Global ranks: [0, 1, 2], mostly as text."""


class Dump(msgspec.Struct):
    """One flight recorder at one moment."""

    entries: list[Entry] = []
    pg_status: dict[str, GroupStatus] = {}
    """By the local id of the group, which only entries link to a name."""
    pg_config: dict[str, GroupConfig] = {}
    """By the name of the group."""
    version: str = ""
    time_seconds: float | None = None
    """Unix time at which the dump was taken. PyTorch does not write it; whoever collects dumps may."""
    skipped: int = 0
    """Entries that could not be understood."""


class Document(msgspec.Struct):
    """A dump as it is written."""

    entries: list[Entry] | None = None
    trace: list[Entry] | None = None
    """The name of `entries` in another tool's files."""
    pg_status: dict[str, GroupStatus] | None = None
    pg_config: dict[str, GroupConfig] | None = None
    version: str = ""
    time_seconds: float | None = None


DOCUMENT = msgspec.json.Decoder(Document, strict=False)
_ANYTHING: msgspec.json.Decoder[Any] = msgspec.json.Decoder()
NOT_UNDERSTOOD = (msgspec.MsgspecError, RecursionError, ValueError)
"""Errors that msgspec raises for hostile input."""


def parse(data: bytes | bytearray) -> Dump:
    """Return the dump in a file, JSON or pickle; raises DumpError."""
    data = bytes(data).removeprefix(BOM)
    return parse_json(data) if _JSON.match(data) else parse_pickle(data)


def parse_json(text: bytes | bytearray) -> Dump:
    """Return the dump in a JSON text; raises DumpError."""
    try:
        document = _decoded(DOCUMENT, text)
    except msgspec.ValidationError:
        return parse_document(load_json(text))
    except NOT_UNDERSTOOD as error:
        raise DumpError(f"it is no JSON: {error}") from None
    known = document.entries is not None or document.trace is not None or document.pg_status is not None
    return dump_of(document) if known else parse_document(load_json(text))


def parse_document(document: object) -> Dump:
    """Return the dump in a loaded document: one recorder, or the recorders of a rank by their handlers."""
    if not isinstance(document, dict):
        raise DumpError("it holds no dump")
    if any(name in document for name in RECORDERS):
        return _of_handlers(document)
    entries = document.get("entries", document.get("trace"))
    if entries is None and "pg_status" not in document:
        raise DumpError("it holds neither entries nor pg_status")
    if entries is not None and not isinstance(entries, list):
        raise DumpError("its entries are no list")
    _check_length(entries or ())
    try:
        return dump_of(msgspec.convert(document, Document, strict=False))
    except NOT_UNDERSTOOD:
        return _part_by_part(document, entries or [])


def load_json(text: bytes | bytearray | msgspec.Raw) -> Any:
    """Return the plain object in a JSON text; raises DumpError."""
    try:
        return _decoded(_ANYTHING, text)
    except NOT_UNDERSTOOD as error:
        raise DumpError(f"it is no JSON: {error}") from None


def _decoded(decoder: msgspec.json.Decoder[_T], text: bytes | bytearray | msgspec.Raw) -> _T:
    """Return what the decoder finds; a byte that is no UTF-8, as a name may hold, is replaced."""
    try:
        return decoder.decode(text)
    except UnicodeDecodeError:
        return decoder.decode(bytes(text).decode("utf-8", "replace"))


class _PlainUnpickler(pickle.Unpickler):
    """Builds plain containers only: an unpickler calls what a pickle names; this one refuses every name."""

    def __init__(self, data: bytes) -> None:
        super().__init__(io.BufferedReader(io.BytesIO(data), _PICKLE_BUFFER_BYTES))

    def find_class(self, module: str, name: str) -> NoReturn:
        raise pickle.UnpicklingError(f"it names {module[:60]}.{name[:60]}, and a dump holds plain data only")

    def persistent_load(self, pid: Any) -> NoReturn:
        raise pickle.UnpicklingError("it refers to objects outside, and a dump holds plain data only")


_UNPICKLING_ERRORS = (
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
"""Errors that the standard library's unpickler raises on malformed input."""


def parse_pickle(data: bytes) -> Dump:
    """Return the dump in a pickle; raises DumpError.

    PyTorch writes a document with its entries last, one after another. They are loaded a few at a time, which
    keeps them in the processor's cache and takes half of the time. Whatever looks different is loaded as a
    whole.
    """
    try:
        document = _load_in_parts(data)
    except (*_UNPICKLING_ERRORS, msgspec.MsgspecError):
        document = None
    return parse_document(_load_pickle(data)) if document is None else dump_of(document)


def _load_pickle(data: bytes) -> object:
    try:
        return _PlainUnpickler(data).load()
    except _UNPICKLING_ERRORS as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise DumpError(f"no usable pickle: {reason:.200}") from None


def _load_in_parts(data: bytes) -> Document | None:
    """Return the document of a pickle with PyTorch's own layout; None for any other."""
    start, end = data.find(_FIRST_ENTRY), _PICKLE_END.search(data, max(0, len(data) - 16))
    if start < 0 or end is None:
        return None
    unpickler = _PlainUnpickler(data[:start] + b"eu.")
    document = msgspec.convert(unpickler.load(), Document, strict=False)
    place = start + len(_FIRST_ENTRY)
    token = _NEXT_ENTRY + data[place : place + 1]
    chunks = data[start : end.start()].split(token)
    if document.entries != [] or len(chunks) > MAX_ENTRIES:
        return None
    for first in range(0, len(chunks), _ENTRIES_AT_ONCE):
        part = token.join(chunks[first : first + _ENTRIES_AT_ONCE])
        following = _PlainUnpickler(b"\x80\x02](" + (token if first else b"") + part + b"e.")
        following.memo = unpickler.memo  # texts that an earlier part stored are known to the later ones
        document.entries += msgspec.convert(following.load(), list[Entry], strict=False)
        unpickler = following
    return document


def _of_handlers(replies: Mapping[str, object]) -> Dump:
    """Return the dump of a rank's main recorder: NCCL's where it has entries."""
    dumps = [parse_document(replies[name]) for name in reversed(RECORDERS) if name in replies]
    return next((each for each in dumps if each.entries), dumps[0])


def dump_of(document: Document) -> Dump:
    entries = document.entries if document.entries is not None else document.trace or []
    _check_length(entries)
    if document.pg_status == {} and _of_torchcomms(entries):
        raise DumpError(TORCHCOMMS)
    return Dump(
        entries=_normalized(entries),
        pg_status=document.pg_status or {},
        pg_config=document.pg_config or {},
        version=document.version,
        time_seconds=document.time_seconds,
    )


def _of_torchcomms(entries: list[Entry]) -> bool:
    """Return True if torchcomms made the entries.

    hooks/fr/FlightRecorder.cpp, `onPreHook`: the description of a group is its backend, which also begins
    the name of each operation. Groups have no status, which c10d has for each one with entries.
    """
    return bool(entries) and all(
        each.profiling_name.startswith(f"{each.group[1]}:") and each.p2p_seq_id == 0 for each in entries
    )


def _check_length(entries: list[Any] | tuple[()]) -> None:
    if len(entries) > MAX_ENTRIES:
        raise DumpError(f"it holds {len(entries)} entries, more than {MAX_ENTRIES}")


def _part_by_part(document: Mapping[str, Any], entries: list[object]) -> Dump:
    """Return what can be understood of a document that does not fit as a whole."""
    understood = [entry for each in entries if (entry := _converted(each, Entry)) is not None]
    version = document.get("version")
    return Dump(
        entries=_normalized(understood),
        pg_status=_converted_values(document.get("pg_status"), GroupStatus),
        pg_config=_converted_values(document.get("pg_config"), GroupConfig),
        version=version[:40] if isinstance(version, str) else "",
        time_seconds=_converted(document.get("time_seconds"), float),
        skipped=len(entries) - len(understood),
    )


def _converted(value: object, kind: type[_T]) -> _T | None:
    try:
        return msgspec.convert(value, kind, strict=False)
    except NOT_UNDERSTOOD:
        return None


def _converted_values(values: object, kind: type[_T]) -> dict[str, _T]:
    if not isinstance(values, Mapping):
        return {}
    found = {str(key): _converted(value, kind) for key, value in values.items() if isinstance(key, str | int)}
    return {key: value for key, value in found.items() if value is not None}


def _normalized(entries: list[Entry]) -> list[Entry]:
    """Fill in, in place, what older formats call otherwise or do not write."""
    coalesced: bool | None = False
    for entry in entries:
        if entry.collective_seq_id < 0:
            entry.collective_seq_id = entry.seq_id
            entry.p2p_seq_id = max(entry.p2p_seq_id, entry.seq_id)
        if entry.is_p2p is None and not entry.profiling_name.endswith(SUFFIX):
            entry.is_p2p = _MESSAGE.search(entry.profiling_name) is not None
        coalesced = coalesced or entry.is_p2p or entry.profiling_name.endswith(MAY_BE_COALESCED)
    if coalesced:
        join_calls(entries)
    return entries
