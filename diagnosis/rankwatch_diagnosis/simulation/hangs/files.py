"""Writes the snapshots of a simulated hang as torch leaves them, one file for each rank."""

from __future__ import annotations

import json
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FORMS = ("pickle", "json")


def write_snapshots(snapshots: Mapping[int, dict[str, Any]], directory: Path, form: str) -> None:
    """`_dump_RANK` as a pickle of plain containers, or `_dump_RANK.json`; raises OSError."""
    directory.mkdir(parents=True, exist_ok=True)
    for rank, snapshot in snapshots.items():
        if form == "pickle":
            # Protocol 2 is what torch writes.
            (directory / f"_dump_{rank}").write_bytes(pickle.dumps(snapshot, protocol=2))
        else:
            (directory / f"_dump_{rank}.json").write_text(json.dumps(_as_json(snapshot)))


def _as_json(snapshot: dict[str, Any]) -> dict[str, Any]:
    """In JSON, torch writes 0 for a time that is not known."""
    times = ("time_discovered_started_ns", "time_discovered_completed_ns")
    entries = [entry | {name: entry[name] or 0 for name in times} for entry in snapshot["entries"]]
    return snapshot | {"entries": entries}
