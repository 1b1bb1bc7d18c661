"""Grafana's own code, from `tests/grafana`: judges boards in Node, and draws them in a browser."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from support.browser import Visit, photograph, visit
from support.dashboards.lint import drawn
from support.paths import ROOT

FOLDER = ROOT / "tests" / "grafana"
NODE = shutil.which("node")
MISSING = (
    "node is not installed"
    if NODE is None
    else ""
    if (FOLDER / "node_modules" / ".complete").exists()
    else "the packages of tests/grafana are not installed: see make grafana"
)
"""Why boards cannot be judged here; empty where they can."""
WIDTH, FIRST_SCREEN_ROWS = 1440, 18
_HEIGHT = 52 + FIRST_SCREEN_ROWS * 38 + 12
_PAGE = """<!doctype html><meta charset="utf-8"><link rel="stylesheet" href="page.css">
<body style="margin: 0"><div id="board"></div><script type="application/json" id="view">{view}</script>
<script src="page.js"></script></body>"""
_PROBE = """
await new Promise((done) => setTimeout(done, 3000));
const panels = [...document.querySelectorAll("[data-panel]")];
return Object.fromEntries(panels.map((each) => [each.dataset.panel, each.innerText]));
"""
_ERROR = re.compile(r"boards\.ts\((\d+),\d+\): error (.+)")


class Grafana(NamedTuple):
    """The bundles."""

    folder: Path

    def judge(self, views: Sequence[Mapping[str, Any]]) -> list[list[dict[str, Any]]]:
        """For each view, what each panel shows, which fields it names, and what in it is unknown."""
        done = _node(self.folder / "check.cjs", stdin=json.dumps(views))
        found: list[list[dict[str, Any]]] = json.loads(done)
        return found

    def visit(self, view: Mapping[str, Any]) -> Visit:
        """The texts of each panel by its title, as a browser shows them."""
        return visit(_page(view), _PROBE, self.folder, width=WIDTH, height=_HEIGHT)

    def draw(self, view: Mapping[str, Any], picture: Path) -> None:
        """Write a PNG of what a browser shows."""
        photograph(_page(view), picture, self.folder, width=WIDTH, height=_HEIGHT)
        _node(FOLDER / "shrink.mjs", str(picture))


def built(folder: Path) -> Grafana:
    """Bundle Grafana's code with ours; takes two seconds."""
    _node(FOLDER / "build.mjs", str(folder))
    return Grafana(folder)


def _page(view: Mapping[str, Any]) -> str:
    return _PAGE.format(view=json.dumps(view).replace("<", "\\u003c"))


def _node(script: Path, *arguments: str, stdin: str = "") -> str:
    assert NODE is not None
    command = [NODE, str(script), *arguments]
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def misfits(boards: Sequence[Mapping[str, Any]], folder: Path) -> list[str]:
    """What Grafana's schema does not allow in panels, by its compiler; `folder` gets a few files."""
    panels = [(board, panel) for board in boards for panel in drawn(board)]
    lines = [f"import type {{ Panels }} from {json.dumps(str(FOLDER / 'schema'))};"]
    lines += [
        f"export const panel{number}: Panels[{json.dumps(panel['type'])}] = {json.dumps(_literal(panel))};"
        for number, (_, panel) in enumerate(panels)
    ]
    (folder / "boards.ts").write_text("\n".join(lines))
    settings = {
        "extends": str(FOLDER / "tsconfig.json"),
        "files": ["boards.ts"],
        "compilerOptions": {"types": []},
    }
    (folder / "tsconfig.json").write_text(json.dumps(settings))
    found = []
    for line, message in compiled(folder):
        board, panel = panels[int(line) - 2]
        found.append(f"{board['uid']}: {panel['title']}: {message}")
    return found


def compiled(folder: Path) -> Iterator[tuple[str, str]]:
    """Line and message of each error that the compiler finds in the boards; others fail."""
    tsc = FOLDER / "node_modules" / ".bin" / "tsc"
    done = subprocess.run([tsc, "--project", folder], capture_output=True, text=True, check=False)
    errors = _ERROR.findall(done.stdout)
    assert errors or done.returncode == 0, done.stdout + done.stderr
    yield from errors


def _literal(panel: Mapping[str, Any]) -> dict[str, Any]:
    """The panel as the schema describes it, where the properties of an override are one config."""
    config = panel.get("fieldConfig", {})
    overrides = [{**each, "properties": _config(each["properties"])} for each in config.get("overrides", ())]
    return {**panel, "fieldConfig": {"defaults": {}, **config, "overrides": overrides}}


def _config(properties: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for each in properties:
        *path, last = each["id"].split(".")
        place = made
        for part in path:
            place = place.setdefault(part, {})
        place[last] = each["value"]
    return made
