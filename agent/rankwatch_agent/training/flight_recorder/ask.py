"""Asks the worker servers of ranks for their flight recorders, and parses the answers.

A rank's PyTorch serves HTTP on a unix socket beside its black box. The answer is untrusted, so it is bounded
in size and in time. The standard library's HTTP client bounds each wait but not their sum: a server that
sends a byte now and then would hold it for ever. So this speaks plain HTTP/1.0 over the socket.

An answer is parsed in the agent itself: into a typed dump, and never into plain objects. As plain objects a
text takes fifty times its size, and the interpreter stands while they are made. Here no more is made than
what a dump has, so counting the values of the text bounds time and memory.
"""

from __future__ import annotations

import codecs
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import TypeVar

import msgspec

from rankwatch.blackbox import layout
from rankwatch.blackbox.capturing import may_ask
from rankwatch.untrusted.folders import Folder, look
from rankwatch.untrusted.http_client import seconds_left
from rankwatch.untrusted.peers import connect
from rankwatch_agent.runtime.errors import AgentError
from rankwatch_agent.training.flight_recorder.parse import (
    DOCUMENT,
    NCCL2,
    NOT_UNDERSTOOD,
    RECORDERS,
    Document,
    Dump,
    DumpError,
    Entry,
    GroupConfig,
    GroupStatus,
    dump_of,
    load_json,
)

MAX_REPLY_BYTES = 12 << 20
"""Of all recorders of a rank together. A ring has 2,000 entries, which torch 2.13 writes in 0.95 MB, and
20,000 in large jobs: these fit with a third to spare. Two ranks are asked at a time, and the agent's memory
is limited."""
MAX_OBJECTS = 1 << 18
"""Objects and lists of a reply; an entry has about eight. In memory each takes twenty times its size."""
MAX_VALUES = 1 << 20
"""Commas and colons of a reply: an entry has 42, so a ring of 24,000 fits."""
_MAX_NAMES_BYTES = 1 << 16
_MAX_HEAD_BYTES = 1 << 13
_CHUNK_BYTES = 1 << 18
_TARGETS = {NCCL2: "fr_trace_json?backend=nccl2"}
"""Targets that are asked for where a recorder is not called as its handler."""
_RECORDER_PER_BACKEND = "fr_dump_file"
"""A handler of the releases whose `fr_trace_json` takes a backend: control_plane/Handlers.cpp of PyTorch."""
_HAS_ENTRY = b'"record_id"'
_MOST_FOUND_AT_ONCE = 64
"""More ranks than a node has."""

Replies = Mapping[str, bytearray]
"""Recorder -> the body of its answer, JSON where the rank is honest."""
_Key = TypeVar("_Key")
_Found = TypeVar("_Found")


class FlightRecorderError(AgentError):
    """A flight recorder could not be read; the message says why."""


class SilentRankError(FlightRecorderError):
    """A rank gave no whole answer in time: its process is stopped, or has no CPU."""


class CapturingRankError(FlightRecorderError):
    """A rank captures a CUDA graph, which an answer would break."""


class FlightRecorderClient:
    """The worker server of one rank.

    owner: user id that the socket must belong to, and the process that answers on it.
    timeout_seconds: for all questions of one call together, and their answers.
    """

    def __init__(self, path: Path, owner: int, *, timeout_seconds: float = 5.0) -> None:
        self.asked_at = 0.0
        """Unix time of the last question. What the replies show was so then, or came later."""
        self._path = path
        self._owner = owner
        self._timeout_seconds = timeout_seconds
        self._recorders: tuple[str, ...] = ()

    def ask(self) -> Replies:
        """Return the replies of all recorders of the rank, not yet parsed; raises FlightRecorderError."""
        self.asked_at = time.time()
        deadline = time.monotonic() + self._timeout_seconds
        try:
            if not self._recorders:
                self._recorders = self._find_recorders(deadline)
            left, replies = MAX_REPLY_BYTES, {}
            for name in self._recorders:
                target = f"/handler/{_TARGETS.get(name, name)}"
                with may_ask(self._path.with_suffix(layout.SUFFIX), self._owner) as free:
                    if not free:
                        raise CapturingRankError(f"did not ask {self._path}: it captures a CUDA graph")
                    replies[name] = self._body("POST", target, left, deadline)
                left -= len(replies[name])
            return replies
        except (FlightRecorderError, OSError) as error:
            self._recorders = ()  # the next process at this path may have others
            if isinstance(error, OSError):
                raise FlightRecorderError(f"could not ask {self._path}: {error}") from error
            raise

    def find(self) -> None:
        """Ask which recorders there are, which takes no memory; raises FlightRecorderError."""
        self._recorders = ()  # the process may be another one by now
        self._recorders = self._find_recorders(time.monotonic() + self._timeout_seconds)

    def parse(self, body: bytearray) -> Dump:
        """Return the dump in one reply; raises FlightRecorderError."""
        if body.count(b"{") + body.count(b"[") > MAX_OBJECTS:
            raise FlightRecorderError(f"could not read {self._path}: more than {MAX_OBJECTS} objects")
        if body.count(b",") + body.count(b":") > MAX_VALUES:
            raise FlightRecorderError(f"could not read {self._path}: more than {MAX_VALUES} values")
        try:
            dump = parse_reply(body)
        except DumpError as error:
            raise FlightRecorderError(f"could not read {self._path}: {error}") from error
        if dump.skipped and not dump.entries:
            raise FlightRecorderError(f"could not read {self._path}: none of its entries can be understood")
        return dump

    def _find_recorders(self, deadline: float) -> tuple[str, ...]:
        try:
            names = load_json(self._body("GET", "/handler/", _MAX_NAMES_BYTES, deadline))
        except DumpError as error:
            raise FlightRecorderError(f"could not read {self._path}: {error}") from error
        served = names if isinstance(names, list) else []
        found = tuple(
            name
            for name in RECORDERS
            if name in served or (name in _TARGETS and _RECORDER_PER_BACKEND in served)
        )
        if not found:
            expected = " or ".join(name for name in RECORDERS if name not in _TARGETS)
            raise FlightRecorderError(f"could not read {self._path}: no handler {expected}")
        return found

    def _body(self, method: str, target: str, most_bytes: int, deadline: float) -> bytearray:
        """Return the body of the answer to one question."""
        request = f"{method} {target} HTTP/1.0\r\nHost: rank\r\nContent-Length: 0\r\n\r\n"
        try:
            answer = self._exchange(request.encode(), _MAX_HEAD_BYTES + most_bytes, deadline)
        except (TimeoutError, BlockingIOError) as error:  # or its queue is full of questions
            raise SilentRankError(f"could not ask {self._path}: {error}") from error
        except OSError as error:
            raise FlightRecorderError(f"could not ask {self._path}: {error}") from error
        head = bytes(answer[:_MAX_HEAD_BYTES]).partition(b"\r\n\r\n")[0]
        words = head.split(b"\r\n", 1)[0].split()
        if len(words) < 2 or not words[0].startswith(b"HTTP/1."):
            raise FlightRecorderError(f"could not ask {self._path}: the answer is no HTTP")
        if words[1] != b"200":
            raise FlightRecorderError(
                f"could not ask {self._path}: status {words[1].decode('ascii', 'replace')}"
            )
        del answer[: len(head) + 4]  # in place: it may be large
        return answer

    def _exchange(self, request: bytes, most_bytes: int, deadline: float) -> bytearray:
        answer = bytearray()
        with (
            Folder.open(self._path.parent) as folder,
            connect(folder, self._path.name, self._owner, seconds_left(deadline)) as connection,
        ):
            connection.sendall(request)
            while True:
                connection.settimeout(seconds_left(deadline))
                chunk = connection.recv(_CHUNK_BYTES)
                if not chunk:
                    return answer
                answer += chunk
                if len(answer) > most_bytes:
                    raise FlightRecorderError(f"could not read {self._path}: more than {most_bytes} bytes")


def socket_beside(box: Path) -> Path | None:
    """Return the socket of the rank whose black box this is; None where it serves no flight recorder."""
    path = box.with_suffix(layout.SOCKET_SUFFIX)
    try:
        return path if stat.S_ISSOCK(look(path).st_mode) else None
    except OSError:
        return None


def main_recorder(replies: Replies) -> str:
    """Return the recorder that matters: NCCL's where others have entries too."""
    with_entries = [name for name in RECORDERS if _HAS_ENTRY in replies.get(name, b"")]
    return with_entries[-1] if with_entries else next(iter(replies))


def find_silent(clients: Mapping[_Key, FlightRecorderClient]) -> dict[_Key, FlightRecorderError]:
    """Ask all ranks side by side for something short, and return those without an answer, with the reason.

    A stopped rank takes its whole timeout. However many there are, all of them together take it once.
    """
    if not clients:
        return {}
    with ThreadPoolExecutor(min(len(clients), _MOST_FOUND_AT_ONCE)) as pool:
        answers = pool.map(_outcome, [each.find for each in clients.values()])
        found = zip(clients, answers, strict=True)
        return {key: each for key, each in found if isinstance(each, FlightRecorderError)}


def ask_all(
    clients: Mapping[_Key, FlightRecorderClient], *, at_once: int
) -> Iterator[tuple[_Key, Replies | FlightRecorderError]]:
    """Ask several ranks, `at_once` of them side by side, and yield their answers, those of silent ones first.

    No more than `at_once` replies are in memory, because the caller parses them one after another.
    """
    silent = find_silent(clients)
    yield from silent.items()
    waiting = iter([key for key in clients if key not in silent])
    with ThreadPoolExecutor(at_once) as pool:
        while asked := list(islice(waiting, at_once)):
            answers = pool.map(_outcome, [clients[key].ask for key in asked])
            yield from zip(asked, answers, strict=True)


def _outcome(ask: Callable[[], _Found]) -> _Found | FlightRecorderError:
    try:
        return ask()
    except FlightRecorderError as error:
        return error


_MAX_ODD_ENTRIES = 1024
"""Entries that are not understood: each takes as long as ten others."""
_RECODED_BYTES = 1 << 18
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
    """Return the dump in the answer; raises DumpError."""
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
    """Return the text, in which a byte that is no UTF-8, as a name may hold, is replaced."""
    if text.isascii():
        return text
    chunks = (bytes(text[place : place + _RECODED_BYTES]) for place in range(0, len(text), _RECODED_BYTES))
    return b"".join(each.encode() for each in codecs.iterdecode(chunks, "utf-8", "replace"))


def _entry_by_entry(text: bytes | bytearray) -> Dump:
    """Return what can be understood of a reply that does not fit as a whole."""
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
