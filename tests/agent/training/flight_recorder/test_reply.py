"""Answers of living ranks that are odd in part, and hostile ones: no plain objects are made of them."""

from __future__ import annotations

import json
from contextlib import suppress

import pytest

from rankwatch_agent.training.flight_recorder import parse
from rankwatch_agent.training.flight_recorder.ask import parse_reply
from rankwatch_agent.training.flight_recorder.parse import DumpError
from support.training.recorder import entry, reply


def test_odd_entry_and_odd_parts() -> None:
    """An entry that cannot be understood is left out and counted; an odd part costs only itself."""
    body = reply(entry(0), entry(1, state=[]), entry(2), enqueued=3, done=2)
    body["version"] = []
    dump = parse_reply(json.dumps(body).encode())
    assert ([each.record_id for each in dump.entries], dump.skipped) == ([0, 2], 1)
    assert dump.pg_status["0"].last_enqueued_collective == 3
    assert dump.pg_config["0"].desc == "default_pg"
    body["pg_status"] = {"0": 1}
    dump = parse_reply(json.dumps(body).encode())
    assert (len(dump.entries), dump.pg_status) == (2, {})


def test_bytes_that_are_no_utf8() -> None:
    """Each is replaced, wherever it is, beside characters of any width."""
    name = "\u00e9" * 200_001 + "\U0001f600"
    text = json.dumps(reply(entry(0, process_group=["0", name + "?"])), ensure_ascii=False).encode()
    dump = parse_reply(bytearray(text.replace(b"?", b"\xff")))
    assert dump.entries[0].group == ("0", name + "\ufffd")


@pytest.mark.parametrize(
    "body",
    [
        b'{"version": [], "a": 0}',
        b'{"other": {"x": 1}}',
        b'{"entries": {"x": ["a"]}}',
        b'{"entries": [{"record_id": "x"}]}',
        b'{"fr_trace_json": {"entries": []}}',
        b'{"entries": [], "version": []}',
    ],
)
def test_no_plain_objects(monkeypatch: pytest.MonkeyPatch, body: bytes) -> None:
    """What fits no dump is not loaded as plain objects, which take fifty times the size of the text."""

    def refused(*_: object) -> None:
        pytest.fail("plain objects were made")

    monkeypatch.setattr(parse, "load_json", refused)
    with suppress(DumpError):
        assert not parse_reply(body).entries


def test_endless_odd_entries() -> None:
    """So many entries that are not understood are no dump."""
    with pytest.raises(DumpError, match="more than 1024"):
        parse_reply(b'{"entries":[' + b",".join([b"0"] * 5000) + b"]}")
