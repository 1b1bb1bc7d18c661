"""Grafana dashboards, generated from the same config object as the rules.

They are Classic JSON, not v2, because file provisioning and sidecars of Grafana 10 to 13 refuse v2.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rankwatch_alerts import RuleConfig
from rankwatch_alerts.generation import write_text
from rankwatch_alerts.label_names import in_query

__all__ = ["dashboards", "all_panels", "write_dashboards"]


def dashboards(config: RuleConfig) -> tuple[dict[str, Any], ...]:
    """Return every dashboard as Grafana reads it, with what the SDK leaves out filled in. Needs the SDK."""
    # Only here, so that a missing extra is named by the command, and not by an ImportError.
    from grafana_foundation_sdk.cog.encoder import JSONEncoder

    from rankwatch_dashboards.board import BOARDS, build_board

    encoder = JSONEncoder(sort_keys=True)
    made = (json.loads(encoder.encode(build_board(each, config).build())) for each in BOARDS)
    return tuple(in_dashboard(_completed(each), config.label_names) for each in made)


def _completed(document: dict[str, Any]) -> dict[str, Any]:
    for number, panel in enumerate(all_panels(document), start=1):
        panel["id"] = number
    return {**document, "id": None, "version": 1}


def all_panels(document: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the panels of a dashboard, rows included, those inside closed rows too."""
    for panel in document["panels"]:
        yield panel
        yield from panel.get("panels") or ()


def write_dashboards(config: RuleConfig, directory: Path) -> list[Path]:
    """Write each dashboard to `<uid>.json` and return the paths; raises OSError where that fails."""
    return [
        write_text(
            directory / f"{each['uid']}.json",
            json.dumps(each, indent=1, sort_keys=True, ensure_ascii=False) + "\n",
        )
        for each in dashboards(config)
    ]


_QUERIES = frozenset({"expr", "query", "definition"})
_TEXTS = frozenset({"legendFormat", "titleFormat", "textFormat"})
_COLUMNS = frozenset({"transformations", "overrides", "tagKeys"})
_IN_LEGEND = re.compile(r"(?<=\{\{)(\s*)(\w+)(?=\s*\}\})")
_IN_LINK = re.compile(
    r"(?<=__field\.labels\.)\w+|(?<=__data\.fields\.)\w+|(?<=__data\.fields\[\")\w+(?=\"\])"
)
_COLUMN = re.compile(r"\w+(?:,\s*\w+)*")
_GROUPED = frozenset({"groupby", "aggregate"})
"""Values of the option `operation` of a transformation, which is no label there."""


def in_dashboard(document: dict[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """Return the dashboard with these names of labels. Names of its variables, and so its links, stay."""
    return {key: _translated(value, names, key) for key, value in document.items()} if names else document


def _translated(value: Any, names: Mapping[str, str], key: str, *, columns: bool = False) -> Any:
    columns = columns or key in _COLUMNS
    match value:
        case dict():
            return {
                _key(each, inner, names) if columns else each: _translated(
                    inner, names, each, columns=columns
                )
                for each, inner in value.items()
            }
        case list():
            return [_translated(each, names, key, columns=columns) for each in value]
        case str() if key in _QUERIES:
            return in_query(value, names)
        case str() if key in _TEXTS:
            return _IN_LEGEND.sub(lambda found: found[1] + names.get(found[2], found[2]), value)
        case str() if columns and _COLUMN.fullmatch(value) and key != "id":
            return re.sub(r"\w+", lambda found: names.get(found[0], found[0]), value)
        case str():
            return _IN_LINK.sub(lambda found: names.get(found[0], found[0]), value)
        case _:
            return value


def _key(key: str, value: Any, names: Mapping[str, str]) -> str:
    option = isinstance(value, str) and value in _GROUPED
    return key if option else names.get(key, key)
