"""Grafana's transformations of frames, those that dashboards as code use."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from rankwatch_dashboards.preview.frames import NUMBER, STRING, TIME, Field, Frame
from rankwatch_dashboards.preview.reducers import REDUCER_NAMES, reduced

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


def _join(frames: list[Frame], options: Options) -> list[Frame]:
    """One table: the rows of all frames with the same value of one column side by side."""
    frames = [each for each in frames if each.length]
    by = options.get("byField") or next(
        (each.title for frame in frames for each in frame.fields if each.kind == TIME), "Time"
    )
    if len(frames) < 2:
        return frames
    columns: dict[str, Field] = {}
    rows: dict[Any, dict[str, Any]] = {}
    held = [set(frame_key.values) for frame in frames if (frame_key := frame.of(by))]
    for number, frame in enumerate((each for each in frames if each.of(by)), start=1):
        names = {
            each.title: each.title
            if each.title == by or each.title not in columns
            else f"{each.title} {number}"
            for each in frame.fields
        }
        columns |= {names[each.title]: replace(each, display=names[each.title]) for each in frame.fields}
        for row in _rows(frame):
            rows.setdefault(row[by], {}).update({names[name]: value for name, value in row.items()})
    if options.get("mode") == "inner" and held:
        rows = {key: row for key, row in rows.items() if key in set.intersection(*held)}
    ordered = dict(sorted(columns.items(), key=lambda each: each[0] != by))
    return [_table(list(rows.values()), ordered, frames[0].query)]


def _rows(frame: Frame) -> list[dict[str, Any]]:
    return [{each.title: each.values[row] for each in frame.fields} for row in range(frame.length)]


def _table(rows: Sequence[Mapping[str, Any]], columns: Mapping[str, Field], query: str) -> Frame:
    fields = (replace(field, values=tuple(row.get(name) for row in rows)) for name, field in columns.items())
    return Frame(query=query, fields=tuple(fields))


def _sort(frames: list[Frame], options: Options) -> list[Frame]:
    """Rows by a column, those without a value last."""
    made = []
    for frame in frames:
        for by in (options.get("sort") or ())[:1]:
            frame = sorted_by(frame, by["field"], bool(by.get("desc")))
        made.append(frame)
    return made


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


def _rename(frames: list[Frame], options: Options) -> list[Frame]:
    """New names by a regular expression; $1 is its first group."""
    pattern = re.compile(str(options.get("regex", "")).strip("/"))
    new = re.sub(r"\$(\d)", r"\\\1", str(options.get("renamePattern", "")))
    return [
        replace(
            frame,
            fields=tuple(replace(each, display=pattern.sub(new, each.title, 1)) for each in frame.fields),
        )
        for frame in frames
    ]


def _reduce(frames: list[Frame], options: Options) -> list[Frame]:
    """A row per series, with a column per reducer."""
    names = options.get("reducers") or ["max"]
    rows = []
    for each in (field for frame in frames for field in frame.numbers):
        row: dict[str, Any] = {"Field": each.title}
        row |= dict(each.labels) if options.get("labelsToFields") else {}
        rows.append(row | {REDUCER_NAMES.get(name, name): reduced(name, each.values) for name in names})
    columns = {
        name: Field(name=name, kind=NUMBER if isinstance(value, float) else STRING, values=())
        for row in rows
        for name, value in row.items()
    }
    return [_table(rows, columns, frames[0].query)] if rows else []


def _labels_to_fields(frames: list[Frame], options: Options) -> list[Frame]:
    """Labels become columns."""
    made = []
    for frame in frames:
        labels = {name: value for field in frame.numbers for name, value in field.labels.items()}
        wanted = options.get("keepLabels") or sorted(labels)
        columns = (
            Field(name=name, kind=STRING, values=(labels.get(name, ""),) * frame.length) for name in wanted
        )
        values = tuple(
            replace(each, labels={}, display="") if each.kind == NUMBER else each for each in frame.fields
        )
        made.append(replace(frame, fields=(*values[:1], *columns, *values[1:])))
    return _merge(made, {})


def _group(frames: list[Frame], options: Options) -> list[Frame]:
    """One row for all rows of the same value of some columns, the others reduced."""
    plan = options.get("fields") or {}
    by = [name for name, each in plan.items() if each.get("operation") == "groupby"]
    made = []
    for frame in frames:
        groups: dict[tuple[Any, ...], list[int]] = {}
        keys = [key for name in by if (key := frame.of(name))]
        for row in range(frame.length):
            groups.setdefault(tuple(key.values[row] for key in keys), []).append(row)
        first = frame.taking([rows[0] for rows in groups.values()])
        fields = [each for name in by if (each := first.of(name))]
        for name, each in plan.items():
            field = frame.of(name)
            if field is None or name in by:
                continue
            for reducer in each.get("aggregations") or ():
                held = ([field.values[row] for row in rows] for rows in groups.values())
                values = tuple(reduced(reducer, each_group) for each_group in held)
                fields.append(Field(name=f"{name} ({reducer})", kind=NUMBER, values=values))
        made.append(replace(frame, fields=tuple(fields)))
    return made


def _limit(frames: list[Frame], options: Options) -> list[Frame]:
    """The first rows only."""
    most = int(options.get("limitField", 10))
    return [each.taking(range(min(most, each.length))) for each in frames]


def _series_to_rows(frames: list[Frame], options: Options) -> list[Frame]:
    """All series below each other, with a column of their names."""
    rows = [
        {"Time": moment, "Metric": field.title, "Value": value}
        for frame in frames
        for field in frame.numbers
        for moment, value in zip(frame.moments, field.values, strict=True)
    ]
    kinds = {"Time": TIME, "Metric": STRING, "Value": NUMBER}
    columns = {name: Field(name=name, kind=kind, values=()) for name, kind in kinds.items()}
    return [_table(rows, columns, frames[0].query)] if rows else []


TRANSFORMATIONS: dict[str, Callable[[list[Frame], Options], list[Frame]]] = {
    "organize": _organize,
    "merge": _merge,
    "joinByField": _join,
    "seriesToColumns": _join,
    "sortBy": _sort,
    "filterFieldsByName": _filter_names,
    "renameByRegex": _rename,
    "reduce": _reduce,
    "labelsToFields": _labels_to_fields,
    "groupBy": _group,
    "limit": _limit,
    "seriesToRows": _series_to_rows,
}
"""By Grafana's id."""
