"""Grafana's transformations of frames, those that the dashboards use."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from rankwatch_dashboards.preview.frames import Field, Frame

Options = Mapping[str, Any]


def transformed(
    frames: Sequence[Frame], transformations: Sequence[Mapping[str, Any]]
) -> tuple[list[Frame], list[str]]:
    """The frames after all transformations in turn, and the names of those that are not known here."""
    current, unknown = list(frames), []
    for each in transformations:
        if each.get("disabled"):
            continue
        apply = TRANSFORMATIONS.get(each["id"])
        if apply:
            current = apply(current, each.get("options") or {})
        else:
            unknown.append(f"transformation {each['id']}")
    return current, unknown


def _organize(frames: list[Frame], options: Options) -> list[Frame]:
    """Leave columns out, order and rename them."""
    left_out = {name for name, out in (options.get("excludeByName") or {}).items() if out}
    wanted = {name for name, wish in (options.get("includeByName") or {}).items() if wish}
    order, names = options.get("indexByName") or {}, options.get("renameByName") or {}
    made = []
    for frame in frames:
        fields = [each for each in frame.fields if each.title not in left_out]
        fields = [each for each in fields if not wanted or each.title in wanted]
        fields.sort(key=lambda each: order.get(each.title, len(order) + 1000))
        renamed = tuple(replace(each, display=names.get(each.title) or each.display) for each in fields)
        made.append(replace(frame, fields=renamed))
    return made


def _merge(frames: list[Frame], options: Options) -> list[Frame]:
    """One table of all: rows that agree in all columns that they share are one row."""
    frames = [each for each in frames if each.length]
    if len(frames) < 2:
        return frames
    columns = {field.title: field for frame in frames for field in frame.fields}
    common = set.intersection(*({each.title for each in frame.fields} for frame in frames))
    rows: list[dict[str, Any]] = []
    for frame in frames:
        for row in _rows(frame):
            partner = next((each for each in rows if _agree(each, row, common)), None)
            if partner is None:
                rows.append(row)
            else:
                partner.update(row)
    return [_table(rows, columns, frames[0].query)]


def _agree(one: Mapping[str, Any], other: Mapping[str, Any], common: set[str]) -> bool:
    if not common or any(one.get(name) != other.get(name) for name in common):
        return False
    return all(one[name] == other[name] for name in one.keys() & other.keys())


def _rows(frame: Frame) -> list[dict[str, Any]]:
    return [{each.title: each.values[row] for each in frame.fields} for row in range(frame.length)]


def _table(rows: Sequence[Mapping[str, Any]], columns: Mapping[str, Field], query: str) -> Frame:
    fields = (replace(field, values=tuple(row.get(name) for row in rows)) for name, field in columns.items())
    return Frame(query=query, fields=tuple(fields))


def sorted_by(frame: Frame, name: str, descending: bool) -> Frame:
    """The frame with its rows in the order of a column; one without that column stays as it is."""
    field = frame.of(name)
    if field is None:
        return frame
    held = [row for row in range(frame.length) if field.values[row] is not None]
    held.sort(key=lambda row: field.values[row], reverse=descending)
    return frame.taking([*held, *(row for row in range(frame.length) if field.values[row] is None)])


def _filter_names(frames: list[Frame], options: Options) -> list[Frame]:
    """Only columns of these names, or that match this pattern."""
    include, exclude = options.get("include") or {}, options.get("exclude") or {}

    def kept(name: str) -> bool:
        out = name in (exclude.get("names") or ()) or _matches(exclude.get("pattern"), name)
        listed = name in (include.get("names") or ()) or _matches(include.get("pattern"), name)
        return not out and (listed or not include)

    return [replace(each, fields=tuple(one for one in each.fields if kept(one.title))) for each in frames]


def _matches(pattern: str | None, text: str) -> bool:
    return bool(pattern) and re.search(str(pattern).strip("/"), text) is not None


TRANSFORMATIONS: dict[str, Callable[[list[Frame], Options], list[Frame]]] = {
    "organize": _organize,
    "merge": _merge,
    "filterFieldsByName": _filter_names,
}
"""By Grafana's id."""
