"""Pickles read as data: no class is looked up, no function called, no object of the pickle's choice built.

A pickle is a program. `read_pickle` runs it on a machine of its own that has no way out: classes and
functions become `Global`, calls become `Call`, dictionaries become `Pairs`, which hash nothing. Time is
bounded by the length of the pickle and memory by MOST_MEMORY_BYTES, of which each operation takes its part.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, NamedTuple

from rankwatch_checkpoints.reading import TooMuchError

MOST_BYTES = 256 << 20
"""Bytes of a pickle that is read; what fits into MOST_MEMORY_BYTES is smaller, but for huge texts."""
MOST_MEMORY_BYTES = 1 << 30
"""Memory that the content of a pickle may take. Metadata of torch.distributed.checkpoint counts for about
3,100 bytes for each stored piece of a tensor, and takes 2,000: 340,000 pieces are read."""
_MOST_ATTRIBUTES = 100
"""Of an object that is read by name. Looking for one of them takes time that grows with their number."""
_LONGEST_NAME = 1000
"""Characters of a class or function with its module."""
_LONGEST_INTEGER = 64
_FRAME_BYTES = 64 << 10


class PickleError(Exception):
    """The bytes are no pickle, or one that is not read; the message is half a sentence."""


class Global(NamedTuple):
    """A class or function, by name only."""

    module: str
    name: str


class Call:
    """What would be an object: the function and its arguments, its state, and items that were added to it."""

    __slots__ = ("arguments", "function", "items", "state")

    def __init__(self, function: Any, arguments: Any) -> None:
        self.function = function
        self.arguments = arguments
        self.state: Any = None
        self.items: Pairs | list[Any] | None = None


class Pairs(list[tuple[Any, Any]]):
    """A dictionary in its order of insertion; keys may repeat and are not hashed."""

    __slots__ = ()

    def named(self, key: str) -> Any:
        """Return the value under a string; None if there is none."""
        for each, value in reversed(self):
            if isinstance(each, str) and each == key:
                return value
        return None


class Persistent:
    """What the pickle leaves to its reader: for torch, a storage."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


class Pickled(NamedTuple):
    """The content of a pickle and the number of bytes it takes."""

    value: Any
    end: int


def read_pickle(data: bytes) -> Pickled:
    """Return the content of the pickle at the start of `data`. Raises PickleError, and TooMuchError."""
    if len(data) > MOST_BYTES:
        raise TooMuchError(f"the pickle has {len(data)} bytes, more than the {MOST_BYTES} that are read")
    machine = _Machine(data)
    try:
        return machine.run()
    except (IndexError, struct.error):
        raise PickleError(f"the pickle breaks off or is no pickle at byte {machine.position}") from None
    except (KeyError, TypeError, ValueError):
        raise PickleError(f"the pickle makes no sense at byte {machine.position}") from None


def name_of(value: Any) -> str:
    """Return `module.name` of what is a Global or a Call of one; empty for anything else."""
    function = value.function if isinstance(value, Call) else value
    return f"{function.module}.{function.name}" if isinstance(function, Global) else ""


def state_of(value: Any, name: str) -> Any:
    """Return an attribute in the state of a Call; None if there is none."""
    state = value.state if isinstance(value, Call) else None
    return state.named(name) if isinstance(state, Pairs) and len(state) <= _MOST_ATTRIBUTES else None


class _Machine:
    def __init__(self, data: bytes) -> None:
        self.position = 0
        self._frame_end: int | None = None
        self._long = False  # values of a frame's size or more lie between frames
        self._data = data
        self._left = MOST_MEMORY_BYTES
        self._stack: list[Any] = []
        self._marks: list[int] = []
        self._memo: list[Any] = []
        self._scattered: dict[int, Any] = {}  # what a pickle memoizes out of order

    def run(self) -> Pickled:
        data, operations, costs = self._data, _OPERATIONS, _COSTS
        while True:
            code = data[self.position]
            self.position += 1
            if code == 0x2E:  # STOP
                if self._frame_end not in (None, self.position) and not self._long:
                    raise PickleError("the pickle's last frame does not end where it does")
                if len(self._stack) != 1 or self._marks:
                    raise PickleError("the pickle ends with a stack that is not empty")
                return Pickled(self._stack.pop(), self.position)
            operation = operations.get(code)
            if operation is None:
                raise PickleError(f"the pickle has the unknown operation {code} at byte {self.position - 1}")
            self._left -= costs[code]
            if self._left < 0:
                raise TooMuchError("the pickle holds more objects than are read")
            operation(self)

    def take(self, count: int) -> bytes:
        if count < 0 or self.position + count > len(self._data):
            raise PickleError(f"the pickle breaks off at byte {self.position}")
        self.position += count
        self._long = self._long or count >= _FRAME_BYTES
        return self._data[self.position - count : self.position]

    def number(self, form: str) -> Any:
        return struct.unpack(form, self.take(struct.calcsize(form)))[0]

    def line(self) -> str:
        end = self._data.find(b"\n", self.position)
        if end < 0:
            raise PickleError(f"the pickle has a line without an end at byte {self.position}")
        text = self.decoded(end - self.position)
        self.position += 1
        return text

    def decoded(self, count: int) -> str:
        raw = self.take(count)
        self._left -= count if raw.isascii() else 4 * count
        return raw.decode("utf-8", "replace")

    def push(self, value: Any) -> None:
        self._stack.append(value)

    def pop(self) -> Any:
        if self._marks and len(self._stack) <= self._marks[-1]:
            raise PickleError("the pickle takes from an empty stack")
        return self._stack.pop()

    def mark(self) -> None:
        self._marks.append(len(self._stack))

    def popped(self) -> list[Any]:
        """Return what lies above the last mark."""
        start = self._marks.pop()
        items = self._stack[start:]
        del self._stack[start:]
        return items

    def several(self, count: int) -> tuple[Any, ...]:
        items = [self.pop() for _ in range(count)]
        return tuple(reversed(items))

    def duplicate(self) -> None:
        value = self.pop()
        self._stack += (value, value)

    def drop(self) -> None:
        if self._marks and len(self._stack) <= self._marks[-1]:
            self._marks.pop()
        else:
            self._stack.pop()

    def global_(self, module: Any, name: Any) -> None:
        if not (isinstance(module, str) and isinstance(name, str)):
            raise PickleError("the pickle names a class by something that is no text")
        if len(module) + len(name) > _LONGEST_NAME:
            raise PickleError(f"the pickle names a class by {len(module) + len(name)} characters")
        self.push(Global(module, name))

    def call(self, function: Any, arguments: Any) -> None:
        self.push(Call(function, arguments))

    def stacked_global(self) -> None:
        module, name = self.several(2)
        self.global_(module, name)

    def reduce(self) -> None:
        self.call(*self.several(2))

    def reduce_with_keywords(self) -> None:
        function, arguments, keywords = self.several(3)
        self.call(function, (arguments, keywords))

    def instance(self) -> None:
        module, name = self.line(), self.line()
        self.call(Global(module, name), tuple(self.popped()))

    def object_(self) -> None:
        function, *arguments = self.popped()
        self.call(function, tuple(arguments))

    def build(self) -> None:
        state = self.pop()
        if isinstance(self._stack[-1], Call):
            self._stack[-1].state = state

    def append(self, items: list[Any]) -> None:
        target = self._stack[-1]
        if isinstance(target, Call):
            if target.items is None:
                target.items = []
            target = target.items
        if not isinstance(target, list) or isinstance(target, Pairs):
            raise PickleError("the pickle appends to something that is no list")
        self._left -= _ITEM_BYTES * len(items)
        target += items

    def set_items(self, items: list[Any]) -> None:
        target = self._stack[-1]
        if isinstance(target, Call):
            if target.items is None:
                target.items = Pairs()
            target = target.items
        if not isinstance(target, Pairs) or len(items) % 2:
            raise PickleError("the pickle sets an item of something that is no dictionary")
        self._left -= _PAIR_BYTES * (len(items) // 2)
        target.extend(zip(items[::2], items[1::2], strict=True))

    def dictionary(self) -> None:
        items = self.popped()
        self.push(Pairs())
        self.set_items(items)

    def integer(self, count: int) -> None:
        if not 0 <= count <= _LONGEST_INTEGER:
            raise PickleError(f"the pickle holds an integer of {count} bytes")
        self.push(int.from_bytes(self.take(count), "little", signed=True))

    def integer_line(self) -> None:
        text = self.line().removesuffix("L")
        if len(text) > _LONGEST_INTEGER:
            raise PickleError(f"the pickle holds an integer of {len(text)} digits")
        self.push({"00": False, "01": True}.get(text) if text in ("00", "01") else int(text))

    def text(self, count: int) -> None:
        self.push(self.decoded(count))

    def bytes_(self, count: int) -> None:
        self._left -= count
        self.push(self.take(count))

    def get(self, index: int) -> None:
        if index in self._scattered:
            self._stack.append(self._scattered[index])
        elif index >= 0:
            self._stack.append(self._memo[index])
        else:
            raise PickleError("the pickle takes what it has not memoized")

    def put(self, index: int) -> None:
        value = self._stack[-1]
        if index == len(self._memo) and index not in self._scattered:
            self._memo.append(value)
        elif 0 <= index < len(self._memo):
            self._memo[index] = value
        else:
            self._left -= _SCATTERED_BYTES
            self._scattered[index] = value

    def memoize(self) -> None:
        self.put(len(self._memo) + len(self._scattered))

    def protocol(self) -> None:
        if self.take(1)[0] > 5:
            raise PickleError("the pickle has an unknown protocol")

    def frame(self) -> None:
        length = self.number("<Q")
        if self.position + length > len(self._data):
            raise PickleError(f"the pickle breaks off in the frame at byte {self.position}")
        self._frame_end = self.position + length


def _constant(value: Any) -> Callable[[_Machine], None]:
    return lambda machine: machine.push(value)


_OPERATIONS: dict[int, Callable[[_Machine], None]] = {
    0x80: _Machine.protocol,
    0x95: _Machine.frame,
    ord("("): _Machine.mark,
    ord("0"): _Machine.drop,
    ord("1"): lambda m: m.popped().clear(),
    ord("2"): _Machine.duplicate,
    ord("N"): _constant(None),
    0x88: _constant(True),
    0x89: _constant(False),
    ord("I"): _Machine.integer_line,
    ord("L"): _Machine.integer_line,
    ord("J"): lambda m: m.push(m.number("<i")),
    ord("K"): lambda m: m.push(m.take(1)[0]),
    ord("M"): lambda m: m.push(m.number("<H")),
    0x8A: lambda m: m.integer(m.take(1)[0]),
    0x8B: lambda m: m.integer(m.number("<i")),
    ord("F"): lambda m: m.push(float(m.line())),
    ord("G"): lambda m: m.push(m.number(">d")),
    ord("S"): lambda m: m.push(m.line()),
    ord("V"): lambda m: m.push(m.line()),
    ord("T"): lambda m: m.text(m.number("<i")),
    ord("U"): lambda m: m.text(m.take(1)[0]),
    ord("X"): lambda m: m.text(m.number("<I")),
    0x8C: lambda m: m.text(m.take(1)[0]),
    0x8D: lambda m: m.text(m.number("<Q")),
    ord("B"): lambda m: m.bytes_(m.number("<I")),
    ord("C"): lambda m: m.bytes_(m.take(1)[0]),
    0x8E: lambda m: m.bytes_(m.number("<Q")),
    0x96: lambda m: m.bytes_(m.number("<Q")),
    ord("c"): lambda m: m.global_(m.line(), m.line()),
    0x93: _Machine.stacked_global,
    ord("R"): _Machine.reduce,
    0x81: _Machine.reduce,
    0x92: _Machine.reduce_with_keywords,
    ord("i"): _Machine.instance,
    ord("o"): _Machine.object_,
    ord("b"): _Machine.build,
    ord("P"): lambda m: m.push(Persistent(m.line())),
    ord("Q"): lambda m: m.push(Persistent(m.pop())),
    ord("}"): lambda m: m.push(Pairs()),
    ord("d"): _Machine.dictionary,
    ord("]"): lambda m: m.push([]),
    0x8F: lambda m: m.push([]),
    ord("l"): lambda m: m.push(m.popped()),
    0x91: lambda m: m.push(m.popped()),
    ord(")"): _constant(()),
    ord("t"): lambda m: m.push(tuple(m.popped())),
    0x85: lambda m: m.push(m.several(1)),
    0x86: lambda m: m.push(m.several(2)),
    0x87: lambda m: m.push(m.several(3)),
    ord("a"): lambda m: m.append([m.pop()]),
    ord("e"): lambda m: m.append(m.popped()),
    0x90: lambda m: m.append(m.popped()),
    ord("s"): lambda m: m.set_items(list(m.several(2))),
    ord("u"): lambda m: m.set_items(m.popped()),
    ord("g"): lambda m: m.get(int(m.line())),
    ord("h"): lambda m: m.get(m.take(1)[0]),
    ord("j"): lambda m: m.get(m.number("<I")),
    ord("p"): lambda m: m.put(int(m.line())),
    ord("q"): lambda m: m.put(m.take(1)[0]),
    ord("r"): lambda m: m.put(m.number("<I")),
    0x94: _Machine.memoize,
}
"""Operation -> what the machine does. Extensions and out-of-band buffers are unknown: nothing needs them."""

_ITEM_BYTES = 16  # a place in a list that grows
_PAIR_BYTES = 80  # a tuple of two in such a place
_SCATTERED_BYTES = 150  # an entry of a dictionary that grows, and its key
_REFERENCES = b"N\x88\x89)012ghj\x94pqr\x80\x95ueasb\x90"
_NUMBERS = b"(JKMFG"
_TEXTS = b"IL\x8a\x8bSVTUX\x8c\x8dBC\x8e\x96"
_COSTS = tuple(
    8 if each in _REFERENCES else 40 if each in _NUMBERS else 64 if each in _TEXTS else 96
    for each in range(256)
)
"""Bytes that an operation takes, less what grows with a length: a place on the stack, with a small number in
it, with a text or an integer of any size, with a container. What it later gives back does not count."""
