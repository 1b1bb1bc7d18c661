"""The structure of a zip file, read so that every byte of it is accounted for.

`zipfile` reads the central directory and the contents; a changed local header, padding or end record stays
unseen. torch writes all of them in one way, so each can be compared with what it must be.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import NamedTuple

from rankwatch_checkpoints.reading import Region, TooMuchError

_LOCAL = struct.Struct("<4s5H3I2H")
_CENTRAL = struct.Struct("<4s6H3I5H2I")
_END = struct.Struct("<4s4H2IH")
_LOCATOR = struct.Struct("<4sIQI")
_END64 = struct.Struct("<4sQ2H2I4Q")
_NO_16, _NO_32 = 0xFFFF, 0xFFFFFFFF
_LONGEST_COMMENT = 0xFFFF
_MOST_DIRECTORY_BYTES = 128 << 20
_MOST_ENTRIES = 1_000_000
_TORCH_FLAGS = 0x0808  # names in UTF-8, sizes behind the content
ENCRYPTED = 0x0001
_HAS_DESCRIPTOR = 0x0008

Report = Callable[[str, str], None]
"""Called with the name of an entry, or "", and what is wrong."""


class NoEndError(Exception):
    """The file does not end as a zip file does: it is cut off, damaged there, or no zip file."""


class LayoutError(Exception):
    """The structure cannot be followed; the message says where it breaks."""


class Entry(NamedTuple):
    """A file in the zip file, as the central directory has it."""

    flags: int
    method: int
    crc: int
    compressed: int
    size: int
    header: int
    """Offset at which its local header begins."""
    raw_name: bytes
    constants: tuple[int, ...]
    """Fields that a writer gives the same value in every entry: versions, time, date, disk, attributes."""

    @property
    def name(self) -> str:
        """Its name as text, which is not kept: there may be a million."""
        return self.raw_name.decode("utf-8", "replace")


class Layout(NamedTuple):
    """All entries in the order of the directory, where it begins, and if torch wrote it."""

    entries: list[Entry]
    directory: int
    by_torch: bool


def looks_like_zip(start: bytes) -> bool:
    """Return True for the first bytes of a zip file."""
    return start[:4] in (b"PK\x03\x04", b"PK\x05\x06")


def read_layout(region: Region, report: Report) -> Layout:
    """Return the entries by the central directory. Raises NoEndError, LayoutError and TooMuchError."""
    end = _find_end(region)
    start, size, count = _directory_place(region, end)
    if size > _MOST_DIRECTORY_BYTES:
        raise TooMuchError(f"its directory has {size} bytes, more than are read")
    entries = _read_directory(region.read(start, size), count)
    by_torch = 2 * sum(each.flags == _TORCH_FLAGS and not any(each.constants[2:]) for each in entries) > len(
        entries
    )
    if by_torch:
        tail, end_of_directory = _tail(start, size, count), start + size
        if region.size - end_of_directory != len(tail) or region.read(end_of_directory, len(tail)) != tail:
            report("", "its end record differs from what torch writes")
    return Layout(entries, start, by_torch)


def check_entry(region: Region, entry: Entry, until: int, by_torch: bool, report: Report) -> int | None:
    """Return where the content of the entry begins, after holding the bytes around it against the directory.

    `until` is where the next entry or the directory begins. None if the content cannot be found.
    """
    fixed = _LOCAL.unpack(region.read(entry.header, _LOCAL.size))
    name_length, extra_length = fixed[9], fixed[10]
    flags = entry.flags
    expected_crc = (0, entry.crc) if flags & _HAS_DESCRIPTOR else (entry.crc,)
    if fixed[0] != b"PK\x03\x04" or name_length != len(entry.raw_name):
        report(entry.name, "its header is not what the directory says")
        return None
    begin = entry.header + _LOCAL.size + name_length + extra_length
    if begin + entry.compressed > until:
        report(entry.name, "its header is not what the directory says")
        return None
    rest = region.read(entry.header + _LOCAL.size, name_length + extra_length)
    same = (
        rest[:name_length] == entry.raw_name
        and (fixed[2], fixed[3]) == (flags, entry.method)
        and fixed[6] in expected_crc
        and (fixed[4], fixed[5]) == entry.constants[2:4]
    )
    if by_torch:
        same = same and not any(fixed[6:9]) and fixed[1] == entry.constants[1]
        same = same and _is_padding(rest[name_length:], entry)
        same = same and flags == _TORCH_FLAGS and not any(entry.constants[2:])
        same = same and entry.constants[0] == 0 and entry.constants[1] in (0, 20)
    if not same:
        report(entry.name, "its header is not what the directory says")
    _check_descriptor(region, entry, begin + entry.compressed, until, by_torch, report)
    return int(begin)


def _check_descriptor(
    region: Region, entry: Entry, start: int, until: int, by_torch: bool, report: Report
) -> None:
    found = region.read(start, min(24, until - start))
    short = struct.pack("<4s3I", b"PK\x07\x08", entry.crc, entry.compressed & _NO_32, entry.size & _NO_32)
    long = struct.pack("<4sI2Q", b"PK\x07\x08", entry.crc, entry.compressed, entry.size)
    if not entry.flags & _HAS_DESCRIPTOR:
        allowed: tuple[bytes, ...] = (b"",)
    elif by_torch:
        allowed = (short, long)
    else:
        allowed = (short, long, short[4:], long[4:])
    same = until - start <= 24 and found in allowed
    if not by_torch:  # other writers may leave room between entries
        same = same or not entry.flags & _HAS_DESCRIPTOR or found.startswith(allowed)
    if not same:
        report(entry.name, "the bytes behind it are not what the directory says")


def _is_padding(extra: bytes, entry: Entry) -> bool:
    """Return True for the extra field that torch writes: sizes of a large entry, "Z" up to the alignment."""
    at = 0
    while at + 4 <= len(extra):
        kind, length = extra[at : at + 2], int.from_bytes(extra[at + 2 : at + 4], "little")
        value = extra[at + 4 : at + 4 + length]
        if kind == b"FB" and value != b"Z" * length:
            return False
        if kind == b"\x01\x00" and not set(_quads(value)) <= {entry.size, entry.compressed, entry.header}:
            return False
        if kind not in (b"FB", b"\x01\x00"):
            return False
        at += 4 + length
    return at == len(extra)


def _find_end(region: Region) -> tuple[int, tuple[int, ...]]:
    """Offset and fields of the end record; of the 64-bit one where the plain one has no room."""
    if region.size < _END.size:
        raise NoEndError
    tail = region.read(region.size - _END.size, _END.size)
    at = region.size - _END.size
    if tail[:4] != b"PK\x05\x06" or tail[-2:] != b"\0\0":
        longest = min(region.size, _END.size + _LONGEST_COMMENT)
        tail = region.read(region.size - longest, longest)
        found = tail.rfind(b"PK\x05\x06")
        if found < 0 or found + _END.size > len(tail):
            raise NoEndError
        at = region.size - longest + found
        tail = tail[found : found + _END.size]
        if at + _END.size + int.from_bytes(tail[-2:], "little") != region.size:
            raise NoEndError
    return at, _END.unpack(tail)


def _directory_place(region: Region, end: tuple[int, tuple[int, ...]]) -> tuple[int, int, int]:
    """Offset, size and number of entries of the directory."""
    at, fields = end
    places = [(fields[6], fields[5], fields[4], at)]
    if at >= _LOCATOR.size + _END64.size:
        locator = _LOCATOR.unpack(region.read(at - _LOCATOR.size, _LOCATOR.size))
        for start in (locator[2], at - _LOCATOR.size - _END64.size):
            if 0 <= start <= at - _LOCATOR.size - _END64.size:
                wide = _END64.unpack(region.read(start, _END64.size))
                if wide[0] == b"PK\x06\x06":
                    places.insert(0, (wide[9], wide[8], wide[7], start))
    for offset, size, count, until in places:
        if offset + size == until and (not size or region.read(offset, 4) == b"PK\x01\x02"):
            return offset, size, count
    raise LayoutError("its end record does not lead to its directory")


def _read_directory(data: bytes, count: int) -> list[Entry]:
    if count > len(data) // _CENTRAL.size:
        raise LayoutError(f"its directory is too short for {count} entries")
    if count > _MOST_ENTRIES:
        raise TooMuchError(f"it has {count} entries, more than are read")
    entries: list[Entry] = []
    known: dict[tuple[int, ...], tuple[int, ...]] = {}
    at = 0
    for _ in range(count):
        before = f" behind {entries[-1].name}" if entries else ""
        if at + _CENTRAL.size > len(data) or data[at : at + 4] != b"PK\x01\x02":
            raise LayoutError(f"its directory breaks off{before}")
        entry, at = _read_entry(data, at)
        constants = known.setdefault(entry.constants, entry.constants)
        entries.append(entry._replace(constants=constants))
    if at != len(data):
        raise LayoutError("its directory does not end where the end record says")
    return entries


def _read_entry(data: bytes, at: int) -> tuple[Entry, int]:
    (_, made, need, flags, method, clock, date, crc, compressed, size, *rest) = _CENTRAL.unpack_from(data, at)
    name_length, extra_length, comment_length, disk, internal, external, header = rest
    at += _CENTRAL.size
    raw_name = data[at : at + name_length]
    extra = data[at + name_length : at + name_length + extra_length]
    wide = _wide(extra)
    if size == _NO_32 and wide:
        size = wide.pop(0)
    if compressed == _NO_32 and wide:
        compressed = wide.pop(0)
    if header == _NO_32 and wide:
        header = wide.pop(0)
    constants = (made, need, clock, date, disk, internal, external, comment_length)
    entry = Entry(flags, method, crc, compressed, size, header, raw_name, constants)
    return entry, at + name_length + extra_length + comment_length


def _wide(extra: bytes) -> list[int]:
    at = 0
    while at + 4 <= len(extra):
        kind, length = struct.unpack_from("<2H", extra, at)
        if kind == 1:
            return _quads(extra[at + 4 : at + 4 + length])
        at += 4 + length
    return []


def _quads(value: bytes) -> list[int]:
    return [each for (each,) in struct.iter_unpack("<Q", value[: len(value) // 8 * 8])]


def _tail(start: int, size: int, count: int) -> bytes:
    """Return the end records as torch writes them."""
    few = min(count, _NO_16)
    return (
        _END64.pack(b"PK\x06\x06", _END64.size - 12, 0x031E, 45, 0, 0, count, count, size, start)
        + _LOCATOR.pack(b"PK\x06\x07", 0, start + size, 1)
        + _END.pack(b"PK\x05\x06", 0, 0, few, few, min(size, _NO_32), min(start, _NO_32), 0)
    )
