"""Numbers as Grafana writes them: decimals, scales and units of `@grafana/data`."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import UTC, datetime

_TIMES = (
    (60.0, 1.0, " s"),
    (3600.0, 60.0, " min"),
    (86400.0, 3600.0, " hours"),
    (604800.0, 86400.0, " days"),
    (31536000.0, 604800.0, " weeks"),
)
_CALENDAR = ((31536000, "y"), (86400, "d"), (3600, "h"), (60, "m"), (1, "s"))
_DURATION = ((86400, "day"), (3600, "hour"), (60, "minute"), (1, "second"))
_BINARY = ("", "Ki", "Mi", "Gi", "Ti", "Pi")
_METRIC = ("", "k", "M", "G", "T", "P")
_SHORT = ("", " K", " Mil", " Bil", " Tri")
_SUFFIXES = {
    "none": "",
    "string": "",
    "bool": "",
    "percent": "%",
    "celsius": " °C",
    "currencyUSD": "",
    "currencyEUR": "",
    "reqps": " req/s",
    "ops": " ops/s",
    "hertz": " Hz",
    "rotrpm": " rpm",
}
_SECONDS_OF = {"s": 1.0, "ms": 1e-3, "µs": 1e-6, "ns": 1e-9, "m": 60.0, "h": 3600.0, "d": 86400.0}
_SCALED = {
    "bytes": (1024.0, tuple(f" {each}B" for each in _BINARY)),
    "decbytes": (1000.0, tuple(f" {each}B" for each in _METRIC)),
    "Bps": (1000.0, tuple(f" {each}B/s" for each in _METRIC)),
    "binBps": (1024.0, tuple(f" {each}B/s" for each in _BINARY)),
    "bps": (1000.0, tuple(f" {each}b/s" for each in _METRIC)),
    "short": (1000.0, _SHORT),
    "watt": (1000.0, tuple(f" {each}W" for each in _METRIC)),
    "joule": (1000.0, tuple(f" {each}J" for each in _METRIC)),
    "flops": (1000.0, tuple(f" {each}FLOPS" for each in _METRIC)),
}


def written(value: float, unit: str, decimals: int | None = None, now: float = 0.0) -> str:
    """A number with its unit; `now` is what "ago" is counted from, in seconds since 1970."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    if unit.startswith("time:"):
        return _moment(value, unit.removeprefix("time:"))
    special = _SPECIAL.get(unit)
    if special:
        return special(value, decimals, now)
    if unit in _SECONDS_OF:
        return _seconds(value * _SECONDS_OF[unit], decimals)
    if unit in _SCALED:
        return _scaled(value, *_SCALED[unit], decimals)
    if unit.startswith("prefix:"):
        return unit.removeprefix("prefix:") + _fixed(value, decimals)
    if unit.startswith("currency"):
        return {"currencyUSD": "$", "currencyEUR": "€"}.get(unit, "") + _scaled(
            value, 1000.0, ("", "K", "M", "B", "T"), decimals
        )
    return _fixed(value, decimals) + _SUFFIXES.get(unit, f" {unit.removeprefix('suffix:')}" if unit else "")


def _decimals(value: float) -> int:
    """As many as three digits need, none for whole numbers: Grafana's own rule."""
    if value == 0 or float(value).is_integer():
        return 0
    return max(2 - math.floor(math.log10(abs(value))), 0)


def _fixed(value: float, decimals: int | None) -> str:
    places = min(_decimals(value) if decimals is None else decimals, 8)
    return f"{value:.{places}f}"


def _scaled(value: float, factor: float, names: tuple[str, ...], decimals: int | None) -> str:
    at = 0
    while abs(value) >= factor and at < len(names) - 1:
        value, at = value / factor, at + 1
    return _fixed(value, decimals) + names[at]


def _seconds(value: float, decimals: int | None) -> str:
    size = abs(value)
    for below, factor, name in ((1e-6, 1e-9, " ns"), (1e-3, 1e-6, " µs"), (1.0, 1e-3, " ms")):
        if 0 < size < below:
            return _fixed(value / factor, decimals) + name
    for below, factor, name in _TIMES:
        if size < below:
            return _fixed(value / factor, decimals) + name
    return _fixed(value / 31536000.0, decimals) + " years"


def _share(value: float, decimals: int | None, now: float) -> str:
    return _fixed(100 * value, decimals) + "%"


def _date(value: float, decimals: int | None, now: float) -> str:
    return datetime.fromtimestamp(value / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")


def _moment(value: float, pattern: str) -> str:
    """A date by the pattern of Grafana's unit `time:`, such as `ddd HH:mm:ss`."""
    for theirs, ours in (("ddd", "%a"), ("HH", "%H"), ("mm", "%M"), ("ss", "%S")):
        pattern = pattern.replace(theirs, ours)
    return datetime.fromtimestamp(value / 1000, UTC).strftime(pattern)


def _ago(value: float, decimals: int | None, now: float) -> str:
    seconds = now - value / 1000
    if abs(seconds) < 45:
        return "a few seconds ago" if seconds >= 0 else "in a few seconds"
    for size, name in _DURATION:
        if abs(seconds) >= size:
            count = round(abs(seconds) / size)
            text = f"{count} {name}s" if count > 1 else f"{'an' if name == 'hour' else 'a'} {name}"
            return f"{text} ago" if seconds > 0 else f"in {text}"
    return "now"


def _duration(value: float, decimals: int | None, now: float) -> str:
    """The two largest parts: 1 hour, 5 minutes."""
    left, parts = abs(value), []
    for size, name in _DURATION:
        count, left = int(left // size), left % size
        if count:
            parts.append(f"{count} {name}{'s' * (count > 1)}")
    return ", ".join(parts[:2] if decimals is None else parts[: decimals + 1]) or "0 seconds"


def _clock(value: float, decimals: int | None, now: float) -> str:
    seconds = int(abs(value))
    return f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"


_SPECIAL: dict[str, Callable[[float, int | None, float], str]] = {
    "percentunit": _share,
    "dateTimeAsIso": _date,
    "dateTimeAsIsoNoDateIfToday": lambda value, decimals, now: _date(value, decimals, now)[11:],
    "dateTimeAsSystem": _date,
    "dateTimeAsLocal": _date,
    "dateTimeFromNow": _ago,
    "dtdurations": _duration,
    "dthms": _clock,
    "dtdhms": _clock,
    "clocks": _clock,
    "bool_yes_no": lambda value, decimals, now: "Yes" if value else "No",
    "bool": lambda value, decimals, now: "True" if value else "False",
    "bool_on_off": lambda value, decimals, now: "On" if value else "Off",
}
