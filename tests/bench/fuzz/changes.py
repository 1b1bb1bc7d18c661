"""One change to a valid document, drawn by chance: of its bytes, or of what they mean.

Noise fails in the first line of a parser. What is nearly right reaches the lines behind it, so a text has its
numbers and lines changed, JSON its values, a pickle its operations, and what is compressed also its content.
"""

from __future__ import annotations

import gzip
import io
import pickletools
import re
import struct
import zipfile
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache, lru_cache
from random import Random

from rankwatch.blackbox import layout

from .plain import BOUNDARIES, FLOATS, Change, flip, integer, json_value, plain_changes, times

_BOMB_BYTES = 96 << 20
_BOMBS = (b"\0", b"\n", b"a", b"1,", b'{"a":')


def changed(data: bytes, others: Sequence[bytes], chance: Random) -> bytes:
    """The document with one change; `others` are of the same kind, to be spliced with."""
    found = plain_changes(data, others)
    for kind, fits in _BY_FORM:
        if fits(data):
            found += kind * 3
    return chance.choice(found)(data, chance)


def _is_pickle(data: bytes) -> bool:
    return data[:1] == b"\x80" and data[1:2] in b"\x02\x03\x04\x05" and data.rstrip(b"\0").endswith(b".")


_OPERATIONS = (
    *(b"0", b"1", b"2", b"(", b"]", b"}", b")", b"e", b"u", b"a", b"s", b"t", b"\x85", b"R", b"b", b"\x81"),
    *(b"\x94", b"\x90", b"\x8f(\x91", b"Q", b"N", b".", b"h\x00", b"h\xff", b"q\x00", b"i", b"o", b"\x93"),
    *(b"j\xff\xff\xff\x00", b"r\xff\xff\xff\x03", b"r\xff\xff\xff\x7f", b"r\xff\xff\xff\xff"),
    *(b"X\xff\xff\xff\x7f", b"\x8d\xff\xff\xff\xff\0\0\0\0", b"\x8b\xff\xff\xff\x7f", b"\x8a\xff"),
    *(b"\x95" + b"\xff" * 8, b"\x96\xff\xff\xff\xff\0\0\0\0", b"B\xff\xff\xff\x7f", b"\x82\x01"),
    *(b"I" + b"9" * 5000 + b"\n", b"L" + b"9" * 4000 + b"L\n", b"F1e999\n", b"V\\ud800\n", b"cos\nsystem\n"),
    *(b"]" * 50_000, b"(" * 50_000, b"2" * 50_000, b"2\x86" * 40, b"]" + b"2a" * 20, b"2l" * 30),
    b"G" + struct.pack(">d", float("nan")),
)
"""Numbers, sizes and places in the memo that are too large, calls, and containers within containers."""


@cache
def _operations(data: bytes) -> list[int]:
    """Where each operation of a pickle begins, and where the last one ends."""
    found: list[int] = []
    with suppress(Exception):  # it was cut off: what was found serves
        found.extend(at for _, _, at in pickletools.genops(data) if at is not None)
    return [*found, len(data)] if found else [0, len(data)]


def _operation(data: bytes, chance: Random) -> bytes:
    """One operation of a pickle replaced, repeated, left out, moved or added."""
    places = _operations(data)
    index = chance.randrange(len(places) - 1)
    start, end = places[index], places[index + 1]
    what = chance.randrange(5)
    if what == 0:
        return data[:start] + data[end:]
    if what == 1:
        return data[:end] + data[start:end] * times((1, 2, 5000), end - start, chance) + data[end:]
    if what == 2:
        return data[:start] + chance.choice(_OPERATIONS) + data[end:]
    if what == 3:
        return data[:start] + chance.choice(_OPERATIONS) + data[start:]
    other = chance.randrange(len(places) - 1)
    return data[:start] + data[places[other] : places[other + 1]] + data[end:]


def _inside_gzip(data: bytes, chance: Random) -> bytes:
    try:
        content = gzip.decompress(data)
    except (OSError, EOFError, zlib.error):
        return flip(data, chance)
    return gzip.compress(changed(content, (), chance), compresslevel=1)


@lru_cache(maxsize=32)
def _bomb(text: bytes) -> bytes:
    packer = zlib.compressobj(9, wbits=31)
    block = text * max(1, (1 << 20) // len(text))
    return b"".join((*(packer.compress(block) for _ in range(_BOMB_BYTES >> 20)), packer.flush()))


def _with_bomb(data: bytes, chance: Random) -> bytes:
    """A member that unpacks to far more than it has, before or behind the document."""
    try:
        lines = gzip.decompress(data).splitlines(keepends=True)[-1:]
    except (OSError, EOFError, zlib.error):
        lines = []
    bomb = _bomb(chance.choice((*_BOMBS, *lines)))
    return chance.choice((bomb + data, data + bomb))


def _zip_field(data: bytes, chance: Random) -> bytes:
    """A field of one of the headers of a zip file: sizes, offsets, names, methods."""
    headers = [
        each.start() for each in re.finditer(rb"PK(?:\x01\x02|\x03\x04|\x05\x06|\x06\x06|\x06\x07)", data)
    ]
    at = chance.choice(headers) + chance.randrange(4, 46)
    size = chance.choice((2, 4, 8))
    raw = (chance.choice((*BOUNDARIES, len(data))) & (1 << 8 * size) - 1).to_bytes(size, "little")
    return data[:at] + raw + data[at + size :]


def _inside_zip(data: bytes, chance: Random) -> bytes:
    """The content of one member, with sizes and checksums as they must be."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as old:
            members = [(each, old.read(each)) for each in old.infolist()]
    except (zipfile.BadZipFile, OSError, ValueError, RuntimeError, EOFError, zlib.error):
        return flip(data, chance)  # RuntimeError: a member says it is encrypted, or packed in another way
    chosen = chance.randrange(len(members))
    written = io.BytesIO()
    with zipfile.ZipFile(
        written, "w", chance.choice((zipfile.ZIP_STORED, zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))
    ) as new:
        for index, (member, content) in enumerate(members):
            name = member.filename if chance.random() < 0.98 else "../" + member.filename[:40]
            new.writestr(name, changed(content, (), chance) if index == chosen else content)
    return written.getvalue()


def _safetensors_header(data: bytes, chance: Random) -> bytes:
    """The header changed as JSON, with its length right, or the length alone."""
    length = int.from_bytes(data[:8], "little")
    if chance.random() < 0.2:
        value = chance.choice((*BOUNDARIES, length + 1, length - 1, len(data)))
        return (value & 2**64 - 1).to_bytes(8, "little") + data[8:]
    header = json_value(data[8 : 8 + length], chance)
    return len(header).to_bytes(8, "little") + header + data[8 + length :]


def _http_body(data: bytes, chance: Random) -> bytes:
    head, end, body = data.partition(b"\r\n\r\n")
    return head + end + changed(body, (), chance)


_OF_HEADER = (
    *((layout.FIXED, 0), (layout.DECLARED, layout.DECLARED_OFFSET), (layout.PLAN, layout.PLAN_OFFSET)),
    *((layout.STARTED_BY, layout.STARTED_BY_OFFSET), (layout.COORDINATE, layout.FIXED.size)),
)
_OF_RECORDS = (
    *(layout.HEAD, layout.STEP, layout.COLLECTIVE, layout.SCALAR, layout.CHECKPOINT, layout.ENDING),
    *(layout.FINGERPRINT, layout.DEVICE, layout.DEVICE_WAIT, layout.DEVICE_STEP),
)


def _box_field(data: bytes, chance: Random) -> bytes:
    """A field of a black box: of its header, its now block or a record, which may become another kind."""
    what = chance.randrange(4)
    if what == 0:
        return _field(data, *chance.choice(_OF_HEADER), chance)
    if what == 1:
        at = layout.NOW_OFFSET + 8 * (chance.choice(list(layout.Now)) + chance.randrange(4))
        return _field(data, struct.Struct(chance.choice(("<q", "<d"))), at, chance)
    ring = range(layout.RING_OFFSET, len(data) - layout.RECORD_SIZE, layout.RECORD_SIZE)
    written = [at for at in ring if any(data[at : at + 8])] or [layout.RING_OFFSET]
    at = chance.choice(written)
    if what == 2:
        tag = layout.tag(chance.choice(list(layout.RecordKind)), chance.randrange(40))
        return data[:at] + tag.to_bytes(8, "little") + data[at + 8 :]
    kind = chance.choice(_OF_RECORDS)
    return _field(data, kind, at if kind is layout.HEAD else at + layout.PAYLOAD_OFFSET, chance)


def _field(data: bytes, kind: struct.Struct, at: int, chance: Random) -> bytes:
    """One field of a struct by a boundary, a number near it, or a text."""
    fields = list(kind.unpack_from(data, at))
    index = chance.randrange(len(fields))
    old = fields[index]
    if isinstance(old, bytes):
        fields[index] = chance.choice((b"", b"\xff" * 200, b"../../x", b"\x1b[31m", b"a\nb", old[::-1]))
    elif isinstance(old, float):
        fields[index] = chance.choice((*FLOATS, old + 1.0, old * 1e6, -old))
    else:
        fields[index] = chance.choice((*BOUNDARIES, 2**16, 10**6, 2**31 - 2, old + 1, old * 1000))
    try:
        return data[:at] + kind.pack(*fields) + data[at + kind.size :]
    except struct.error:  # too large for the field
        return integer(data, chance)


_BY_FORM: tuple[tuple[list[Change], Callable[[bytes], bool]], ...] = (
    ([_http_body] * 12, lambda data: data[:5] == b"HTTP/"),
    ([_box_field] * 8, lambda data: data[:8] == layout.MAGIC and len(data) > layout.RING_OFFSET),
    ([_operation] * 3, _is_pickle),
    ([*[_inside_gzip] * 5, _with_bomb], lambda data: data[:2] == b"\x1f\x8b"),
    ([_zip_field, _zip_field, _inside_zip, _inside_zip], lambda data: data[:2] == b"PK"),
    (
        [_safetensors_header] * 2,
        lambda data: data[8:9] == b"{" and int.from_bytes(data[:8], "little") <= len(data),
    ),
)
"""Changes of a form, and what a document of it begins with."""
