"""Writes a dump as PyTorch does: protocol 2, each text once, containers never shared."""

from __future__ import annotations

import struct

_TUPLES = {1: b"\x85", 2: b"\x86", 3: b"\x87"}
_CONSTANTS = {None: b"N", True: b"\x88", False: b"\x89"}


def recorder_pickle(document: object) -> bytes:
    """The bytes of a dump of plain containers."""
    writer = _Writer()
    writer.write(document)
    return b"\x80\x02" + bytes(writer.output) + b"r\xff\xff\x00\x00."


class _Writer:
    def __init__(self) -> None:
        self.output = bytearray()
        self._texts: dict[str, int] = {}

    def write(self, value: object) -> None:
        if value is None or isinstance(value, bool):
            self.output += _CONSTANTS[value]
        elif isinstance(value, int):
            self.output += _number(value)
        elif isinstance(value, str):
            self._text(value)
        elif isinstance(value, tuple):
            self._all(value)
            self.output += _TUPLES[len(value)]
        elif isinstance(value, list):
            self.output += b"]("
            self._all(value)
            self.output += b"e"
        elif isinstance(value, dict):
            self.output += b"}("
            self._all(tuple(each for item in value.items() for each in item))
            self.output += b"u"
        else:
            raise TypeError(type(value))

    def _all(self, values: tuple[object, ...] | list[object]) -> None:
        for each in values:
            self.write(each)

    def _text(self, value: str) -> None:
        index = self._texts.get(value)
        if index is None:
            index = self._texts[value] = len(self._texts)
            data = value.encode()
            self.output += b"X" + struct.pack("<I", len(data)) + data
            self.output += b"q" + bytes([index]) if index < 256 else b"r" + struct.pack("<I", index)
        else:
            self.output += b"h" + bytes([index]) if index < 256 else b"j" + struct.pack("<I", index)


def _number(value: int) -> bytes:
    if 0 <= value < 1 << 8:
        return b"K" + bytes([value])
    if 0 <= value < 1 << 16:
        return b"M" + struct.pack("<H", value)
    if -(1 << 31) <= value < 1 << 31:
        return b"J" + struct.pack("<i", value)
    return b"\x8a\x08" + struct.pack("<q", value)
