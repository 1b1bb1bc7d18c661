"""Notes beside black boxes: JSON objects with one list. What others have written is untrusted."""

from __future__ import annotations

import json


def note_entries(raw: bytes, name: str, most: int) -> list[object]:
    """The first entries of the list of this name; none if the note makes no sense."""
    try:
        document = json.loads(raw)
    except (ValueError, RecursionError):
        return []
    entries = document.get(name) if isinstance(document, dict) else None
    return entries[:most] if isinstance(entries, list) else []
