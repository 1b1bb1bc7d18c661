"""Boards on the recorded runs: variables filled in, queries asked of a Prometheus, answers by panel."""

from __future__ import annotations

import re
import urllib.error
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from support.dashboards.lint import drawn
from support.recorded.loaded import Loaded
from support.recorded.runs import GPU_RUN, INTERVAL_SECONDS, RUNS, Recorded
from support.servers.prometheus import get_json

OF_FAULTS = ("rankwatch-run-debug",)
"""Boards that are drawn for each run with a fault; the others are drawn once."""
_SHOWN = {"rankwatch-hardware": GPU_RUN}
"""The run of a board that is drawn once, where it is not the first one with a fault."""
_FIRST_FAULT = next(each for each in RUNS if each.alert)
_VARIABLE = re.compile(r"\$(?:\{(\w+)(?::\w+)?\}|(\w+))")

Board = Mapping[str, Any]
Ask = Callable[[str, bool], list[dict[str, Any]]]


def view(
    recording: Loaded, board: Board, each: Recorded, panels: Sequence[Board] | None = None
) -> dict[str, Any]:
    """What `tests/grafana` draws and judges: the panels, all by default, with the answers to their queries.
    It ends when the alert of the run fires for the last time; a board of all runs ends with the recording."""
    shown = list(drawn(board) if panels is None else panels)
    chosen = {"run": each.run}
    if board["uid"] in _SHOWN and "node" in each.labels:
        chosen["node"] = each.labels["node"]
    end = _end(recording, board, each)
    known = {**_values(board, chosen), **_times(recording.start, end)}
    asked: dict[tuple[str, bool], list[dict[str, Any]]] = {}

    def ask(expression: str, instant: bool) -> list[dict[str, Any]]:
        text = _VARIABLE.sub(lambda found: known.get(found[1] or found[2], found[0]), expression)
        if (text, instant) not in asked:
            asked[text, instant] = _answer(recording, text, end, instant=instant)
        return asked[text, instant]

    return {
        "title": board["title"],
        "variables": [
            (one.get("label") or one["name"], chosen.get(one["name"], "All"))
            for one in board["templating"]["list"]
            if one["type"] != "datasource" and not one.get("hide")
        ],
        "panels": [_listed(panel) for panel in shown],
        "answers": {
            panel["id"]: dict(_answers(panel, ask)) for panel in map(_listed, shown) if "targets" in panel
        },
        "annotations": list(_annotations(board, ask)),
        "from": recording.start * 1000,
        "to": end * 1000,
        "step": INTERVAL_SECONDS * 1000,
    }


def pictures(boards: Sequence[Board]) -> Iterator[tuple[Board, Recorded, str]]:
    """Each picture to draw: board, run and name of the file."""
    for board in boards:
        name = str(board["uid"]).removeprefix("rankwatch-")
        for each in RUNS:
            if board["uid"] in OF_FAULTS and each.alert:
                yield board, each, f"dashboard-{name}-{each.run}.png"
            elif board["uid"] not in OF_FAULTS and each == _SHOWN.get(board["uid"], _FIRST_FAULT):
                yield board, each, f"dashboard-{name}.png"


def _end(recording: Loaded, board: Board, each: Recorded) -> float:
    if not each.alert or all(one["name"] != "run" for one in board["templating"]["list"]):
        return recording.end
    wanted = ", ".join(f'{name}="{value}"' for name, value in each.wanted.items())
    firing = recording.ask(f'ALERTS{{alertstate="firing", {wanted}}}')
    return max(float(moment) for one in firing for moment, _ in one["values"])


def _values(board: Board, chosen: Mapping[str, str]) -> dict[str, str]:
    """Each variable with its value: as chosen, else All, else its only one."""
    offered = {
        one["name"]: (one.get("allValue") or ".*") if one.get("includeAll") else str(one["query"])
        for one in board["templating"]["list"]
    }
    return {**offered, **chosen}


def _times(start: float, end: float) -> dict[str, str]:
    return {
        "__rate_interval": f"{4 * INTERVAL_SECONDS}s",
        "__interval": f"{INTERVAL_SECONDS}s",
        "__range": f"{end - start:.0f}s",
    }


def _listed(panel: Board) -> Board:
    """A list of alerts has no query, as Grafana asks its own rules: here it lists the recorded alerts."""
    if panel["type"] != "alertlist":
        return panel
    matchers = panel["options"]["alertInstanceLabelFilter"].strip("{}")
    expression = f'{{__name__=~"ALERTS|GRAFANA_ALERTS", alertstate="firing", {matchers}}}'
    return {**panel, "targets": [{"refId": "A", "expr": expression, "instant": True, "format": "table"}]}


def _answers(panel: Board, ask: Ask) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    for target in panel["targets"]:
        yield target["refId"], ask(target["expr"], bool(target.get("instant")) and not target.get("range"))


def _answer(recording: Loaded, query: str, end: float, *, instant: bool) -> list[dict[str, Any]]:
    """The series of a query, over the time range or at its end."""
    path, asked = "query", {"query": query, "time": f"{end}"}
    if not instant:
        span = {"start": f"{recording.start}", "end": f"{end}", "step": f"{INTERVAL_SECONDS}"}
        path, asked = "query_range", {"query": query, **span}
    try:
        data = get_json(f"{recording.url}/api/v1/{path}", asked)["data"]
    except urllib.error.HTTPError as refused:
        raise AssertionError(f"Prometheus refuses {query}: {refused.read().decode()}") from refused
    series: list[dict[str, Any]] = data["result"]
    return [{"metric": {}, "value": series}] if data["resultType"] == "scalar" else series


def _annotations(board: Board, ask: Ask) -> Iterator[dict[str, Any]]:
    """Each with the spans in which a series of it is there and not zero."""
    for each in board["annotations"]["list"]:
        if each.get("enable") and each.get("expr"):
            series = ask(each["expr"], False)
            moments = ([float(at) for at, value in one["values"] if float(value)] for one in series)
            spans = [span for one in moments for span in _spans(one)]
            yield {"name": each["name"], "color": each["iconColor"], "spans": spans}


def _spans(moments: Sequence[float]) -> Iterator[tuple[float, float]]:
    """Milliseconds in which samples follow each other without a gap."""
    starts = [
        at for at, moment in enumerate(moments) if not at or moment - moments[at - 1] > 1.5 * INTERVAL_SECONDS
    ]
    for start, after in zip(starts, [*starts[1:], len(moments)], strict=True):
        yield moments[start] * 1000, moments[after - 1] * 1000
