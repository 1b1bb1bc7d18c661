"""Pictures of dashboards: what is drawn for each form of panel, before anything is painted."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from grafana_foundation_sdk.builders import (
    bargauge,
    common,
    dashboard,
    prometheus,
    stat,
    statetimeline,
    statushistory,
    table,
    timeseries,
)
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.common import StackingMode, VizOrientation
from grafana_foundation_sdk.models.dashboard import (
    DashboardRegexMapOptions,
    DataTransformerConfig,
    DynamicConfigValue,
    RegexMap,
    Threshold,
    ThresholdsMode,
    ValueMap,
    ValueMappingResult,
)

from rankwatch_alerts import RuleConfig
from rankwatch_dashboards import dashboards
from rankwatch_dashboards.preview import Drawing, View, draw, paint
from rankwatch_dashboards.preview.board import FORMS, MARK
from rankwatch_dashboards.preview.frames import NUMBER, STRING, Field, Frame
from rankwatch_dashboards.preview.shapes import Area, Box, Line, Text
from rankwatch_dashboards.preview.transformations import transformed
from rankwatch_dashboards.preview.units import written

GREEN, RED, ORANGE = "#73bf69", "#f2495c", "#ff9830"
VIEW = View(start=1000.0, end=1060.0, step_seconds=15.0, rate_seconds=60.0, values={"run": "r-1"})
MOMENTS = (1000.0, 1015.0, 1030.0, 1045.0, 1060.0)


class Answers:
    """Answers queries with series by the text of the query, and remembers what was asked."""

    def __init__(self, series: Mapping[str, list[tuple[dict[str, str], list[float]]]]) -> None:
        self.series_of = series
        self.asked: list[tuple[str, bool]] = []

    def series(self, expression: str, view: View, *, instant: bool = False) -> list[dict[str, Any]]:
        self.asked.append((expression, instant))
        found = self.series_of.get(expression, [])
        if instant:
            return [{"metric": labels, "value": [view.end, f"{values[-1]}"]} for labels, values in found]
        return [
            {"metric": labels, "values": [[m, f"{v}"] for m, v in zip(MOMENTS, values, strict=False)]}
            for labels, values in found
        ]


RANKS = {
    "slow": [
        ({"rank": "0", "node": "a"}, [1.0, 1.0, 1.0, 1.0, 1.0]),
        ({"rank": "1", "node": "b"}, [1.0, 1.0, 1.8, 1.8, 1.8]),
    ]
}
LIMITS = (
    dashboard.ThresholdsConfig()
    .mode(ThresholdsMode.ABSOLUTE)
    .steps([Threshold(value=None, color="green"), Threshold(value=1.5, color="red")])
)


def query(expression: str, legend: str = "rank {{rank}}", letter: str = "A") -> prometheus.Dataquery:
    return prometheus.Dataquery().expr(expression).legend_format(legend).ref_id(letter).range()


def drawn(panel: Any, series: Mapping[str, Any] = RANKS) -> Drawing:
    """A dashboard with one panel, 12 wide and 8 high, from the JSON that the SDK writes."""
    builder = dashboard.Dashboard("Board").uid("board").with_panel(panel.title("Panel").span(12).height(8))
    document = json.loads(JSONEncoder(sort_keys=True).encode(builder.build()))
    return draw(document, VIEW, Answers(series))


def texts(drawing: Drawing) -> list[str]:
    return [each.text for each in drawing.shapes if isinstance(each, Text)]


def colour_of(drawing: Drawing, text: str) -> str:
    return next(each.colour for each in drawing.shapes if isinstance(each, Text) and each.text == text)


def fills(drawing: Drawing, colour: str) -> int:
    return sum(isinstance(each, Box) and each.fill == colour for each in drawing.shapes)


def test_stat_shows_values_in_threshold_colours() -> None:
    """Each series has its name and its last value, in the colour of the threshold that it reaches."""
    drawing = drawn(stat.Panel().unit("percentunit").thresholds(LIMITS).with_target(query("slow")))
    assert {"rank 0", "100%", "rank 1", "180%"} <= set(texts(drawing))
    assert colour_of(drawing, "100%") == GREEN
    assert colour_of(drawing, "180%") == RED


def test_stat_background_and_mapping() -> None:
    """A mapped value has its text and its colour, and the background takes the colour."""
    mapping = ValueMap(options={"1000000000": ValueMappingResult(text="all well", color="orange")})
    panel = stat.Panel().mappings([mapping]).with_target(query("up"))
    document = json.loads(JSONEncoder().encode(dashboard.Dashboard("B").with_panel(panel).build()))
    document["panels"][0]["options"] = {"colorMode": "background", "graphMode": "none"}
    drawing = draw(document, VIEW, Answers({"up": [({}, [1e9])]}))
    assert "all well" in texts(drawing)
    assert fills(drawing, ORANGE) == 1


@pytest.mark.parametrize(
    ("pattern", "shown"), [("/^node .*$/", "words"), ("/^node/", "words a"), ("node", "node a")]
)
def test_pattern_gives_way_to_its_text(pattern: str, shown: str) -> None:
    """As in Grafana: what matches is replaced, and a pattern without slashes must match all of the value."""
    mapping = RegexMap(
        options=DashboardRegexMapOptions(pattern=pattern, result=ValueMappingResult(text="words"))
    )
    panel = table.Panel().with_target(query("slow").format("table").instant())
    panel.override_by_name("where", [DynamicConfigValue(id_val="mappings", value=[mapping])])
    assert shown in texts(drawn(panel, {"slow": [({"where": "node a"}, [1.0])]}))


def test_stat_without_thresholds_turns_red_from_80_on() -> None:
    """Grafana's default thresholds hold where a panel names none, whatever its unit."""
    drawing = drawn(stat.Panel().unit("s").with_target(query("age")), {"age": [({}, [90.0])]})
    assert colour_of(drawing, "1.50 min") == RED


def test_table_columns_after_transformations() -> None:
    """Two queries are joined by rank, columns renamed, ordered and left out, cells coloured and sorted."""
    series = {
        "slow": [({"rank": "0", "node": "a"}, [1.0]), ({"rank": "1", "node": "b"}, [1.8])],
        "cost": [({"rank": "1"}, [0.5]), ({"rank": "0"}, [0.0])],
    }
    panel = (
        table.Panel()
        .with_target(query("slow").format("table").instant())
        .with_target(query("cost", letter="B").format("table").instant())
        .with_transformation(DataTransformerConfig(id_val="merge", options={}))
        .with_transformation(
            DataTransformerConfig(
                id_val="organize",
                options={
                    "excludeByName": {"Time": True},
                    "indexByName": {"node": 0, "rank": 1, "Value #A": 2, "Value #B": 3},
                    "renameByName": {"rank": "Rank", "Value #A": "Slowdown", "Value #B": "Cost"},
                },
            )
        )
        .sort_by([common.TableSortByFieldState().display_name("Slowdown").desc(True)])
        .thresholds(LIMITS)
        .override_by_name("Cost", [DynamicConfigValue(id_val="unit", value="percentunit")])
        .override_by_name(
            "Slowdown",
            [
                DynamicConfigValue(
                    id_val="custom.cellOptions", value={"type": "color-background", "mode": "basic"}
                )
            ],
        )
    )
    drawing = drawn(panel, series)
    head = [each for each in texts(drawing) if each in ("Time", "node", "Rank", "Slowdown", "Cost")]
    assert head == ["node", "Rank", "Slowdown", "Cost"]
    written_texts = texts(drawing)
    first = written_texts.index("1.80")
    assert written_texts[first - 2 : first + 2] == ["b", "1", "1.80", "50%"], "the slowest rank comes first"
    assert fills(drawing, RED) == 1
    assert fills(drawing, GREEN) == 1


def test_table_shows_its_first_frame_only() -> None:
    """Grafana offers the others in a list, so a forgotten transformation is seen."""
    drawing = drawn(table.Panel().with_target(query("slow")))
    assert "1" in texts(drawing)
    assert "1.80" not in texts(drawing)


def test_timeseries_lines_break_at_gaps() -> None:
    """A series has its name in the legend with its last value; a gap is no line; the threshold is drawn."""
    legend = common.VizLegendOptions().show_legend(True).calcs(["lastNotNull"])
    panel = (
        timeseries.Panel()
        .thresholds(LIMITS)
        .thresholds_style(common.GraphThresholdsStyleConfig().mode("line"))
        .legend(legend)
        .with_target(query("slow"))
    )
    document = json.loads(JSONEncoder().encode(dashboard.Dashboard("B").with_panel(panel).build()))
    document["panels"][0]["options"]["legend"]["displayMode"] = "table"
    source = Answers(RANKS)
    drawing = draw(document, VIEW, source)
    assert {"rank 0", "rank 1", "1.80", "Last *"} <= set(texts(drawing))
    clipped = [each for each in drawing.shapes if isinstance(each, Line) and each.clip]
    assert [each.colour for each in clipped] == [RED, GREEN, "#f2cc0c"], "the threshold and two series"
    two_parts = {"slow": [({"rank": "0"}, [1.0, 2.0])]}
    two_parts["slow"][0][1].extend([float("nan"), 3.0, 4.0])
    drawing = draw(document, VIEW, Answers(two_parts))
    parts = [each for each in drawing.shapes if isinstance(each, Line) and each.clip][1:]
    assert [len(each.points) for each in parts] == [2, 2]


def test_timeseries_stacks() -> None:
    """A stacked series stands on the one before it."""
    stacking = common.StackingConfig().mode(StackingMode.NORMAL)
    drawing = drawn(timeseries.Panel().stacking(stacking).fill_opacity(40).with_target(query("slow")))
    lower, upper = (each for each in drawing.shapes if isinstance(each, Area) and each.opacity == 0.4)
    assert lower.points[0] == upper.points[-1]


def test_state_timeline_merges_and_status_history_does_not() -> None:
    """Neighbouring equal states are one cell in the one and five in the other."""
    timeline = statetimeline.Panel().thresholds(LIMITS).merge_values(True).with_target(query("slow"))
    drawing = drawn(timeline)
    assert (fills(drawing, GREEN), fills(drawing, RED)) == (2, 1)
    drawing = drawn(statushistory.Panel().thresholds(LIMITS).with_target(query("slow")))
    assert (fills(drawing, GREEN), fills(drawing, RED)) == (5 + 2, 3)


def test_bar_gauge_fills_by_value() -> None:
    """The bar of the largest value is full, in its threshold's colour."""
    panel = bargauge.Panel().min(0).thresholds(LIMITS).orientation(VizOrientation.HORIZONTAL)
    drawing = drawn(panel.with_target(query("slow")))
    slow = next(each for each in drawing.shapes if isinstance(each, Box) and each.edge == RED)
    fast = next(each for each in drawing.shapes if isinstance(each, Box) and each.edge == GREEN)
    assert fast.place.width == pytest.approx(slow.place.width / 1.8)


@pytest.mark.parametrize(("view", "shown"), [("stat", {"2"}), ("list", {"firing  A", "run=r", "firing  B"})])
def test_list_of_alerts(view: str, shown: set[str]) -> None:
    """In Grafana that of all rules; here the alerts of the recording that its filter matches."""
    options = {"viewMode": view, "alertInstanceLabelFilter": '{severity="critical"}'}
    panel = dashboard.Panel().type("alertlist").options({**options, "statThresholds": LIMITS.build()})
    asked = '{__name__=~"ALERTS|GRAFANA_ALERTS", alertstate="firing", severity="critical"}'
    series = {asked: [({"alertname": "A", "run": "r"}, [1.0]), ({"alertname": "B"}, [1.0])]}
    assert shown <= set(texts(drawn(panel, series)))
    assert "firing  A" not in texts(drawn(panel, {}))


def test_unknown_form_is_named() -> None:
    """A form or a transformation without preview is drawn as its name, and counted."""
    document = {
        "title": "B",
        "panels": [
            {
                "type": "geomap",
                "title": "Map",
                "gridPos": {"x": 0, "y": 0, "w": 24, "h": 4},
                "transformations": [{"id": "heatmap"}],
            }
        ],
    }
    drawing = draw(document, VIEW, Answers({}))
    assert set(drawing.unknown) == {"Map: form geomap", "Map: transformation heatmap"}
    assert "no preview of the form geomap" in texts(drawing)


def test_empty_panel_and_mark() -> None:
    """A panel without data says so, with the text that the panel has for it; the picture is marked."""
    drawing = drawn(timeseries.Panel().no_value("none").with_target(query("nothing")))
    assert drawing.empty == ("Panel",)
    assert {"none", MARK} <= set(texts(drawing))


def test_variables_and_collapsed_rows() -> None:
    """Chosen values win, All is the dashboard's own pattern, built-in ones follow the view."""
    rows = [
        {"type": "row", "title": "Details", "collapsed": True, "panels": [{}, {}]},
        {
            "type": "stat",
            "title": "S",
            "targets": [{"expr": 'x{run=~"$run", rank=~"${rank}"}[$__range]', "refId": "A"}],
        },
    ]
    for number, each in enumerate(rows):
        each["gridPos"] = {"x": 0, "y": number, "w": 24, "h": 1}
    variables = [
        {"name": "run", "type": "query", "query": "label_values(x, run)"},
        {"name": "rank", "type": "query", "includeAll": True, "allValue": ".+"},
    ]
    source = Answers({})
    drawing = draw({"title": "B", "templating": {"list": variables}, "panels": rows}, VIEW, source)
    assert source.asked == [('x{run=~"r-1", rank=~".+"}[60s]', False)]
    assert ">  Details   (2 panels)" in texts(drawing)


def test_annotations_mark_when_alerts_began() -> None:
    """A dashed line where the series begins, in the colour that the head of the board explains."""
    document = json.loads(
        JSONEncoder().encode(
            dashboard.Dashboard("B").with_panel(timeseries.Panel().with_target(query("slow"))).build()
        )
    )
    document["annotations"] = {
        "list": [{"name": "Alerts", "enable": True, "expr": "ALERTS", "iconColor": "red"}]
    }
    drawing = draw(document, VIEW, Answers({**RANKS, "ALERTS": [({}, [0.0, 1.0, 1.0])]}))
    in_head, in_panel = (each for each in drawing.shapes if isinstance(each, Line) and each.dashed)
    assert in_head.colour == in_panel.colour == RED
    assert "Alerts" in texts(drawing)


@pytest.mark.parametrize(
    ("value", "unit", "expected"),
    [
        (0.145, "s", "145 ms"),
        (90.0, "s", "1.50 min"),
        (7200.0, "s", "2 hours"),
        (0.0301, "percentunit", "3.01%"),
        (1536.0, "bytes", "1.50 KiB"),
        (2_500_000.0, "Bps", "2.50 MB/s"),
        (12_300.0, "short", "12.3 K"),
        (1000.0 * (1060 - 300), "dateTimeFromNow", "5 minutes ago"),
        (0.0, "time:ddd HH:mm:ss", "Thu 00:00:00"),
        (0.0, "dateTimeAsIso", "1970-01-01 00:00:00"),
        (12.5, "currencyUSD", "$12.5"),
        (3.0, "suffix:of 4", "3 of 4"),
        (float("nan"), "s", "NaN"),
    ],
)
def test_units(value: float, unit: str, expected: str) -> None:
    """As Grafana writes them."""
    assert written(value, unit, None, now=1060.0) == expected


def test_merge_joins_rows_that_agree() -> None:
    """Rows with the same shared columns are one; a row without a partner stays."""
    one = Frame(
        query="A",
        fields=(
            Field(name="rank", kind=STRING, values=("0", "1")),
            Field(name="a", kind=NUMBER, values=(1.0, 2.0)),
        ),
    )
    other = Frame(
        query="B",
        fields=(
            Field(name="rank", kind=STRING, values=("1", "2")),
            Field(name="b", kind=NUMBER, values=(3.0, 4.0)),
        ),
    )
    (merged,), unknown = transformed([one, other], [{"id": "merge"}])
    assert not unknown
    assert [each.values for each in merged.fields] == [
        ("0", "1", "2"),
        (1.0, 2.0, None),
        (None, 3.0, 4.0),
    ]


@pytest.mark.parametrize("board", dashboards(RuleConfig()), ids=lambda board: str(board["uid"]))
def test_every_form_of_the_dashboards_is_known(board: dict[str, Any]) -> None:
    """Those in collapsed rows too, so that each board has its picture."""
    panels = [one for each in board["panels"] for one in (each, *each.get("panels", ()))]
    assert {each["type"] for each in panels} <= {*FORMS, "row"}


@pytest.mark.process  # matplotlib asks a program for the fonts of the machine
def test_painted_picture_is_small(tmp_path: Path) -> None:
    """The drawing of a panel becomes a PNG of its size."""
    pytest.importorskip("matplotlib")
    drawing = drawn(stat.Panel().with_target(query("slow")))
    path = tmp_path / "board.png"
    paint(drawing.shapes, drawing.width, drawing.height, path)
    content = path.read_bytes()
    assert content.startswith(b"\x89PNG")
    assert int.from_bytes(content[16:20], "big") == drawing.width
    assert int.from_bytes(content[20:24], "big") == drawing.height
    assert len(content) < 50_000
