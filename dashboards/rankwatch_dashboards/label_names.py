"""Other names of labels in dashboards: queries, legends, links, and the columns of tables."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from rankwatch_alerts.label_names import in_query

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
    """The dashboard with these names of labels. Names of its variables, and so its links, stay."""
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
