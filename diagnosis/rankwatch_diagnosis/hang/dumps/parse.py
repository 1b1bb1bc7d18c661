"""From a loaded dump, of any version of the recorder, to a Snapshot.

Formats 2.0 to 2.10 (PyTorch 2.3 to 2.13) differ in what they hold, and NCCL and gloo in what they fill in.
Each field is asked for, none taken for granted. The document is untrusted: an entry that cannot be understood
is counted and left out, and nothing is walked deeper than a dump is deep.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from rankwatch_diagnosis.hang.dumps.entries import EntryReader
from rankwatch_diagnosis.hang.snapshot import UNKNOWN, GroupView, Snapshot

MAX_ENTRIES = 500_000
"""PyTorch's advice is a ring of 2,000; large jobs use 20,000."""
_MAX_GROUPS = 4096
_MAX_TEXT = 200
_MAX_RANKS_TEXT = 2 << 20
_NUMBER = re.compile(r"-?\d{1,18}")


class DumpError(ValueError):
    """A dump cannot be used; the message says why."""


def parse_dump(document: object, rank: int) -> Snapshot:
    """The snapshot in one document; raises DumpError."""
    if not isinstance(document, dict):
        raise DumpError("it holds no dump")
    entries = document.get("entries", document.get("trace"))
    if entries is None and "pg_status" not in document:
        raise DumpError("it holds neither entries nor pg_status")
    if entries is not None and not isinstance(entries, list):
        raise DumpError("its entries are no list")
    reader = open_reader(document, len(entries or ()))
    for entry in entries or ():
        reader.take(entry)
    return finish(document, rank, reader)


def open_reader(document: Mapping[Any, Any], entries: int) -> EntryReader:
    """A reader for this number of entries; raises DumpError where there are too many."""
    if entries > MAX_ENTRIES:
        raise DumpError(f"it holds {entries} entries, more than {MAX_ENTRIES}")
    return EntryReader(_configured(document.get("pg_config")))


def finish(document: Mapping[Any, Any], rank: int, reader: EntryReader) -> Snapshot:
    """The snapshot of a document whose entries have been read."""
    version = document.get("version")
    taken = _nanoseconds(document.get("time_seconds"))
    for group in reader.groups:
        if not taken or len(group.created) != len(group.history):
            group.created = []
    return Snapshot(
        rank=rank,
        version=version[:40] if isinstance(version, str) else "",
        groups=reader.groups,
        signatures=reader.signatures,
        pending=reader.pending(),
        status=_status(document.get("pg_status")),
        newest_ns=reader.newest_ns,
        newest_record=reader.newest_record,
        taken_ns=taken,
        skipped_entries=reader.skipped,
        batches=reader.batches,
        unsettled=reader.unsettled(),
        hides_messages=reader.hides_messages,
        moved_ns=max(reader.newest_ns, reader.moved_ns),
    )


def _configured(config: object) -> list[GroupView]:
    """Groups by pg_config. Gloo writes one without a name, which tells nothing."""
    found: list[GroupView] = []
    if not isinstance(config, Mapping):
        return found
    for name, group in list(config.items())[:_MAX_GROUPS]:
        if not isinstance(name, str) or not name or not isinstance(group, Mapping):
            continue
        found.append(GroupView(name[:_MAX_TEXT], _text(group.get("desc")), _ranks(group.get("ranks"))))
    return found


def _ranks(value: object) -> str:
    """The members as text: older versions write a text, newer JSON may hold a list."""
    if isinstance(value, list):
        numbers = [each for each in value if isinstance(each, int)]
        return str(numbers) if len(numbers) == len(value) else ""
    return value if isinstance(value, str) and len(value) <= _MAX_RANKS_TEXT else ""


def _text(value: object) -> str:
    return value[:_MAX_TEXT] if isinstance(value, str) and value != "undefined" else ""


def _status(value: object) -> dict[int, tuple[int, int]]:
    """pg_status by local id; JSON holds its numbers as text."""
    found: dict[int, tuple[int, int]] = {}
    if not isinstance(value, Mapping):
        return found
    for name, status in list(value.items())[:_MAX_GROUPS]:
        local = _number(name)
        if local != UNKNOWN and isinstance(status, Mapping):
            found[local] = (
                _number(status.get("last_enqueued_collective")),
                _number(status.get("last_completed_collective")),
            )
    return found


def _number(value: Any) -> int:
    if isinstance(value, int):
        return value
    return int(value) if isinstance(value, str) and _NUMBER.fullmatch(value) else UNKNOWN


def _nanoseconds(value: object) -> int:
    return int(value * 1e9) if isinstance(value, int | float) and 0 < value < 1e11 else 0
