"""Every board in Grafana's own code: nothing is unknown to it, and recorded runs show what a reader needs."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from rankwatch_alerts import ALERT_NAMES, ON_CALL_UID, RUN_DEBUG_UID
from rankwatch_alerts.promql import parse, selectors
from rankwatch_dashboards.words import STATES, SUSPICIONS
from support.browser import CHROMIUM
from support.dashboards.lint import drawn, filled_in
from support.grafana import FIRST_SCREEN_ROWS, FOLDER, MISSING, Grafana, built, compiled, misfits
from support.paths import ROOT
from support.recorded.absent import reason
from support.recorded.loaded import Loaded, loaded_prometheus
from support.recorded.runs import RUNS, Recorded
from support.recorded.views import pictures, view
from support.servers.prometheus import get_json, require

pytestmark = [pytest.mark.process, pytest.mark.skipif(bool(MISSING), reason=MISSING)]

Board = dict[str, Any]
BOARDS: list[Board] = [
    json.loads(path.read_text()) for path in sorted((ROOT / "dashboards/generated").glob("*.json"))
]
FAULTS = [each for each in RUNS if each.alert]
TABLE = "What is wrong now, and the other runs"
WORDS = {"Verdict": ALERT_NAMES, "Cause": SUSPICIONS, "What lost time went to": STATES}
"""Panels with words for each alert, cause or state that there is. Few of them occur in the recording."""
UNSEEN = {
    ("What is broken", "device"): "no alert on a device was recorded",
    ("Ranks", "Value #B"): "replicas agree",
}
"""Other fields that panels name and that no frame has, with the reason."""
CALM = {
    "Telemetry absent": "all telemetry was there",
    "What is not seen": "all telemetry was there",
    "Experiment tracker": "no run has one",
}
"""Panels that are rightly empty on all runs."""
LARGEST_BYTES = 250_000


class Seen(NamedTuple):
    """A panel on a run."""

    board: Board
    run: Recorded
    panel: dict[str, Any]
    named: dict[str, bool]
    """For each field that a transformation or an override names: is it there?"""
    unknown: list[str]
    shown: list[list[str]]
    """Name and values of each tile, column or series."""
    empty: str
    """What the panel says if it has nothing to show."""

    @property
    def place(self) -> tuple[str, str]:
        return self.board["uid"], self.panel["title"]


@pytest.fixture(scope="module")
def grafana(tmp_path_factory: pytest.TempPathFactory) -> Grafana:
    return built(tmp_path_factory.mktemp("grafana"))


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loaded]:
    require("prometheus", "promtool")
    with loaded_prometheus(tmp_path_factory.mktemp("recorded")) as loaded:
        yield loaded


def _looked_at(grafana: Grafana, recording: Loaded, boards: list[Board]) -> list[Seen]:
    """Every panel of the boards on every run, or once where a board shows all runs."""
    asked = [
        (board, each)
        for board in boards
        for each in (RUNS if any(one["name"] == "run" for one in board["templating"]["list"]) else RUNS[:1])
    ]
    views = [view(recording, board, each) for board, each in asked]
    return [
        Seen(board, each, panel, found["named"], found["unknown"], found["shown"], found["empty"])
        for (board, each), shown, judged in zip(asked, views, grafana.judge(views), strict=True)
        for panel, found in zip(shown["panels"], judged, strict=True)
    ]


@pytest.fixture(scope="module")
def seen(grafana: Grafana, recording: Loaded) -> list[Seen]:
    return _looked_at(grafana, recording, BOARDS)


def _unknown(seen: list[Seen]) -> set[tuple[str, str, str]]:
    """What Grafana would leave out without a word."""
    return {(*each.place, what) for each in seen for what in each.unknown}


def _missing(seen: list[Seen]) -> set[tuple[str, str, str]]:
    """Fields that a transformation or an override names, and that no frame of the panel has on any run.

    The column of values has its query's letter only where several queries answer, so either name will do."""
    there: dict[tuple[str, str, str], bool] = {}
    for each in seen:
        for name, found in each.named.items():
            key = (*each.place, name.replace("Value #A", "Value"))
            there[key] = there.get(key, False) or found
    return {
        (board, panel, name)
        for (board, panel, name), found in there.items()
        if not found
        and name.partition(": ")[2] not in WORDS.get(panel, ())
        and (panel, name.partition(": ")[2]) not in UNSEEN
    }


def test_options(tmp_path: Path) -> None:
    """Grafana's schema knows each option of each panel and field, and each kind of mapping."""
    assert misfits(BOARDS, tmp_path) == []


def test_nothing_is_unknown(seen: list[Seen]) -> None:
    """Units, transformations, calculations, matchers and options."""
    assert len(seen) > 1000
    assert _unknown(seen) == set()


def test_named_fields_exist(seen: list[Seen]) -> None:
    """A column that is renamed, or a series that has its own colour, is in the data of some run."""
    assert _missing(seen) == set()


def test_reasons_are_needed(seen: list[Seen]) -> None:
    """A field or a panel that a run shows by now needs no reason why it is missing."""
    there = {
        (each.panel["title"], name.partition(": ")[2])
        for each in seen
        for name, found in each.named.items()
        if found
    }
    assert not there & UNSEEN.keys()
    assert not {each.panel["title"] for each in seen if each.shown} & CALM.keys()


def test_panels_show_values(seen: list[Seen], recording: Loaded) -> None:
    """Each panel shows something on some run, unless what it asks for was not recorded."""
    names = set(get_json(f"{recording.url}/api/v1/label/__name__/values")["data"])
    shown = {each.place for each in seen if each.shown}
    for each in seen:
        if each.place not in shown and each.panel["title"] not in CALM:
            queries = [filled_in(one["expr"]) for one in each.panel["targets"]]
            absent = [name for one in queries for name in _series(one) if name not in names]
            assert any(reason(absent, one) for one in queries), each.place


def _series(expression: str) -> list[str]:
    return [each.metric for each in selectors(parse(expression))]


def test_first_screens_show_values(seen: list[Seen]) -> None:
    """Of the runs in the documents: `No data` reads as a broken board, so what is empty has words for it."""
    drawn_runs = {(board["uid"], each.run) for board, each, _ in pictures(BOARDS)}
    for each in seen:
        shown = each.shown or each.panel["type"] == "alertlist"
        if (each.board["uid"], each.run.run) in drawn_runs and each.panel["gridPos"]["y"] < FIRST_SCREEN_ROWS:
            assert shown or each.empty != "No data", (each.place, each.run.run)


def _first_screen(seen: list[Seen], uid: str, run: str) -> dict[str, list[list[str]]]:
    """What the panels show by their titles."""
    of_run = [each for each in seen if (each.board["uid"], each.run.run) == (uid, run)]
    return {
        each.panel["title"]: each.shown for each in of_run if each.panel["gridPos"]["y"] < FIRST_SCREEN_ROWS
    }


def test_on_call_names_each_fault(seen: list[Seen]) -> None:
    """In words, on the first screen: how urgent, what, in which run, which rank and node, why, what to do."""
    columns = _first_screen(seen, ON_CALL_UID, RUNS[0].run)[TABLE]
    rows = [
        dict(zip([name for name, *_ in columns], row, strict=True))
        for row in zip(*(c[1:] for c in columns), strict=True)
    ]
    for each in FAULTS:
        of_run = [row for row in rows if row["Run"] == each.run]
        assert of_run, each.run
        for row in of_run:
            assert row["Severity"] in ("▲ page", "◆ ticket")
            assert all(
                row[name] not in ("", "-")
                for name in ("Alert", "Why", "Fires for", "Suspect", "Cause", "Do first")
            )
            assert not row["Alert"].startswith("Rankwatch"), "Grafana's mappings put it into words"
        named = {(row["Rank"], row["Node"]) for row in of_run}
        if "rank" in each.labels:
            assert (each.labels["rank"], each.labels["node"]) in named
    (healthy,) = [row for row in rows if row["Run"] == RUNS[0].run]
    assert healthy["Severity"] == "✓ no alert"


@pytest.mark.parametrize(
    ("run", "tiles"),
    [
        ("slow-rank", ("run slow", "rank 2", "node-a", "slow: compute")),
        ("stalled-rank", ("run stalled", "rank 1", "node-a", "did not enter the collective")),
        ("nan-loss", ("loss diverging", "rank 1", "node-a", "first NaN or infinity")),
        ("foreign-data", ("loss diverging", "rank 1", "node-a", "data differs")),
        ("bad-disk", ("checkpoint at risk", "rank 0", "node-a", "OSError: No space left on device")),
        ("lost-gpu", ("run stalled", "rank 5", "node-b", "GPU fault: lost")),
        ("crash-loop", ("run failed", "rank 0", "node-a", "IndexError: shard 7 holds 0 sequences")),
        ("healthy", (None, None, None, None)),
    ],
)
def test_run_debug_gives_the_verdict(run: str, tiles: tuple[str | None, ...], seen: list[Seen]) -> None:
    """The first four tiles: what, which rank, which node, why. A healthy run has none."""
    shown = _first_screen(seen, RUN_DEBUG_UID, run)
    found = [
        next((name for name, *_ in shown[title]), None) for title in ("Verdict", "Rank", "Node", "Cause")
    ]
    assert tuple(found) == tiles


def _panel(board: Board, title: str) -> dict[str, Any]:
    panel: dict[str, Any] = next(each for each in drawn(board) if each["title"] == title)
    return panel


def _adds(ident: str, value: object) -> Callable[[Board], None]:
    """Another property in the first override of the table."""
    return lambda board: _panel(board, TABLE)["fieldConfig"]["overrides"][0]["properties"].append(
        {"id": ident, "value": value}
    )


def _names(matcher: dict[str, object]) -> Callable[[Board], None]:
    return lambda board: _panel(board, TABLE)["fieldConfig"]["overrides"][0].update(matcher=matcher)


def _renames(name: str) -> Callable[[Board], None]:
    return lambda board: _panel(board, TABLE)["transformations"][-1]["options"]["renameByName"].update(
        {name: "X"}
    )


def _transforms(ident: str) -> Callable[[Board], None]:
    return lambda board: _panel(board, TABLE)["transformations"].append({"id": ident, "options": {}})


def _sets(part: str, name: str, value: object) -> Callable[[Board], None]:
    def change(board: Board) -> None:
        panel = _panel(board, "Runs stopped")
        place = panel["options"] if part == "options" else panel["fieldConfig"]["defaults"]
        place[name] = value

    return change


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (_sets("options", "colourMode", "value"), "'\"colourMode\"' does not exist"),
        (_sets("options", "colorMode", "foreground"), "'\"foreground\"' is not assignable"),
        (_sets("defaults", "units", "s"), "'\"units\"' does not exist"),
        (
            _sets("defaults", "mappings", [{"type": "values", "options": {}}]),
            "'\"values\"' is not assignable",
        ),
        (lambda board: _panel(board, "Runs stopped").update(type="geomap"), "'geomap' does not exist"),
        (_adds("custom.widht", 80), "'\"widht\"' does not exist"),
        (_adds("custom.cellOptions", {"type": "coloured"}), "'\"coloured\"' is not assignable"),
    ],
)
def test_misfit_is_found(change: Callable[[Board], None], named: str, tmp_path: Path) -> None:
    """By the schema, in the panel that has it."""
    board = _changed(change)
    (found,) = misfits([board], tmp_path)
    assert found.startswith(ON_CALL_UID) and named in found


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (_sets("defaults", "unit", "seconds"), ("Runs stopped", "unit seconds")),
        (_adds("unit", "parsecs"), (TABLE, "unit parsecs")),
        (_adds("colour", "red"), (TABLE, "option colour")),
        (_transforms("mergeAll"), (TABLE, "transformation mergeAll")),
        (_names({"id": "byTitle", "options": "run"}), (TABLE, "matcher byTitle")),
        (_sets("options", "reduceOptions", {"calcs": ["newest"]}), ("Runs stopped", "calculation newest")),
        (_names({"id": "byName", "options": "severty"}), (TABLE, "override: severty")),
        (_renames("Value #Q"), (TABLE, "organize: Value #Q")),
    ],
)
def test_mistake_is_found(
    change: Callable[[Board], None], named: tuple[str, str], grafana: Grafana, recording: Loaded
) -> None:
    """By Grafana's registries, or by the frames of the recorded runs."""
    seen = _looked_at(grafana, recording, [_changed(change)])
    assert (ON_CALL_UID, *named) in _unknown(seen) | _missing(seen)


def _changed(change: Callable[[Board], None]) -> Board:
    board = copy.deepcopy(next(each for each in BOARDS if each["uid"] == ON_CALL_UID))
    change(board)
    return board


@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
@pytest.mark.parametrize(
    "picture", list(pictures(BOARDS)), ids=lambda picture: picture[2].removesuffix(".png")
)
def test_browser_shows_first_screen(
    picture: tuple[Board, Recorded, str], grafana: Grafana, recording: Loaded
) -> None:
    """Grafana's components show each panel of each picture, and none has only its title."""
    board, each, _ = picture
    panels = [panel for panel in board["panels"] if panel["gridPos"]["y"] < FIRST_SCREEN_ROWS]
    visit = grafana.visit(view(recording, board, each, panels))
    assert visit.answer.keys() == {panel["title"] for panel in panels}
    for title, text in visit.answer.items():
        assert text.replace(title, "", 1).strip(), title
        assert "No data" not in text, title
    assert [line for line in visit.complaints if "/img/icons/" not in line] == [], (
        "but for icons, which are not packed"
    )


def test_pictures_are_small() -> None:
    """Those of the documents, of which each board has one."""
    for _, _, name in pictures(BOARDS):
        assert (ROOT / "docs/images" / name).stat().st_size < LARGEST_BYTES


def test_sources_have_types() -> None:
    """What stands between Grafana's code and the boards uses its interfaces as they are declared."""
    assert list(compiled(FOLDER)) == []
