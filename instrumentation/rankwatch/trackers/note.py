"""The note beside rank 0's black box that says which trackers the run has, for the agent and for people."""

from __future__ import annotations

import json
from collections.abc import Iterable
from urllib.parse import urlsplit

from rankwatch.conventions.vocabulary import TrackerKind
from rankwatch.notes import note_entries
from rankwatch.trackers.finding import Tracker
from rankwatch.untrusted.folders import Folder
from rankwatch.untrusted.text import redacted_page, redacted_place

SUFFIX = ".trackers"
MOST_BYTES = 8192
_LONGEST_URL = 512
_LONGEST_RUN = 256
_MOST_TRACKERS = 8
_IN_NO_URL = frozenset(" \"'<>\\^`{|}")


def write_note(folder: Folder, name: str, trackers: Iterable[Tracker]) -> None:
    """Put the complete note in place, or none. Raises OSError."""
    folder.write(name, note_text(trackers).encode())


def note_text(trackers: Iterable[Tracker]) -> str:
    """The content of the note."""
    return json.dumps({"trackers": [each._asdict() for each in trackers if is_usable(each)][:_MOST_TRACKERS]})


def parse_note(raw: bytes) -> tuple[Tracker, ...]:
    """The trackers in a note. It is untrusted: what makes no sense is left out."""
    found = (_tracker(each) for each in note_entries(raw, "trackers", _MOST_TRACKERS))
    return tuple(_redacted(each) for each in found if each is not None and is_usable(each))


def _tracker(entry: object) -> Tracker | None:
    if not isinstance(entry, dict):
        return None
    kind, *texts = (entry.get(name, "") for name in Tracker._fields)
    if not all(isinstance(each, str) for each in (kind, *texts)) or kind not in set(TrackerKind):
        return None
    return Tracker(TrackerKind(kind), *texts)


def _redacted(tracker: Tracker) -> Tracker:
    """An earlier version of rankwatch may have written it whole."""
    return tracker._replace(run=redacted_place(tracker.run), url=redacted_page(tracker.url))


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
