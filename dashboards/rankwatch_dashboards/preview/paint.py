"""Paints a picture with matplotlib, as a small PNG with a palette."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rankwatch_dashboards.preview.colours import BACKGROUND
from rankwatch_dashboards.preview.shapes import Area, Box, Line, Place, Shape, Text

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_DOTS_PER_INCH = 100
_POINTS_PER_PIXEL = 72 / _DOTS_PER_INCH
_COLOURS = 256


def paint(shapes: Iterable[Shape], width: int, height: int, path: Path) -> None:
    """Write the picture. Raises OSError where the file cannot be written."""
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from PIL import Image

    with mpl.rc_context({"font.family": "DejaVu Sans", "path.simplify": True}):
        figure = Figure(figsize=(width / _DOTS_PER_INCH, height / _DOTS_PER_INCH), dpi=_DOTS_PER_INCH)
        canvas = FigureCanvasAgg(figure)
        axes = figure.add_axes((0, 0, 1, 1))
        axes.set_xlim(0, width)
        axes.set_ylim(height, 0)
        axes.set_axis_off()
        figure.patch.set_facecolor(BACKGROUND)
        for order, each in enumerate(shapes):
            _add(axes, each, order)
        canvas.draw()
        size = canvas.get_width_height()
        picture = Image.frombytes("RGBA", size, bytes(canvas.buffer_rgba())).convert("RGB")
    path.parent.mkdir(parents=True, exist_ok=True)
    small = picture.quantize(_COLOURS, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    small.save(path, optimize=True)


def _add(axes: Axes, shape: Shape, order: int) -> None:
    match shape:
        case Text():
            _add_text(axes, shape, order)
        case Box():
            _add_box(axes, shape, order)
        case Line():
            _add_line(axes, shape, order)
        case Area():
            _add_area(axes, shape, order)


def _add_text(axes: Axes, shape: Text, order: int) -> None:
    axes.text(
        shape.x,
        shape.y,
        shape.text,
        fontsize=shape.size * _POINTS_PER_PIXEL,
        color=shape.colour,
        ha=shape.align.value,
        va="center",
        fontweight="bold" if shape.bold else "normal",
        parse_math=False,
        zorder=order,
    )


def _add_box(axes: Axes, shape: Box, order: int) -> None:
    from matplotlib.patches import Rectangle

    place = shape.place
    axes.add_patch(
        Rectangle(
            (place.x, place.y),
            place.width,
            place.height,
            facecolor=shape.fill,
            edgecolor=shape.edge or "none",
            linewidth=_POINTS_PER_PIXEL if shape.edge else 0,
            antialiased=bool(shape.edge),
            zorder=order,
        )
    )


def _add_line(axes: Axes, shape: Line, order: int) -> None:
    from matplotlib.lines import Line2D

    line = Line2D(
        [x for x, _ in shape.points],
        [y for _, y in shape.points],
        color=shape.colour,
        linewidth=shape.width * _POINTS_PER_PIXEL,
        linestyle=(0, (5, 4)) if shape.dashed else "-",
        zorder=order,
    )
    axes.add_line(line)
    _clip(axes, line, shape.clip)


def _add_area(axes: Axes, shape: Area, order: int) -> None:
    from matplotlib.patches import Polygon

    area = Polygon(
        shape.points, closed=True, facecolor=shape.fill, edgecolor="none", alpha=shape.opacity, zorder=order
    )
    axes.add_patch(area)
    _clip(axes, area, shape.clip)


def _clip(axes: Axes, artist: Any, clip: Place | None) -> None:
    from matplotlib.patches import Rectangle

    if clip:
        frame = Rectangle((clip.x, clip.y), clip.width, clip.height, transform=axes.transData)
        artist.set_clip_path(frame)
