"""Grafana's colours: names of dashboards to hexadecimal ones, palettes and scales, dark theme."""

from __future__ import annotations

BACKGROUND = "#111217"
PANEL = "#181b1f"
BORDER = "#2c2f35"
GRID = "#2a2d33"
TEXT = "#ccccdc"
FAINT = "#8e8f9b"
LINK = "#6e9fff"
ON_COLOUR = "#ffffff"

_SHADES = ("dark-", "semi-dark-", "", "light-", "super-light-")
_HUES = {
    "red": ("#c4162a", "#e02f44", "#f2495c", "#ff7383", "#ffa6b0"),
    "orange": ("#fa6400", "#ff780a", "#ff9830", "#ffb357", "#ffcb7d"),
    "yellow": ("#e0b400", "#f2cc0c", "#fade2a", "#ffee52", "#fff899"),
    "green": ("#37872d", "#56a64b", "#73bf69", "#96d98d", "#c8f2c2"),
    "blue": ("#1f60c4", "#3274d9", "#5794f2", "#8ab8ff", "#c0d8ff"),
    "purple": ("#8f3bb8", "#a352cc", "#b877d9", "#ca95e5", "#deb6f2"),
}
_NAMED = {
    **{f"{shade}{hue}": row[at] for hue, row in _HUES.items() for at, shade in enumerate(_SHADES)},
    "text": TEXT,
    "transparent": PANEL,
    "white": "#ffffff",
    "black": "#000000",
    "gray": "#8e8f9b",
    "grey": "#8e8f9b",
}
CLASSIC = (
    *("#73bf69", "#f2cc0c", "#8ab8ff", "#ff780a", "#f2495c", "#5794f2", "#b877d9", "#705da0", "#37872d"),
    *("#fade2a", "#447ebc", "#c15c17", "#890f02", "#0a437c", "#6d1f62", "#584477", "#b7dbab", "#f4d598"),
)
"""`palette-classic`: the series in turn."""
_SCALES = {  # from low to high
    "continuous-grylrd": ("#73bf69", "#fade2a", "#f2495c"),
    "continuous-rdylgr": ("#f2495c", "#fade2a", "#73bf69"),
    "continuous-blylrd": ("#5794f2", "#fade2a", "#f2495c"),
    "continuous-ylrd": ("#fade2a", "#f2495c"),
    "continuous-blpu": ("#5794f2", "#b877d9"),
    "continuous-ylbl": ("#fade2a", "#5794f2"),
    "continuous-blues": ("#1d2a3f", "#1f60c4", "#8ab8ff"),
    "continuous-reds": ("#38191f", "#c4162a", "#ff7383"),
    "continuous-greens": ("#172a1c", "#37872d", "#96d98d"),
    "continuous-purples": ("#2a1a38", "#8f3bb8", "#ca95e5"),
}


def hexadecimal(name: str) -> str:
    """The colour that a dashboard names: a name of Grafana's, or one that is hexadecimal already."""
    return _NAMED.get(name, name if name.startswith("#") else TEXT)


def mixed(one: str, other: str, share: float) -> str:
    """A colour between two, `share` of the way to the other one."""
    parts = (
        round(int(one[at : at + 2], 16) * (1 - share) + int(other[at : at + 2], 16) * share)
        for at in (1, 3, 5)
    )
    return "#" + "".join(f"{part:02x}" for part in parts)


def on_scale(scheme: str, share: float) -> str:
    """The colour at `share`, 0 to 1, of a continuous colour mode."""
    anchors = _SCALES.get(scheme.lower(), _SCALES["continuous-grylrd"])
    place = min(max(share, 0.0), 1.0) * (len(anchors) - 1)
    at = min(int(place), len(anchors) - 2)
    return mixed(anchors[at], anchors[at + 1], place - at)


def readable_on(fill: str) -> str:
    """Black or white text, whichever is read better on a colour."""
    red, green, blue = (int(fill[at : at + 2], 16) for at in (1, 3, 5))
    return "#1b1c20" if 0.299 * red + 0.587 * green + 0.114 * blue > 150 else ON_COLOUR
