"""The note beside rank 0's black box that says which trackers the run has, for the agent and for people."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import urlsplit

from rankwatch.conventions.trackers import TrackerKind
from rankwatch.notes import note_entries
from rankwatch.trackers.finding import Tracker

SUFFIX = ".trackers"
MOST_BYTES = 8192
_LONGEST_URL = 512
_LONGEST_RUN = 256
_MOST_TRACKERS = 8
_IN_NO_URL = frozenset(" \"'<>\\^`{|}")


def write_note(path: Path, trackers: Iterable[Tracker]) -> None:
    """Put the complete note in place, or none. Raises OSError."""
    entries = [each._asdict() for each in trackers if is_usable(each)][:_MOST_TRACKERS]
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        aside.write_text(json.dumps({"trackers": entries}))
        aside.replace(path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise


def parse_note(raw: bytes) -> tuple[Tracker, ...]:
    """The trackers in a note. It is untrusted: what makes no sense is left out."""
    found = (_tracker(each) for each in note_entries(raw, "trackers", _MOST_TRACKERS))
    return tuple(each for each in found if each is not None and is_usable(each))


def _tracker(entry: object) -> Tracker | None:
    if not isinstance(entry, dict):
        return None
    kind, *texts = (entry.get(name, "") for name in Tracker._fields)
    if kind not in {each.value for each in TrackerKind} or not all(isinstance(each, str) for each in texts):
        return None
    return Tracker(TrackerKind(kind), *texts)


def is_usable(tracker: Tracker) -> bool:
    """True if its texts are short and plain, and its addresses are of the web."""
    addresses = all(not each or _is_web_address(each) for each in (tracker.url, tracker.endpoint))
    return addresses and len(tracker.run) <= _LONGEST_RUN and tracker.run.isprintable()


def _is_web_address(url: str) -> bool:
    if len(url) > _LONGEST_URL or not (url.isascii() and url.isprintable()) or _IN_NO_URL & set(url):
        return False
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and "@" not in parts.netloc
    except ValueError:  # such as a bracket that is not closed
        return False
