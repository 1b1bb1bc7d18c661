"""Draw dashboards from the recorded runs: `make preview`."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rankwatch_dashboards import dashboards
from rankwatch_dashboards.preview import Prometheus, View, draw, paint
from support.paths import ROOT
from support.recorded.loaded import Loaded, loaded_prometheus
from support.recorded.runs import CONFIG, GPU_RUN, INTERVAL_SECONDS, RUNS, Recorded

IMAGES = ROOT / "docs" / "images"
OF_FAULTS = ("rankwatch-run-debug",)
"""Dashboards that are drawn for each run with a fault; the others are drawn once."""
ON_CALL = "rankwatch-on-call"
"""Shows all runs, so it is drawn once with all faults, and once for each fault as if it were the only one."""
FIRST_SCREEN_ROWS = 18
_SHOWN = {"rankwatch-hardware": GPU_RUN}
"""The run of a dashboard that is drawn once, where it is not the first one with a fault."""
_FIRST_FAULT = next(each for each in RUNS if each.alert)


def view(recording: Loaded, board: Mapping[str, Any], each: Recorded) -> View:
    """The run at the last moment at which its alert fires; the end for a dashboard of all runs."""
    names = {variable["name"] for variable in board["templating"]["list"]}
    end = recording.end
    if each.alert and "run" in names:
        wanted = ", ".join(f'{name}="{value}"' for name, value in each.wanted.items())
        firing = f'ALERTS{{alertstate="firing", {wanted}}}'
        end = max(float(moment) for one in recording.ask(firing) for moment, _ in one["values"])
    node = {"node": each.labels["node"]} if board["uid"] in _SHOWN else {}
    return View(
        start=recording.start,
        end=end,
        step_seconds=INTERVAL_SECONDS,
        rate_seconds=4 * INTERVAL_SECONDS,
        values={"run": each.run, **node},
    )


def pictures(boards: Sequence[Mapping[str, Any]]) -> Iterator[tuple[Mapping[str, Any], Recorded, str]]:
    """Each picture to draw: dashboard, run and name of the file."""
    for board in boards:
        name = str(board["uid"]).removeprefix("rankwatch-")
        for each in RUNS:
            if board["uid"] in OF_FAULTS and each.alert:
                yield board, each, f"dashboard-{name}-{each.run}.png"
            elif board["uid"] not in OF_FAULTS and each == _SHOWN.get(board["uid"], _FIRST_FAULT):
                yield board, each, f"dashboard-{name}.png"


def main(arguments: Sequence[str]) -> int:
    """Draw the dashboards whose uids are given, or all; status 1 where a form is not known."""
    boards = [each for each in dashboards(CONFIG) if not arguments or each["uid"] in arguments]
    with tempfile.TemporaryDirectory() as name:
        unknown = _draw_all(boards, Path(name))
        for board in (each for each in boards if each["uid"] == ON_CALL):
            unknown += sum(_draw_alone(board, each, Path(name)) for each in RUNS if each.alert)
    print(f"{unknown} panels or transformations have no preview" if unknown else "every panel is drawn")
    return 1 if unknown else 0


def _draw_all(boards: Sequence[Mapping[str, Any]], directory: Path) -> int:
    with loaded_prometheus(directory) as recording:
        return sum(_draw(recording, *picture) for picture in pictures(boards))


def _draw_alone(board: Mapping[str, Any], each: Recorded, parent: Path) -> int:
    """The run with its fault, beside those that have none."""
    directory = parent / each.run
    directory.mkdir()
    others = {other.run for other in RUNS if other.alert and other != each}
    with loaded_prometheus(directory, without=others) as recording:
        return _draw(recording, board, each, f"dashboard-on-call-{each.run}.png")


def _draw(recording: Loaded, board: Mapping[str, Any], each: Recorded, name: str) -> int:
    """Write a picture; returns how much of it has no preview."""
    source = Prometheus(url=recording.url)
    drawing = draw(board, view(recording, board, each), source, FIRST_SCREEN_ROWS)
    paint(drawing.shapes, drawing.width, drawing.height, IMAGES / name)
    size = (IMAGES / name).stat().st_size // 1000
    empty = f", empty: {', '.join(drawing.empty)}" if drawing.empty else ""
    print(f"{name}: {drawing.panels} panels, {size} kB{empty}")
    for title in drawing.unknown:
        print(f"  not drawn: {title}")
    return len(drawing.unknown)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
