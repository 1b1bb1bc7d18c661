"""How a value of a field looks: Grafana's field config with overrides, mappings and thresholds."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rankwatch_dashboards.preview.colours import CLASSIC, hexadecimal, on_scale
from rankwatch_dashboards.preview.frames import NUMBER, TIME, Field, Frame
from rankwatch_dashboards.preview.units import written

_DEFAULT_STEPS = ({"value": None, "color": "green"}, {"value": 80, "color": "red"})
"""What Grafana takes where a panel has no thresholds: red from 80 on, whatever the unit."""
BY_SERIES = "palette-classic"
"""The colour mode of lines and bars: a colour per series."""


@dataclass(frozen=True, kw_only=True)
class Look:
    """A value as it is shown."""

    text: str
    colour: str
    """Hexadecimal."""


@dataclass(frozen=True, kw_only=True)
class Style:
    """The field config of one field."""

    config: Mapping[str, Any]
    kind: str
    """Of the field: time, number or string."""
    title: str
    index: int
    """Number of the series in the panel, for palettes."""
    colour_mode: str
    lowest: float
    highest: float
    """The range of the panel's numbers, for percentages and scales."""
    now: float
    """The moment that "ago" is counted from."""

    def custom(self, name: str, default: Any = None) -> Any:
        """An option of the panel's own form."""
        value = self.config.get("custom", {}).get(name)
        return default if value is None else value

    def look(self, value: Any) -> Look:
        """Text and colour of a value: by a mapping, else by unit and thresholds."""
        found = _mapped(value, self.config.get("mappings") or ())
        number = value if isinstance(value, int | float) else None
        if self.kind == TIME and number is not None:
            number *= 1000  # Grafana counts milliseconds
        if value is None or value == "":
            text = str(self.config.get("noValue") or "")
        elif number is not None:
            text = written(number, self.config.get("unit") or "", self.config.get("decimals"), self.now)
        else:
            text = str(value)
        text = found.get("text") or text
        colour = found.get("color")
        return Look(text=text, colour=hexadecimal(colour) if colour else self.colour(number))

    def colour(self, value: float | None) -> str:
        """The colour of a number by the field's colour mode; that of the series for None."""
        colour = self.config.get("color") or {}
        mode = colour.get("mode") or self.colour_mode
        if mode in ("fixed", "shades"):
            return hexadecimal(colour.get("fixedColor") or "green")
        if mode.startswith("palette-classic"):
            return CLASSIC[self.index % len(CLASSIC)]
        if mode.startswith("continuous"):
            return on_scale(mode, self.share(value or 0.0))
        return self.threshold_colour(value)

    def threshold_colour(self, value: float | None) -> str:
        """The colour of the highest threshold that a number reaches."""
        found = "green"
        for limit, colour in self.thresholds():
            if limit is None or (value is not None and value >= limit):
                found = colour
        return hexadecimal(found)

    def thresholds(self) -> list[tuple[float | None, str]]:
        """Limits, the first one None, with the colour from there on."""
        given = self.config.get("thresholds") or {}
        steps = given.get("steps") or _DEFAULT_STEPS
        shares = given.get("mode") == "percentage"
        span = self.highest - self.lowest
        return [
            (
                None
                if at == 0 or step.get("value") is None
                else self.lowest + span * step["value"] / 100
                if shares
                else float(step["value"]),
                str(step["color"]),
            )
            for at, step in enumerate(steps)
        ]

    def share(self, value: float) -> float:
        """Where a number lies between the lowest and the highest one, 0 to 1."""
        if math.isnan(value) or self.highest <= self.lowest:
            return 0.0
        return min(max((value - self.lowest) / (self.highest - self.lowest), 0.0), 1.0)


def styled(
    panel: Mapping[str, Any], frames: Sequence[Frame], now: float, mode: str = "thresholds"
) -> dict[int, Style]:
    """The style of every field, by `id(field)`; `mode` is the colour mode where the panel names none."""
    styles, number = {}, 0
    numbers = [value for frame in frames for field in frame.numbers for value in field.values]
    held = [each for each in numbers if each is not None and math.isfinite(each)]
    for frame in frames:
        for field in frame.fields:
            config = _config(panel.get("fieldConfig") or {}, frame, field)
            lowest = config.get("min")
            highest = config.get("max")
            styles[id(field)] = Style(
                config=config,
                kind=field.kind,
                title=str(config.get("displayName") or field.title),
                index=number,
                colour_mode=mode,
                lowest=float(lowest if lowest is not None else min(held, default=0.0)),
                highest=float(highest if highest is not None else max(held, default=1.0)),
                now=now,
            )
            number += field.kind == NUMBER
    return styles


def _config(given: Mapping[str, Any], frame: Frame, field: Field) -> dict[str, Any]:
    defaults = dict(given.get("defaults") or {})
    config: dict[str, Any] = {**defaults, "custom": dict(defaults.get("custom") or {})}
    if field.kind != NUMBER:
        config["unit"] = "dateTimeAsIso" if field.kind == TIME else ""
    for each in given.get("overrides") or ():
        if _concerns(each["matcher"], frame, field):
            for item in each["properties"]:
                path, _, name = str(item["id"]).rpartition(".")
                (config[path] if path == "custom" else config)[name or item["id"]] = item.get("value")
    return config


def _concerns(matcher: Mapping[str, Any], frame: Frame, field: Field) -> bool:
    wanted = matcher.get("options")
    match matcher["id"]:
        case "byName":
            return wanted in (field.title, field.name)
        case "byNames":
            names = wanted.get("names", ()) if isinstance(wanted, Mapping) else wanted or ()
            return field.title in names
        case "byRegexp":
            return re.search(str(wanted).strip("/"), field.title) is not None
        case "byType":
            return bool(wanted == field.kind)
        case "byFrameRefID":
            return bool(wanted == frame.query)
    return False


def _mapped(value: Any, mappings: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Text and colour that a value mapping gives a value; nothing where none fits."""
    for each in mappings:
        options = each.get("options") or {}
        found: Mapping[str, Any] | None = None
        match each["type"]:
            case "value":
                found = options.get(_key(value))
            case "range":
                found = options.get("result") if _in_range(value, options) else None
            case "regex":
                found = _replaced(options, value)
            case "special":
                found = options.get("result") if _special(value, options.get("match", "")) else None
        if found is not None:
            return found
    return {}


def _key(value: Any) -> str:
    """A value as Grafana looks it up: whole numbers without an exponent."""
    if isinstance(value, float):
        return f"{value:.0f}" if value.is_integer() else f"{value:g}"
    return str(value)


def _in_range(value: Any, options: Mapping[str, Any]) -> bool:
    if not isinstance(value, int | float):
        return False
    low, high = options.get("from"), options.get("to")
    return (low is None or value >= low) and (high is None or value <= high)


def _replaced(options: Mapping[str, Any], value: Any) -> Mapping[str, Any] | None:
    """As Grafana does: what matches gives way to the text. Without slashes, all of the value must match."""
    given = str(options.get("pattern", ""))
    pattern = given[1:-1] if given.startswith("/") else f"^{given}$"
    if not isinstance(value, str) or not re.search(pattern, value):
        return None
    result = dict(options.get("result") or {})
    return {**result, "text": re.sub(pattern, str(result.get("text") or ""), value, count=1)}


def _special(value: Any, wanted: str) -> bool:
    nan = isinstance(value, float) and math.isnan(value)
    known: dict[str, bool] = {
        "null": value is None,
        "nan": nan,
        "null+nan": value is None or nan,
        "empty": value == "",
        "true": value is True,
        "false": value is False,
    }
    return known.get(wanted, False)
