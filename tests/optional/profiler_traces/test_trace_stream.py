"""The events of a trace file, whatever its formatting, and what a damaged file still gives."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rankwatch_agent.runtime.errors import UserError
from rankwatch_profiler_traces import stream
from rankwatch_profiler_traces.stream import Event, Framing, stream_events
from support.diagnosis.kineto import GpuJob, write_traces


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_traces(tmp_path_factory.mktemp("traces"), GpuJob(steps=2))[0]


def read(path: Path) -> tuple[list[Event], Framing]:
    framing = Framing()
    return [event for block in stream_events(path, framing) for event in block], framing


def essence(events: list[Event]) -> list[tuple[object, ...]]:
    return [(each.ph, each.cat, each.name, each.ts, each.dur, each.tid) for each in events]


def as_loaded(document: dict[str, Any]) -> list[tuple[object, ...]]:
    keys = (("ph", ""), ("cat", ""), ("name", ""), ("ts", None), ("dur", None), ("tid", None))
    return [tuple(each.get(key, missing) for key, missing in keys) for each in document["traceEvents"]]


@pytest.mark.parametrize("block", [64, 1_000, 1 << 20])
@pytest.mark.parametrize("form", ["kineto", "compact", "indented", "sorted", "list"])
def test_formatting(
    trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str, block: int
) -> None:
    """Any formatting gives the same events, wherever the blocks are cut."""
    monkeypatch.setattr(stream, "_BLOCK_BYTES", block)
    document = json.loads(trace.read_text())
    text = {
        "kineto": trace.read_text(),
        "compact": json.dumps(document, separators=(",", ":")),
        "indented": json.dumps(document, indent=2),
        "sorted": json.dumps(document, sort_keys=True),
        "list": json.dumps(document["traceEvents"]),
    }[form]
    path = tmp_path / "t.json"
    path.write_text(text)
    events, framing = read(path)
    assert essence(events) == as_loaded(document)
    assert (framing.broken, framing.cut_off) == (0, False)
    if form != "list":
        assert framing.fields["distributedInfo"] == document["distributedInfo"]
        assert framing.fields["traceName"] == document["traceName"]


@pytest.mark.parametrize("block", [200, 1 << 20])
def test_nested_arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    """Braces in names and lists of objects in arguments are no border between events."""
    monkeypatch.setattr(stream, "_BLOCK_BYTES", block)
    args = {"frames": [{"a": 1}, {"b": '}, {"ph": "X"'}], "deep": [[{}], [{}, {}]]}
    events = [{"name": 'x"}, {', "args": args, "ph": "X", "cat": "kernel", "ts": at} for at in range(50)]
    path = tmp_path / "t.json"
    path.write_text(json.dumps({"a": [{}], "traceEvents": events, "z": 1}))
    found, framing = read(path)
    assert [each.ts for each in found] == list(range(50))
    assert (framing.broken, framing.cut_off, framing.fields) == (0, False, {"a": [{}], "z": 1})


@pytest.mark.parametrize("packed", [False, True])
def test_file_cut_off(trace: Path, tmp_path: Path, *, packed: bool) -> None:
    """A file that was still being written gives what it has, and says so."""
    whole, _ = read(trace)
    text = trace.read_bytes()
    path = tmp_path / ("t.json.gz" if packed else "t.json")
    path.write_bytes(gzip.compress(text)[:-4_000] if packed else text[: len(text) // 2])
    events, framing = read(path)
    assert framing.cut_off
    assert 100 < len(events) < len(whole)
    assert essence(events) == essence(whole)[: len(events)]


def test_sparse_file(trace: Path, tmp_path: Path) -> None:
    """A hole of a file, which may be of any size, ends it; so it is after a node has lost power, too."""
    path = tmp_path / "t.json"
    path.write_bytes(trace.read_bytes()[:4_000])
    with path.open("r+b") as file:
        file.truncate(64 << 20)
    events, framing = read(path)
    assert events
    assert (framing.cut_off, framing.broken) == (True, 0)


def test_damaged_gzip(trace: Path, tmp_path: Path) -> None:
    """The events before the damage count."""
    packed = bytearray(gzip.compress(trace.read_bytes()))
    packed[len(packed) // 2 : len(packed) // 2 + 40] = b"\xff" * 40
    path = tmp_path / "t.json.gz"
    path.write_bytes(packed)
    assert read(path)[1].cut_off


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"ph": "X"', b'"ph": X"'),
        (b'"dur": ', b'"dur": "long", "x": '),
        (b'"pid": ', b'"pid"; '),
        (b'"args": {', b'"args": '),
        (b'"args": {', b'"args": {{'),
        (b'"name": "void', b'"name": "\xff'),
    ],
)
def test_damaged_event(trace: Path, tmp_path: Path, old: bytes, new: bytes) -> None:
    """A damaged event costs that event, or at most the one beside it."""
    whole, _ = read(trace)
    text = trace.read_bytes()
    at = text.index(old, text.index(b'"kernel"') - 40)
    path = tmp_path / "t.json"
    path.write_bytes(text[:at] + new + text[at + len(old) :])
    events, framing = read(path)
    assert len(whole) - len(events) in (1, 2)
    assert framing.broken >= 1


@pytest.mark.parametrize(
    "text", ["", " ", "{}", "[", "null", '{"traceEvents": 3}', '"traceEvents"', "step,rank\n1,2\n", '{"a": "']
)
def test_no_trace(tmp_path: Path, text: str) -> None:
    """Anything else is one sentence, or a file without events."""
    path = tmp_path / "t.json"
    path.write_text(text)
    if text == "[":
        assert read(path)[0] == []
        return
    with pytest.raises(UserError, match="holds no events"):
        read(path)


def test_endless_event(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An event that never ends is dropped, and memory stays small."""
    monkeypatch.setattr(stream, "_MOST_EVENT_BYTES", 10_000)
    monkeypatch.setattr(stream, "_BLOCK_BYTES", 1_000)
    path = tmp_path / "t.json"
    path.write_text(
        '{"traceEvents": [{"ph": "X", "args": [' + "[1]," * 10_000 + '1]}, {"ph": "X", "ts": 5}]}'
    )
    events, framing = read(path)
    assert [each.ts for each in events] == [5.0]
    assert framing.broken >= 1


@pytest.mark.parametrize(
    "text",
    [b'{"a": "' + b"x" * 40_000, b'{"a": [' + b"1, " * 20_000, b'{"a": ' * 20_000, b'{"a": {}' * 20_000],
)
def test_head_is_searched_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: bytes) -> None:
    """What stands before the events is looked at once, however many blocks it comes in, and no deeper than a
    trace is nested."""
    monkeypatch.setattr(stream, "_BLOCK_BYTES", 4096)
    found: list[int] = []

    class Counting:
        def finditer(self, head: bytes, at: int) -> Iterator[re.Match[bytes]]:
            for each in pattern.finditer(head, at):
                found.append(each.start())
                yield each

    pattern = stream._TOKEN_OR_CUT
    monkeypatch.setattr(stream, "_TOKEN_OR_CUT", Counting())
    path = tmp_path / "t.json"
    path.write_bytes(text)
    with pytest.raises(UserError, match="holds no events"):
        read(path)
    assert len(found) < 1_000


@pytest.mark.parametrize("events", ["[]", '[{"ph": "X"}]'])
def test_millions_of_values_beside_the_events(tmp_path: Path, events: str) -> None:
    """They would take a gigabyte of memory. The events still count."""
    path = tmp_path / "t.json"
    many = "[" + "{}," * 1_100_000 + "{}]"
    for text in (f'{{"a": {many}, "traceEvents": {events}}}', f'{{"traceEvents": {events}, "a": {many}}}'):
        path.write_text(text)
        found, framing = read(path)
        assert (len(found), framing.fields) == (events.count("ph"), {})
