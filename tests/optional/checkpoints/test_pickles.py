"""A hostile pickle executes nothing, and takes bounded time and memory."""

from __future__ import annotations

import pickle
import pickletools
import resource
import struct
import subprocess
import sys
from collections import OrderedDict
from pathlib import Path

import pytest

from rankwatch_checkpoints.pickles import Call, Global, Pairs, Persistent, PickleError, read_pickle
from support.hostile_pickles import attacks

CANARY = "canary"


@pytest.mark.parametrize("name", list(attacks(Path(CANARY))))
def test_nothing_is_executed(name: str, tmp_path: Path) -> None:
    """Every way to call something leaves a name behind, and no more."""
    canary = tmp_path / CANARY
    modules = set(sys.modules)
    try:
        value = read_pickle(attacks(canary)[name]).value
    except PickleError:
        value = None
    assert not canary.exists()
    assert set(sys.modules) == modules
    assert value is None or isinstance(value, (Call, Persistent))


BOMBS = {
    "a long of 2 GiB": b"\x80\x02\x8b" + struct.pack("<i", 2**31 - 1) + b"1.",
    "a long of negative length": b"\x80\x02\x8b" + struct.pack("<i", -1) + b".",
    "an integer of a million digits": b"L" + b"9" * 1_000_000 + b"\n.",
    "a text of 2**62 bytes": b"\x80\x04\x8d" + struct.pack("<Q", 2**62) + b".",
    "bytes of 2**62": b"\x80\x04\x8e" + struct.pack("<Q", 2**62) + b".",
    "a frame of 2**63": b"\x80\x04\x95" + struct.pack("<Q", 2**63) + b"N.",
    "an empty one": b"",
    "no stop": b"\x80\x02N",
    "an unknown memo": b"h\x05.",
    "a pop of nothing": b"0.",
    "tuples out of nothing": b"\x87.",
    "a mark without an end": b"((((((.",
    "an extension": b"\x82\x01.",
    "protocol 99": b"\x80\x63N.",
    "marks without number": b"(" * 10_000_000 + b".",
    "a text as a class": b"\x80\x04KK\x93.",
    "items of a list set": b"]K\x01K\x02s.",
    "an odd number of items": b"}(K\x01u.",
    "appended to a number": b"K\x01K\x02a.",
    "a class of a long name": b"c" + b"a" * 2000 + b"\nb\n.",
    "a memo before the first": b"Np-1\ng-2\n.",
}


@pytest.mark.parametrize("name", BOMBS)
def test_bombs_are_refused(name: str) -> None:
    with pytest.raises(PickleError):
        read_pickle(BOMBS[name])


def test_shared_tuples_are_not_copied() -> None:
    """A billion laughs: tuples of tuples of the same tuple are references, and nothing hashes them."""
    data = b"\x80\x02)" + b"2\x86" * 5000 + b"\x94"[:0] + b"."
    depth, value = 0, read_pickle(data).value
    while value:
        depth, value = depth + 1, value[0]
    assert depth == 5000
    nested = b"\x80\x02}K\x01\x85" + b"2\x86" * 100 + b"Ns."
    assert isinstance(read_pickle(nested).value, Pairs)


@pytest.mark.process
def test_memory_is_bounded(tmp_path: Path) -> None:
    """A bomb of 60 MB is refused within 1.5 GiB; without the limit it takes several."""
    bomb = tmp_path / "bomb"
    bomb.write_bytes(b"]" * 60_000_000 + b".")
    code = (
        "import sys\nfrom rankwatch_checkpoints.pickles import *\n"
        "try: read_pickle(open(sys.argv[1], 'rb').read())\nexcept TooMuchError as error: print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(bomb)],
        capture_output=True,
        text=True,
        check=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (3 << 29, 3 << 29)),
    )
    assert done.stdout == "the pickle holds more objects than are read\n"


@pytest.mark.parametrize("protocol", range(6))
def test_plain_values(protocol: int) -> None:
    """Values of every protocol are read as they were written."""
    value = {
        "a": [1, -5, 2**70, 1.5, None, True],
        "b": (b"bytes", "text\u00e9"),
        "c": {1, 2},
        3: "x" * 70_000,
    }
    data = pickle.dumps(value, protocol)
    read = read_pickle(data)
    assert read.end == len(data)
    if protocol > 3:
        assert [read.value.named("a"), read.value.named("b")] == [value["a"], value["b"]]
        assert sorted(read.value.named("c")) == [1, 2]


def test_memo_out_of_order() -> None:
    """Python 2 counted from 1, and programs that shorten pickles leave gaps."""
    value = read_pickle(b"(K\x07q\x01K\x08q\x05K\x09q\x00h\x01h\x05h\x00\x94K\x0aq\x05h\x05h\x03t.").value
    assert value == (7, 8, 9, 7, 8, 9, 10, 10, 9)


def test_objects_become_calls() -> None:
    value = read_pickle(pickle.dumps(OrderedDict(a=1), 2)).value
    assert (value.function, list(value.items)) == (Global("collections", "OrderedDict"), [("a", 1)])


def test_each_operation_is_known_or_refused() -> None:
    """No operation of any protocol escapes as another exception."""
    for operation in pickletools.opcodes:
        for rest in (b"", b"\0" * 20, b"\xff" * 20, b"a\nb\n."):
            for before in (b"", b"(", b"(N", b"NNN", b"}(", b"](N"):
                try:
                    read_pickle(before + operation.code.encode("latin-1") + rest)
                except PickleError:
                    continue
