"""Pictures of dashboards without a Grafana: laid out by the JSON, answered by a Prometheus.

    drawing = draw(dashboard, view, Prometheus(url=url))
    paint(drawing.shapes, drawing.width, drawing.height, Path("board.png"))

A drawing is a list of shapes; only `paint` needs matplotlib. It follows Grafana where a reader would take
another meaning from the picture: places, queries, transformations, names, units, mappings, thresholds and
colours. It is no copy of its pixels.
"""

from __future__ import annotations

from rankwatch_dashboards.preview.board import Drawing, draw
from rankwatch_dashboards.preview.paint import paint
from rankwatch_dashboards.preview.queries import Prometheus, View

__all__ = ["Drawing", "Prometheus", "View", "draw", "paint"]
