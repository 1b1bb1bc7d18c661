"""Draw boards from the recorded runs: `make preview`."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rankwatch_dashboards import dashboards
from support.browser import CHROMIUM
from support.grafana import FIRST_SCREEN_ROWS, MISSING, Grafana, built
from support.paths import ROOT
from support.recorded.loaded import Loaded, loaded_prometheus
from support.recorded.runs import CONFIG, RUNS, Recorded
from support.recorded.views import pictures, view

IMAGES = ROOT / "docs" / "images"
ON_CALL = "rankwatch-on-call"
"""Shows all runs, so it is drawn once with all faults, and once for each fault as if it were the only one."""


def main(arguments: Sequence[str]) -> int:
    """Draw the boards whose uids are given, or all."""
    missing = MISSING or ("chromium is not installed" if CHROMIUM is None else "")
    if missing:
        print(missing, file=sys.stderr)
        return 1
    boards = [each for each in dashboards(CONFIG) if not arguments or each["uid"] in arguments]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        grafana = built(folder / "bundles")
        with loaded_prometheus(folder) as recording:
            for picture in pictures(boards):
                _draw(grafana, recording, *picture)
        for board in (each for each in boards if each["uid"] == ON_CALL):
            for each in (one for one in RUNS if one.alert):
                _draw_alone(grafana, board, each, folder)
    return 0


def _draw_alone(grafana: Grafana, board: Mapping[str, Any], each: Recorded, parent: Path) -> None:
    """The run with its fault, beside those that have none."""
    directory = parent / each.run
    directory.mkdir()
    others = {other.run for other in RUNS if other.alert and other != each}
    with loaded_prometheus(directory, without=others) as recording:
        _draw(grafana, recording, board, each, f"dashboard-on-call-{each.run}.png")


def _draw(grafana: Grafana, recording: Loaded, board: Mapping[str, Any], each: Recorded, name: str) -> None:
    shown = [panel for panel in board["panels"] if panel["gridPos"]["y"] < FIRST_SCREEN_ROWS]
    grafana.draw(view(recording, board, each, shown), IMAGES / name)
    print(f"{name}: {(IMAGES / name).stat().st_size // 1000} kB")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
