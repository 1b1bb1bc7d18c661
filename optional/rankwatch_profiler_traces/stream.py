"""One trace file: its events, a few thousand at a time, and whose it is by what stands beside them.

A trace of any size fits into little memory. Kineto writes one event after another, so a block of the file is
cut between two events and decoded at once. A cut that is none (an argument may be a list of objects, a name
may hold braces) does not decode. Then the block is taken apart brace by brace, which any formatting stands,
and a damaged event costs that event alone.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import msgspec

from rankwatch_agent.runtime.errors import UserError
from rankwatch_diagnosis.opening import DAMAGED, open_bytes, unpacked

_BLOCK_BYTES = 1 << 20
_MOST_HEAD_BYTES = 32 << 20
"""Most bytes before the events, and behind them: the ranks of all process groups of a large job."""
_MOST_EVENT_BYTES = 4 << 20
_BOM = b"\xef\xbb\xbf"
_BETWEEN = re.compile(rb"(?<=\})\s*,\s*(?=\{)")
_SURELY_BETWEEN = re.compile(rb'\}\s*,\s*(?=\{\s*"ph"\s*:)')
_LONGEST_BETWEEN = 256
_STRING = rb'"[^"\\\x00-\x1f]*(?:\\.[^"\\\x00-\x1f]*)*'
_TOKEN = re.compile(rb'%s"|[{}\[\]]' % _STRING)
_TOKEN_OR_CUT = re.compile(rb'%s(?:"|\\?\Z)|[{}\[\]]' % _STRING)
"""Also a string that is not read to its end yet."""
_MOST_DEPTH = 200
"""Of lists and objects within each other; arguments of an event have a few."""
_MOST_VALUES = 1 << 20
"""Beside the events: the ranks of a job's process groups are some hundred thousand."""
_EVENTS = b'"traceEvents"'
_QUOTE = ord('"')
UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""Errors that msgspec raises for a text that is damaged, no UTF-8, or too deep."""
_FILE_FORM = "a trace of the PyTorch profiler is a JSON object with traceEvents"


class Event(msgspec.Struct, gc=False):
    """One event of a trace; `ts` and `dur` are microseconds."""

    ph: str = ""
    cat: str = ""
    name: str = ""
    ts: float | None = None
    dur: float | None = None
    pid: int | str | None = None
    tid: int | str | None = None
    args: msgspec.Raw = msgspec.Raw(b"")


_EVENT = msgspec.json.Decoder(Event)
_LIST = msgspec.json.Decoder(list[Event])
_OBJECT = msgspec.json.Decoder(dict[str, object])


@dataclass(kw_only=True)
class Framing:
    """What a file holds besides its events; complete once all events are read."""

    fields: dict[str, object] = field(default_factory=dict)
    """Of the outer object, without the events."""
    broken: int = 0
    """Events that are damaged."""
    cut_off: bool = False
    """The file ends before its last event does."""


def stream_events(path: Path, framing: Framing) -> Iterator[list[Event]]:
    """Yield the events of a file (JSON, also gzip) in lists, and fill `framing`. Raises UserError."""
    try:
        with open_bytes(path) as file:
            yield from _Blocks(unpacked(file, path), path, framing).events()
    except OSError as error:
        raise UserError(f"could not read {path}: {error.strerror or error}") from error


class _Blocks:
    """A stream that is taken apart from its beginning to its end."""

    def __init__(self, stream: io.BufferedReader, path: Path, framing: Framing) -> None:
        self._stream = stream
        self._path = path
        self._framing = framing
        self._ended = False
        self._lost = False
        """Inside an event that is too long to be kept: the next one that surely begins is the next."""

    def events(self) -> Iterator[list[Event]]:
        rest = self._skip_head()
        while True:
            rest = self._found_again(rest + self._read())
            if self._lost:
                if self._ended:
                    return
                continue
            cut = 0 if self._ended else _last_cut(rest)
            if cut:
                found = _decode(rest[:cut].strip(b", \t\r\n"))
                if found is not None:
                    rest = rest[cut:]
                    yield found
                    continue
            found, used, tail = self._take_apart(rest)
            if found:
                yield found
            if tail is not None:
                self._add_fields(b"{" + (tail + self._remaining()).lstrip(b", \t\r\n"))
                return
            rest = rest[used:]
            if self._ended:
                self._framing.cut_off = True
                return
            if len(rest) > _MOST_EVENT_BYTES:
                self._framing.broken += 1
                self._lost = True

    def _found_again(self, text: bytes) -> bytes:
        if not self._lost:
            return text
        begins = _SURELY_BETWEEN.search(text)
        self._lost = begins is None
        return text[-_LONGEST_BETWEEN:] if begins is None else text[begins.end() :]

    def _read(self) -> bytes:
        """Return the next block; nothing at the end, which is also where a gzip is damaged or cut off.

        A zero byte ends a trace, too: it is in no JSON, and a sparse file may have terabytes of them.
        """
        parts: list[bytes] = []
        size = 0
        while not self._ended and size < _BLOCK_BYTES:
            try:
                part = self._stream.read1(_BLOCK_BYTES)  # read() would drop what a cut gzip still gave
            except DAMAGED:
                part = b""
            text, zero, _ = part.partition(b"\0")
            self._ended = not part or bool(zero)
            parts.append(text)
            size += len(part)
        return b"".join(parts)

    def _remaining(self) -> bytes:
        """Return what stands behind the events."""
        parts: list[bytes] = []
        while not self._ended and sum(map(len, parts)) < _MOST_HEAD_BYTES:
            parts.append(self._read())
        return b"".join(parts)

    def _skip_head(self) -> bytes:
        """Read up to the first event; returns what was read beyond. Raises UserError where there is none."""
        head = b""
        search = _HeadSearch()
        while True:
            head += self._read()
            begun = head[:_LONGEST_BETWEEN].removeprefix(_BOM).lstrip()
            if begun[:1] == b"[":  # Chrome's other form: the list alone
                return head[head.index(b"[") + 1 :]
            at = search.events_in(head) if begun[:1] == b"{" else -1
            if at >= 0:
                self._add_fields(head[:at].removeprefix(_BOM) + b"]}")
                return head[at:]
            if self._ended or len(head) > _MOST_HEAD_BYTES or search.hopeless or begun[:1] != b"{":
                reason = "it is empty" if not begun else "it is cut off or no trace"
                raise UserError(f"{self._path} holds no events: {reason}; {_FILE_FORM}")

    def _add_fields(self, text: bytes) -> None:
        if sum(map(text.count, (b",", b"{", b"["))) > _MOST_VALUES:
            return
        try:
            found = _OBJECT.decode(text)
        except UNREADABLE:
            return
        found.pop("traceEvents", None)
        self._framing.fields.update(found)

    def _take_apart(self, text: bytes) -> tuple[list[Event], int, bytes | None]:
        """Return events of a text that does not decode as a whole, the bytes that they take, and what stands
        behind the end of the list; None before it."""
        found: list[Event] = []
        used = 0
        for end in [*(each.end() for each in _SURELY_BETWEEN.finditer(text)), len(text)]:
            last = end == len(text)
            event = None if last else _event(text[used:end].strip(b", \t\r\n"))
            if event is not None:
                found.append(event)
                used = end
                continue
            taken, tail = self._pieces(text[used:end], found, last=last)
            if tail is not None:
                return found, end, tail
            used = used + taken if last else end
        return found, used, None

    def _pieces(self, text: bytes, found: list[Event], *, last: bool) -> tuple[int, bytes | None]:
        """Add the events of a text, brace by brace; what remains open at its end is damaged or, in the `last`
        text, not read to its end.
        """
        depth = begin = used = 0
        for token in _TOKEN.finditer(text):
            sign = token[0]
            if sign in (b"{", b"["):
                if depth == 0:
                    begin = token.start()
                depth += 1
            elif sign == b"]" and depth == 0:
                return used, text[token.end() :]
            elif sign in (b"}", b"]"):
                depth = max(0, depth - 1)
                if depth == 0:
                    used = token.end()
                    event = _event(text[begin:used])
                    if event is None:
                        self._framing.broken += 1
                    else:
                        found.append(event)
        if depth and not last:
            self._framing.broken += 1
        return used, None


def _last_cut(text: bytes) -> int:
    """Return where the last pair of events seems to part; 0 for nowhere."""
    for size in (1 << 14, len(text)):
        start = max(0, len(text) - size)
        cut = 0
        for each in _BETWEEN.finditer(text, start):
            cut = each.end()
        if cut:
            return cut
    return 0


def _decode(text: bytes) -> list[Event] | None:
    try:
        return _LIST.decode(b"[%s]" % text)
    except UNREADABLE:
        return None


def _event(text: bytes) -> Event | None:
    try:
        return _EVENT.decode(text)
    except UNREADABLE:
        return None


class _HeadSearch:
    """Looks for the first event in the text of an object that becomes longer: each part of it once."""

    def __init__(self) -> None:
        self.hopeless = False
        """It is nested too deep for a trace."""
        self._depth = 0
        self._named = False
        self._next = 0

    def events_in(self, head: bytes) -> int:
        """Return the position of the first event; -1 where its list is not begun yet."""
        for token in _TOKEN_OR_CUT.finditer(head, self._next):
            sign = token[0]
            if sign[0] == _QUOTE and token.end() == len(head):
                return -1  # perhaps in the middle of a string
            self._next = token.end()
            if sign == b"[" and self._named:
                return self._next
            self._named = self._depth == 1 and sign == _EVENTS
            self._depth += (sign in (b"{", b"[")) - (sign in (b"}", b"]"))
            if self._depth > _MOST_DEPTH:
                self.hopeless = True
                return -1
        return -1


_MOST_RANK = 1 << 17
"""More ranks than a job has; those that are missing are listed."""
_RANK_IN_NAME = re.compile(r"rank[-_ ]?(\d{1,7})(?!\d)", re.IGNORECASE)
_PIPELINE = re.compile(r"pipeline|(?:^|_)pp(?:_|$)")
_DATA = re.compile(r"data_parallel|(?:^|_)(?:dp|ddp|fsdp|hsdp)(?:_|$)")
_MODEL = re.compile(r"tensor|model_parallel|(?:^|_)(?:tp|cp|ep)(?:_|$)")
_PARTS = re.compile(r"shard|replicate")
"""Dimensions of a mesh that together are the data parallel one."""
_RANKS = re.compile(r"\d{1,7}")


class Place(NamedTuple):
    """Coordinates of a rank, as in a table of operations."""

    stage: int
    replica: int


class Group(NamedTuple):
    """A process group that the rank belongs to."""

    name: str
    description: str
    ranks: tuple[int, ...]


def rank_of(fields: Mapping[str, object], file_name: str) -> int | None:
    """Return the rank by what the profiler wrote, else by the name of the file; None where neither tells."""
    info = fields.get("distributedInfo")
    rank = info.get("rank") if isinstance(info, dict) else None
    if isinstance(rank, str) and rank.isdecimal() and len(rank) < 9:
        rank = int(rank)
    if isinstance(rank, int) and 0 <= rank < _MOST_RANK:
        return rank
    named = _RANK_IN_NAME.search(file_name)
    return None if named is None else int(named[1])


def world_size_of(fields: Mapping[str, object]) -> int:
    """Return the number of ranks of the job; 0 where it is unknown."""
    info = fields.get("distributedInfo")
    size = info.get("world_size") if isinstance(info, dict) else None
    return size if isinstance(size, int) and 0 < size < _MOST_RANK else 0


def groups_of(fields: Mapping[str, object]) -> Iterator[Group]:
    """Yield the process groups that the profiler listed."""
    info = fields.get("distributedInfo")
    listed = info.get("pg_config") if isinstance(info, dict) else None
    for each in listed if isinstance(listed, list) else ():
        if isinstance(each, dict):
            name, description = (str(each.get(key, "")) for key in ("pg_name", "pg_desc"))
            yield Group(name, description, _ranks(each.get("ranks")))


def place_of(rank: int, fields: Mapping[str, object]) -> Place:
    """Return the place by the names of process groups, as Megatron and device meshes give them.

    A rank of a job without such names has batches of its own.
    """
    named = [
        (each.description.lower(), each.ranks)
        for each in groups_of(fields)
        if rank in each.ranks and len(each.ranks) > 1
    ]
    pipelines = [ranks for name, ranks in named if _PIPELINE.search(name) and not _DATA.search(name)]
    data = [(name, ranks) for name, ranks in named if _DATA.search(name)]
    stage = min(pipelines, key=len).index(rank) if pipelines else 0
    if not data:
        divided = pipelines or any(_MODEL.search(name) for name, _ in named)
        return Place(stage, 0 if divided else rank)
    whole = [ranks for name, ranks in data if not _PARTS.search(name)]
    if whole:
        return Place(stage, max(whole, key=len).index(rank))
    replica = 0
    for _, ranks in sorted(data):
        replica = replica * len(ranks) + ranks.index(rank)
    return Place(stage, replica)


def _ranks(listed: object) -> tuple[int, ...]:
    if isinstance(listed, str):
        listed = [int(each) for each in _RANKS.findall(listed)] if "..." not in listed else []
    if not isinstance(listed, list):
        return ()
    return tuple(each for each in listed if isinstance(each, int) and 0 <= each < _MOST_RANK)
