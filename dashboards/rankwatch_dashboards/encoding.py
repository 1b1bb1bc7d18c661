"""The dashboard as Classic JSON, with what the SDK leaves out filled in.

Classic, not v2: file provisioning and sidecars of Grafana 10 to 13 take it, and refuse the other.
"""

from __future__ import annotations

import json
from typing import Any

from grafana_foundation_sdk.builders.dashboard import Dashboard
from grafana_foundation_sdk.cog.encoder import JSONEncoder


def encode(board: Dashboard) -> dict[str, Any]:
    """The dashboard as a dictionary: every panel has an id, in order of appearance."""
    document: dict[str, Any] = json.loads(JSONEncoder(sort_keys=True).encode(board.build()))
    for number, panel in enumerate(document["panels"], start=1):
        panel["id"] = number
    document["id"] = None
    document["version"] = 1
    return document


def to_json(document: dict[str, Any]) -> str:
    """The same bytes for the same document."""
    return json.dumps(document, indent=1, sort_keys=True, ensure_ascii=False) + "\n"
