"""`python -m tests.bench.picture`: draw the picture of the README from a real demo.

Two panels over the same minute of a real run, as Prometheus recorded it: the mean step time of each
rank, and the mean local time of each rank.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from pathlib import Path

from .chart import COLOURS, document, polyline, tick

WIDTH, HEIGHT, LEFT, TOP, GAP = 760, 300, 56, 44, 64
PANEL = (WIDTH - 2 * LEFT - GAP // 2) // 2
NAMED = "#c8322d"
PANELS = (
    (
        "step time: names nobody",
        "sum by (rank) (rate(rankwatch_step_seconds_total[1m])) "
        "/ sum by (rank) (rate(rankwatch_steps_total[1m]))",
    ),
    ("local time: names the rank", "rankwatch_recent_step_local_seconds"),
)
Line = list[tuple[float, float]]


def main() -> int:
    """Run a demo, query its Prometheus, write the picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("docs/images/straggler.svg"))
    output = parser.parse_args().output
    with subprocess.Popen(
        [sys.executable, "-m", "rankwatch_cli", "demo", "--keep"], stdout=subprocess.PIPE, text=True
    ) as demo:
        try:
            address, named = _follow(demo)
            end = time.time()
            series = [_query(address, query, end - 50.0, end) for _, query in PANELS]
        finally:
            demo.terminate()
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(_draw(series, named))
    print(f"wrote {output}")
    return 0


def _follow(demo: subprocess.Popen[str]) -> tuple[str, str]:
    """Address of the demo's Prometheus, and the rank that was named."""
    assert demo.stdout is not None
    address = named = ""
    for line in demo.stdout:
        print(line, end="")
        if found := re.search(r"prometheus +http://(\S+)", line):
            address = found[1]
        if found := re.search(r"^ +rank +(\d+)", line):
            named = found[1]
        if "kept running" in line:
            return address, named
    raise SystemExit("the demo ended before its time")


def _query(address: str, query: str, start: float, end: float) -> dict[str, Line]:
    """Lines by rank: (Unix time, milliseconds)."""
    parameters = urllib.parse.urlencode({"query": query, "start": start, "end": end, "step": 1})
    with urllib.request.urlopen(f"http://{address}/api/v1/query_range?{parameters}", timeout=10.0) as reply:
        found = json.load(reply)["data"]["result"]
    return {
        each["metric"]["rank"]: [(float(at), 1e3 * float(value)) for at, value in each["values"]]
        for each in found
    }


def _draw(series: list[dict[str, Line]], named: str) -> str:
    times = [at for lines in series for line in lines.values() for at, _ in line]
    most = 1.1 * max(value for lines in series for line in lines.values() for _, value in line)
    parts: list[str] = []
    for index, ((title, _), lines) in enumerate(zip(PANELS, series, strict=True)):
        left = LEFT + index * (PANEL + GAP)
        parts += _panel(left, title, lines, (min(times), max(times)), most, named)
    return document(WIDTH, HEIGHT, parts)


def _panel(
    left: int, title: str, lines: dict[str, Line], span: tuple[float, float], most: float, named: str
) -> list[str]:
    bottom = HEIGHT - TOP

    def place(at: float, value: float) -> tuple[float, float]:
        across = left + PANEL * (at - span[0]) / (span[1] - span[0])
        return across, bottom - (bottom - TOP) * value / most

    parts = [f'<text x="{left}" y="{TOP - 16}" font-weight="bold">{title}</text>']
    for milliseconds in range(0, int(most) + 1, 100):
        _, y = place(span[0], milliseconds)
        parts += tick(left, left + PANEL, y, f"{milliseconds} ms")
    for number, (rank, line) in enumerate(sorted(lines.items(), key=lambda each: each[0] == named)):
        colour = NAMED if rank == named else COLOURS[number % len(COLOURS)]
        parts.append(polyline((place(at, value) for at, value in line), colour))
    _, y = place(*max(lines[named], key=lambda point: point[0]))
    if len({round(line[-1][1]) for line in lines.values()}) > 1 and title.startswith("local"):
        parts.append(
            f'<text x="{left + PANEL}" y="{y - 8:.1f}" text-anchor="end" fill="{NAMED}">rank {named}</text>'
        )
    parts.append(
        f'<text x="{left + PANEL / 2}" y="{HEIGHT - 14}" text-anchor="middle" fill="#666">'
        f"{span[1] - span[0]:.0f} s of a {len(lines)}-rank run, one line per rank</text>"
    )
    return parts


if __name__ == "__main__":
    sys.exit(main())
