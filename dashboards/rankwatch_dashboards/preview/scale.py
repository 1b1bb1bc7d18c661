"""Axes of numbers: their range, round ticks, and where a number lies."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from rankwatch_dashboards.preview.shapes import Place
from rankwatch_dashboards.preview.units import written


@dataclass(frozen=True, kw_only=True)
class Scale:
    """The range of an axis and its unit."""

    low: float
    high: float
    unit: str = ""
    decimals: int | None = None
    logarithmic: bool = False

    def share(self, value: float) -> float:
        """Where a number lies: 0 is the low end, 1 the high end."""
        if self.logarithmic:
            low, high = math.log(self.low), math.log(self.high)
            return (math.log(max(value, self.low * 1e-3)) - low) / (high - low)
        return (value - self.low) / (self.high - self.low)

    def y(self, value: float, plot: Place) -> float:
        """Its height on a plot."""
        return plot.bottom - plot.height * self.share(value)

    def ticks(self, most: int) -> Iterator[tuple[float, str]]:
        """Round numbers, at most so many, with their texts."""
        if self.logarithmic:
            for power in range(math.ceil(math.log10(self.low)), math.floor(math.log10(self.high)) + 1):
                yield 10.0**power, written(10.0**power, self.unit, self.decimals)
            return
        step = _round_step((self.high - self.low) / max(most, 1), self.unit)
        plain = self.unit in ("", "short", "none")
        decimals = next((each for each in range(9) if round(step, each) == step), 9) if plain else None
        value = math.ceil(self.low / step - 1e-9) * step
        while value <= self.high + step * 1e-6:
            number = 0.0 if abs(value) < step * 1e-6 else value
            text = written(number, self.unit, self.decimals if self.decimals is not None else decimals)
            yield number, _shorter(text)
            value += step


def _shorter(text: str) -> str:
    """Without zeros behind the point, which say nothing on an axis."""
    number, space, unit = text.partition(" ")
    percent = "%" if number.endswith("%") else ""
    number = number.removesuffix("%")
    if "." in number:
        number = number.rstrip("0").rstrip(".")
    return number + percent + space + unit


def _round_step(smallest: float, unit: str) -> float:
    if unit in ("s", "dtdurations") and smallest > 10:
        steps = (15, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21600, 43200, 86400, 172800, 604800)
        return float(next((each for each in steps if each >= smallest), 604800.0 * 4))
    if unit in ("bytes", "binBps"):
        return float(2 ** math.ceil(math.log2(smallest))) if smallest > 0 else 1.0
    power = 10.0 ** math.floor(math.log10(smallest)) if smallest > 0 else 1.0
    return next(power * each for each in (1, 2, 2.5, 5, 10) if power * each >= smallest * 0.999)


def scale_of(
    values: Iterable[float],
    *,
    unit: str = "",
    decimals: int | None = None,
    limits: tuple[float | None, float | None] = (None, None),
    soft: tuple[float | None, float | None] = (None, None),
    logarithmic: bool = False,
) -> Scale:
    """The axis that holds all numbers and reaches its soft limits; hard limits win."""
    held = [each for each in values if math.isfinite(each) and not (logarithmic and each <= 0)]
    held += [each for each in soft if each is not None]
    low, high = min(held, default=0.0), max(held, default=1.0)
    if not logarithmic:
        margin = (high - low) * 0.06 or abs(high) * 0.5 or 1.0
        low = 0.0 if 0 <= low < margin * 4 else low if low == soft[0] else low - margin
        high = high if high == soft[1] else high + margin
    elif high <= low:
        low, high = low / 10, high * 10
    low = low if limits[0] is None else float(limits[0])
    high = high if limits[1] is None else float(limits[1])
    if high <= low:
        high = low + 1.0
    return Scale(low=low, high=high, unit=unit, decimals=decimals, logarithmic=logarithmic)
