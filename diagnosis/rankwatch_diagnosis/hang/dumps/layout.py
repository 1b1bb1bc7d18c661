"""Reads the pickles that PyTorch itself writes, without building the objects of every entry.

PyTorch writes entries one after another, with their keys in one order. Completed collectives differ in a few
numbers only; once one of a kind has been loaded, the others are recognised by a regular expression, which is
faster. Whatever looks different is loaded as ever, and a file of any other layout is left to `load_plain`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from rankwatch_diagnosis.hang.dumps.entries import EntryReader
from rankwatch_diagnosis.hang.dumps.parse import DumpError, finish, open_reader
from rankwatch_diagnosis.hang.dumps.plain_pickle import PlainPart
from rankwatch_diagnosis.hang.snapshot import Snapshot

_FIRST_KEY = b"}(X\x09\x00\x00\x00record_idq"
_END = re.compile(rb"(?<=u)eu(?:q.|r.{4})?\.\Z", re.DOTALL)
"""The end of the list of entries, of the document, and of the pickle."""
_NUMBER = rb"(?:K.|M..|J.{4}|\x8a\x08.{8})"
_TEXT = rb"(?:h.|j.{4})"
_VALUE = rb"(?:" + _NUMBER + rb"|" + _TEXT + rb"|N|\x88|\x89|G.{8})"
_SIZES = rb"\]\((?:\]\(" + _NUMBER + rb"*e)*e"
_TYPES = rb"\]\(" + _TEXT + rb"*e"
_VALUES = {
    "process_group": _TEXT + _TEXT + rb"\x86",
    "input_sizes": _SIZES,
    "output_sizes": _SIZES,
    "input_dtypes": _TYPES,
    "output_dtypes": _TYPES,
    "frames": rb"\]\((?:\}\((?:" + _TEXT + _VALUE + rb")*u)*e",
}
_VARYING = frozenset(
    {
        "record_id",
        "collective_seq_id",
        "p2p_seq_id",
        "op_id",
        "time_created_ns",
        "time_discovered_started_ns",
        "time_discovered_completed_ns",
        "duration_ms",
    }
)
"""Keys in which completed collectives of one kind differ. The last entry of a file is always loaded, and with
it the newest number and time."""


def read_recorder_pickle(data: bytes, rank: int) -> Snapshot | None:
    """The snapshot, or None where the file has another layout; raises DumpError as `parse_dump` does."""
    start = data.find(_FIRST_KEY)
    end = _END.search(data, max(0, len(data) - 16))
    if start < 0 or end is None:
        return None
    try:
        return _read(data, start, end.start(), rank)
    except DumpError:
        raise
    except ValueError:
        return None


def _read(data: bytes, start: int, end: int, rank: int) -> Snapshot | None:
    part = PlainPart()
    document = part.load(data[:start] + b"eu.")
    if not isinstance(document, dict) or document.get("entries") != []:
        return None
    token = b"}(h" + data[start + len(_FIRST_KEY) : start + len(_FIRST_KEY) + 1]
    first, *chunks = data[start:end].split(token)
    reader = open_reader(document, len(chunks) + 1)
    entry = part.load(b"\x80\x02" + first + b".")
    if not isinstance(entry, dict):
        return None
    reader.take(entry)
    _Kinds(part, reader, token, entry).take(chunks)
    return finish(document, rank, reader)


class _Kinds:
    """Entries by kind: what is left of their bytes without the numbers that vary."""

    def __init__(self, part: PlainPart, reader: EntryReader, token: bytes, entry: dict[str, object]) -> None:
        self._part = part
        self._reader = reader
        self._token = token
        self._pattern = re.compile(b"".join(self._pieces(entry)), re.DOTALL)
        names = [name for name in entry if name in _VARYING]
        self._sequence = 2 * names.index("collective_seq_id") if "collective_seq_id" in names else -1
        self._known: dict[tuple[bytes, ...], tuple[int, int]] = {}

    def _pieces(self, entry: dict[str, object]) -> Iterator[bytes]:
        """Groups by turns: a value that varies, then everything up to the next of these."""
        for index, name in enumerate(entry):
            if index:
                yield re.escape(self._part.reference(name))
            if name in _VARYING:
                yield (b")(" if index else b"(") + _VALUE + b")("
            else:
                yield _VALUES.get(name, _VALUE)
        yield b"u)"

    def take(self, chunks: list[bytes]) -> None:
        """All entries after the first; raises ValueError where the layout is another one."""
        match, known, groups, place = (
            self._pattern.fullmatch,
            self._known,
            self._reader.groups,
            self._sequence,
        )
        for chunk in chunks[:-1]:
            found = match(chunk)
            if found is None or place < 0:
                self._load(chunk)
                continue
            values = found.groups()
            kind = values[1::2]
            like = known.get(kind)
            if like is not None:
                group = groups[like[0]]
                if group.first_sequence + len(group.history) == _number(values[place]):
                    group.history.append(like[1])
                    continue
            like = self._load(chunk)
            if like is not None:
                known[kind] = like
        for chunk in chunks[-1:]:
            self._load(chunk)

    def _load(self, chunk: bytes) -> tuple[int, int] | None:
        """Load one entry; its group and signature where others of its kind need not be loaded."""
        return self._reader.take(self._part.load(b"\x80\x02" + self._token + chunk + b"."))


def _number(value: bytes) -> int:
    if value[:1] == b"K":
        return value[1]
    if value[:1] in b"MJ":
        return int.from_bytes(value[1:], "little", signed=value[:1] == b"J")
    return int.from_bytes(value[2:], "little", signed=True)
