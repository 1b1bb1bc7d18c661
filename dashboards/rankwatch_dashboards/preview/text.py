"""Text panels: the Markdown that people write into dashboards, without pictures and tables."""

from __future__ import annotations

import re
from collections.abc import Iterator

from rankwatch_dashboards.preview.colours import TEXT
from rankwatch_dashboards.preview.content import Content
from rankwatch_dashboards.preview.shapes import Shape, Text, wrapped

_HEADING = {1: 24.0, 2: 20.0, 3: 17.0}
_LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")
_MARKS = re.compile(r"\*\*|__|`|<[^>]+>")


def text(content: Content) -> Iterator[Shape]:
    """Headings, lists and paragraphs, as far as they fit."""
    y = content.place.y + 6
    for line in str(content.option("content") or "").splitlines():
        level = len(line) - len(line.lstrip("#"))
        size = _HEADING.get(level, 14.0)
        plain = _MARKS.sub("", _LINK.sub(r"\1", line.lstrip("# "))).strip()
        bullet = plain.startswith(("- ", "* "))
        plain = f"• {plain[2:]}" if bullet else plain
        bold = bool(level) or line.strip().startswith("**")
        for each in wrapped(plain, size, content.place.width - 24):
            y += size * 1.5
            if y > content.place.bottom:
                return
            left = content.place.x + (20 if bullet else 10)
            yield Text(x=left, y=y - size * 0.75, text=each, size=size, colour=TEXT, bold=bold)
