"""Data as Grafana's panels get it: frames with fields, read from answers of Prometheus."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

TIME, NUMBER, STRING = "time", "number", "string"
_LABEL = re.compile(r"{{\s*(\w+)\s*}}")


@dataclass(frozen=True, kw_only=True)
class Field:
    """A column of a frame."""

    name: str
    kind: str
    """time, number or string. Moments are seconds since 1970; a gap is None."""
    values: tuple[Any, ...]
    labels: Mapping[str, str] = field(default_factory=dict)
    display: str = ""
    """The name that the query's legend or a transformation gave it."""

    @property
    def title(self) -> str:
        """The name that a reader sees, unless the panel gives it another one."""
        return self.display or self.name

    def taking(self, rows: Sequence[int]) -> Field:
        """The field with these rows only, in this order."""
        return replace(self, values=tuple(self.values[row] for row in rows))


@dataclass(frozen=True, kw_only=True)
class Frame:
    """A table of fields of the same length; `query` is the letter of the query that it answers."""

    query: str
    fields: tuple[Field, ...]

    @property
    def length(self) -> int:
        """How many rows it has."""
        return len(self.fields[0].values) if self.fields else 0

    def taking(self, rows: Sequence[int]) -> Frame:
        """The frame with these rows only, in this order."""
        return replace(self, fields=tuple(each.taking(rows) for each in self.fields))

    def of(self, name: str) -> Field | None:
        """The field of this name, if there is one."""
        return next((each for each in self.fields if name in (each.title, each.name)), None)

    @property
    def moments(self) -> tuple[float, ...]:
        """The values of its field of time."""
        return next((each.values for each in self.fields if each.kind == TIME), ())

    @property
    def numbers(self) -> tuple[Field, ...]:
        """Its fields of numbers."""
        return tuple(each for each in self.fields if each.kind == NUMBER)


def series_frames(target: Mapping[str, Any], series: Sequence[Mapping[str, Any]]) -> list[Frame]:
    """A frame per series, as the format `time_series` gives it."""
    frames = []
    for each in series:
        points = each.get("values") or [each["value"]]
        moments = Field(name="Time", kind=TIME, values=tuple(float(moment) for moment, _ in points))
        values = Field(
            name="Value",
            kind=NUMBER,
            values=tuple(float(value) for _, value in points),
            labels=each["metric"],
            display=legend(str(target.get("legendFormat", "")), each["metric"]),
        )
        frames.append(Frame(query=target["refId"], fields=(moments, values)))
    return frames


def legend(template: str, labels: Mapping[str, str]) -> str:
    """The name of a series: the query's template filled in, or all its labels."""
    if template and template != "__auto":
        return _LABEL.sub(lambda found: labels.get(found[1], ""), template)
    rest = {name: value for name, value in labels.items() if name != "__name__"}
    if template == "__auto" and len(rest) == 1:
        return next(iter(rest.values()))
    text = ", ".join(f'{name}="{value}"' for name, value in sorted(rest.items()))
    return labels.get("__name__", "") + (f"{{{text}}}" if text else "") or "Value"


def table_frame(target: Mapping[str, Any], series: Sequence[Mapping[str, Any]], several: bool) -> Frame:
    """One frame with a column per label, as the format `table` gives it.

    The values are in a column `Value`, or `Value #A` where the panel has several queries.
    """
    rows = [
        (float(moment), float(value), each["metric"])
        for each in series
        for moment, value in (each.get("values") or [each["value"]])
    ]
    names = sorted({name for each in series for name in each["metric"]})
    labels = (
        Field(name=name, kind=STRING, values=tuple(row[2].get(name, "") for row in rows)) for name in names
    )
    value = f"Value #{target['refId']}" if several else "Value"
    return Frame(
        query=target["refId"],
        fields=(
            Field(name="Time", kind=TIME, values=tuple(row[0] for row in rows)),
            *labels,
            Field(name=value, kind=NUMBER, values=tuple(row[1] for row in rows)),
        ),
    )
