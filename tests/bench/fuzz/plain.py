"""One change to bytes, to a text or to JSON, drawn by chance."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from random import Random
from typing import Any

Change = Callable[[bytes, Random], bytes]

BOUNDARIES = (0, 1, -1, 127, 255, 65535, 2**31 - 1, 2**31, 2**32 - 1, 2**53 + 1, 2**62, 2**63 - 1, 2**63)
FLOATS = (float("nan"), float("inf"), -1.0, -0.0, 5e-324, 1e10, 1e300, 1.7e308)
_NUMBER_TEXTS = (
    *b"NaN -1 0 1e999 -1e999 1e308 5e-324 -0.5 1_000 +7 0x10 131071 16777215 4294967296".split(),
    *(b"9223372036854775807", b"9223372036854775808", b"9" * 400, b"9" * 5000, b""),
    *("\u0663\u00b2".encode(), b"\xc2\xb2", b'"\xff"', b"true", b"null", b"[]", b"1.5", b"1" + b"0" * 24),
)
_TEXTS = (
    *b"NaN -1 0 1e999 -1e999 1e308 5e-324 -0.5 1_000 +7 0x10 131071 16777215 4294967296".split(),
    *b"9223372036854775807 9223372036854775808 true null [] 1.5".split(),
    *(b"9" * 400, b"9" * 5000, b"", b"1" + b"0" * 24),
    *("\u0663\u00b2".encode(), b"\xc2\xb2", b'"\xff"'),
)
_TEXTS = (
    *(b"NaN", b"-1", b"0", b"1e999", b"-1e999", b"1e308", b"5e-324", b"-0.5", b"1_000", b"+7", b"0x10"),
    *(
        b"131071",
        b"16777215",
        b"4294967296",
        b"9223372036854775807",
        b"9223372036854775808",
        b"9" * 400,
        b"9" * 5000,
        b"",
    ),
    *("\u0663\u00b2".encode(), b"\xc2\xb2", b'"\xff"', b"true", b"null", b"[]", b"1.5", b"1" + b"0" * 24),
)
_TEXTS = (
    *(b"", b"\0", b"\xff", b"\xed\xa0\x80", b"\\ud800", b'"', b"'", b"\n", b"\r", b"\x1b[31m", b"{", b"]"),
    *("\u2028\u202e\x85".encode(), b"x" * 300, b"y" * 70_000, b"../" * 40 + b"etc/passwd", b"%s%n", b"{}"),
    *(b"[" * 6000, b'{"a":' * 3000, b"(" * 4000, b" " * 20_000, b"1-" * 3000, b"a=" * 5000, b"-", b","),
)
_JSON_TEXTS = (
    *("null", "true", "0", "-1", "1.5", "1e999", "-1e999", "NaN", "Infinity", '""', '"x"', "[]", "{}"),
    *("131071", "16777215"),
    *("9223372036854775808", "18446744073709551616", "9" * 400, "9" * 5000, '"\\ud800"', '"\\u0000"'),
    *('"\xff"', '"' + "z" * 70_000 + '"', "[" * 9000, '{"a":' * 9000),
    *("[null]", "[[]]", '{"":0}', '"1e999"', '"NaN"', '"-1"', '"\\u001b[31m"', "[" + "0," * 20_000 + "0]"),
)
_NUMBER = re.compile(rb"-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")
_WORD = re.compile(rb"[A-Za-z_][\w.:/-]*")
_PRINTABLE = 0.9
"""Part of the characters from which a document counts as text."""
_MOST_REPEATED_BYTES = 1 << 20


def plain_changes(data: bytes, others: Sequence[bytes]) -> list[Change]:
    """Ways to change it; `others` are of the same kind, to be spliced with."""
    found: list[Change] = [*_ANY, lambda whole, draw: _splice(whole, others, draw)]
    found += _TEXT * 3 if data and _printable(data) >= _PRINTABLE else [_used_word] * 6
    return found + [json_value] * 9 if _is_json(data) else found


def times(choices: Sequence[int], size: int, chance: Random) -> int:
    """How often a piece is repeated: a changed document stays in the order of what people have."""
    return min(chance.choice(choices), max(1, _MOST_REPEATED_BYTES // max(1, size)))


def _printable(data: bytes) -> float:
    head = data[:2048]
    return sum(32 <= each < 127 or each in b"\t\n\r" for each in head) / len(head)


def _part(size: int, chance: Random) -> tuple[int, int]:
    """Beginning and end of a piece, mostly a short one."""
    start = chance.randrange(size + 1)
    return start, min(size, start + chance.choice((1, 2, 4, 8, 16, 64, 256, 1024, 4096, size)))


def flip(data: bytes, chance: Random) -> bytes:
    return _set(data, chance, lambda byte: byte ^ 1 << chance.randrange(8))


def _set_byte(data: bytes, chance: Random) -> bytes:
    return _set(data, chance, lambda _: chance.choice((0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256))))


def _set(data: bytes, chance: Random, new: Callable[[int], int]) -> bytes:
    if not data:
        return b"\0"
    # The beginning holds what the rest is read by.
    at = chance.randrange(len(data) if chance.random() < 0.7 else min(len(data), 64))
    return data[:at] + bytes((new(data[at]),)) + data[at + 1 :]


def _truncate(data: bytes, chance: Random) -> bytes:
    return data[: chance.randrange(len(data) + 1)]


def _extend(data: bytes, chance: Random) -> bytes:
    more = (chance.randbytes(chance.randrange(1, 64)), bytes(4096), data, b"\n", b"\xff" * 8)
    return data + chance.choice(more)


def _remove(data: bytes, chance: Random) -> bytes:
    start, end = _part(len(data), chance)
    return data[:start] + data[end:]


def _repeat(data: bytes, chance: Random) -> bytes:
    start, end = _part(len(data), chance)
    count = chance.choice((1, 2, 100, 1000)) if end - start < 65 else 1
    return data[:end] + data[start:end] * count + data[end:]


def _swap(data: bytes, chance: Random) -> bytes:
    first, second, third, fourth = sorted(chance.randrange(len(data) + 1) for _ in range(4))
    return data[:first] + data[third:fourth] + data[second:third] + data[first:second] + data[fourth:]


def _overwrite(data: bytes, chance: Random) -> bytes:
    start, end = _part(len(data), chance)
    return data[:start] + chance.choice((b"\0", b"\xff", b"\x7f", b" ")) * (end - start) + data[end:]


def integer(data: bytes, chance: Random) -> bytes:
    size = chance.choice((2, 4, 8))
    value = chance.choice((*BOUNDARIES, len(data), len(data) + 1, chance.getrandbits(64)))
    raw = (value & (1 << 8 * size) - 1).to_bytes(size, chance.choice(("little", "little", "big")))
    return _aligned(data, raw, chance)


def _float(data: bytes, chance: Random) -> bytes:
    return _aligned(data, struct.pack("<d", chance.choice(FLOATS)), chance)


def _aligned(data: bytes, raw: bytes, chance: Random) -> bytes:
    places = max(1, len(data) // len(raw))
    at = len(raw) * chance.randrange(places if chance.random() < 0.5 else min(places, 1 + 8192 // len(raw)))
    return data[:at] + raw + data[at + len(raw) :]


def _used_word(data: bytes, chance: Random) -> bytes:
    """An aligned word that is not empty, by a boundary, another time, or another such word."""
    words = _used_words(data)
    if not words:
        return _set_byte(data, chance)
    at = chance.choice(words)
    other = chance.choice(words)
    value = chance.choice((*BOUNDARIES, chance.randrange(1, 600), chance.getrandbits(64)))
    raws = (
        (value & 2**64 - 1).to_bytes(8, "little"),
        struct.pack("<d", chance.choice(FLOATS)),
        data[other : other + 8],
    )
    return data[:at] + chance.choice(raws) + data[at + 8 :]


@lru_cache(maxsize=64)
def _used_words(data: bytes) -> list[int]:
    return [at for at in range(0, len(data) - 7, 8) if any(data[at : at + 8])]


def _splice(data: bytes, others: Sequence[bytes], chance: Random) -> bytes:
    other = chance.choice(others) if others else data[::-1]
    return data[: chance.randrange(len(data) + 1)] + other[chance.randrange(len(other) + 1) :]


_ANY: list[Change] = [
    *(flip, _set_byte, _truncate, _extend, _remove, _repeat, _swap, _overwrite, integer, integer, _float)
]


def _of_matches(pattern: re.Pattern[bytes], texts: Sequence[bytes], data: bytes, chance: Random) -> bytes:
    found = list(pattern.finditer(data[:200_000]))
    if not found:
        return _set_byte(data, chance)
    place = chance.choice(found)
    return data[: place.start()] + chance.choice(texts) + data[place.end() :]


_number: Change = partial(_of_matches, _NUMBER, _NUMBER_TEXTS)
_word: Change = partial(_of_matches, _WORD, _TEXTS)


def _insert(data: bytes, chance: Random) -> bytes:
    at = chance.randrange(len(data) + 1)
    return data[:at] + chance.choice(_TEXTS) + data[at:]


def _lines(data: bytes, chance: Random) -> bytes:
    lines = data.splitlines(keepends=True)
    at, other = chance.randrange(len(lines)), chance.randrange(len(lines))
    what = chance.randrange(5)
    if what == 0:
        del lines[at]
    elif what == 1:
        lines[at], lines[other] = lines[other], lines[at]
    elif what == 2:
        lines[at] *= times((2, 50, 20_000), len(lines[at]), chance)
    elif what == 3:
        lines[at] = lines[at].rstrip(b"\n") * times((2, 300), len(lines[at]), chance)
    else:
        old, new = chance.choice(((b",", b";"), (b":", b"="), (b" ", b"\t"), (b"\n", b"")))
        lines[at] = lines[at].replace(old, new)
    return b"".join(lines)


_TEXT: list[Change] = [_number, _number, _word, _insert, _lines]


def _is_json(data: bytes) -> bool:
    return data[:1] in b"{[" and len(data) > 1


def json_value(data: bytes, chance: Random) -> bytes:
    """One value of a JSON text, or of one line of many, replaced, repeated, renamed or left out."""
    lines = [data]
    try:
        json.loads(data)
    except (ValueError, RecursionError):
        lines = data.splitlines(keepends=True)
    at = chance.randrange(len(lines))
    try:
        document = json.loads(lines[at])
    except (ValueError, RecursionError):
        return _number(data, chance)
    places = list(_places(document))
    if not places:
        return chance.choice(_JSON_TEXTS).encode("latin-1")
    parent, key = chance.choice(places)
    raw = _change_value(parent, key, chance)
    text = json.dumps(document, indent=chance.choice((None, None, 1)) if len(lines) == 1 else None)
    lines[at] = text.replace(json.dumps(_MARK), raw).encode("latin-1", "replace") + b"\n"
    return b"".join(lines)


_MARK = "@@mark@@"
_Place = tuple[Any, Any]


def _places(document: Any) -> Iterator[_Place]:
    """Each value in it, as its container and the key there."""
    items = (
        document.items()
        if isinstance(document, dict)
        else enumerate(document if isinstance(document, list) else ())
    )
    for key, value in items:
        yield document, key
        yield from _places(value)


def _change_value(parent: Any, key: Any, chance: Random) -> str:
    """Put a mark or another value there; returns the text that stands for the mark."""
    value = parent[key]
    what = chance.randrange(8)
    if what == 0:
        del parent[key]
    elif what == 1 and isinstance(parent, list):
        parent[key : key + 1] = [value] * times((2, 50, 3000), len(json.dumps(value)), chance)
    elif what == 1:
        parent[key] = _MARK
        return f"{json.dumps(value)}, {json.dumps(key)}: {chance.choice(_JSON_TEXTS[:20])}"
    elif what == 2 and isinstance(parent, dict):
        parent[chance.choice((*parent, "", "\ud800", "x" * 5000))] = parent.pop(key)
    elif what == 3:
        parent[key] = chance.choice((str(value), [value], {"a": value}, [value] * 40))
    else:
        parent[key] = _MARK
        return chance.choice(_JSON_TEXTS) if chance.random() < 0.8 else _nested(chance)
    return ""


def _nested(chance: Random) -> str:
    """As deep as a decoder just allows: whatever goes through it once more may go too deep."""
    depth = chance.randrange(850, 1000)
    begin, end = chance.choice((("[", "]"), ('{"a":', "}"), ('[{"a":', "}]")))
    return begin * (depth // len(end)) + "1" + end * (depth // len(end))
