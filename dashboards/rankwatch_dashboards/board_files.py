"""The boards as files: one YAML file for each, with PromQL as it runs.

`${...}` is what stands elsewhere, in Jinja's language: settings of the rules (`${loss_deviation / 2}`),
label matchers (`${RUN}`), the `texts` of the file or of shared.yaml, and `${firing(RUN)}`, `${suspects(RUN)}`
and the like of the modules of these names. A panel has the fields of `Panel`; with one query, `query` and
`legend`. A panel of another file is shown by `same_as` and its title, with what differs; one that Python
makes, by `computed`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
import yaml
from grafana_foundation_sdk.builders import dashboard

from rankwatch_alerts import HARDWARE_ALERTS, RuleConfig
from rankwatch_alerts.rules import duration
from rankwatch_dashboards import links, panels, words
from rankwatch_dashboards.alert_table import READS, firing_alerts
from rankwatch_dashboards.board import FirstScreen, Row, any_cluster, board, chosen, several, variables_of_run
from rankwatch_dashboards.firing import firing, named, selected
from rankwatch_dashboards.panels import Column, Drawing, Panel, Query
from rankwatch_dashboards.suspects import evidence, suspects

BOARDS = ("fleet", "on_call", "run_debug", "learning", "checkpoints_goodput", "hardware", "agents")
"""In the order of a reader who looks for what is wrong."""
_WHOLE = re.compile(r"\$\{([^{}]*)\}")
_COLOURS = {name: getattr(panels, name.upper()) for name in ("green", "yellow", "orange", "red", "purple")}
_MAPPINGS = {"none": panels.NONE, "severities": panels.SEVERITIES}
_LINKS = {
    "run": links.TO_RUN,
    "rank": links.TO_RANK,
    "checkpoints": links.TO_CHECKPOINTS,
    "node": links.TO_NODE,
    "gpu": links.TO_GPU,
    "tracker": links.TO_TRACKER,
}
_COMPUTED = {"firing_alerts": firing_alerts}

Document = Mapping[str, Any]


@cache
def document(name: str) -> Document:
    """A file of boards, or `shared`, as it is written."""
    found: Document = yaml.safe_load((Path(__file__).parent / "boards" / f"{name}.yaml").read_text())
    return found


def build_board(name: str, config: RuleConfig) -> dashboard.Dashboard:
    """Return the builder of a board, its thresholds those of the rules."""
    return _BoardFile(name, config).build()


class _BoardFile:
    """One file, with the names that its `${...}` may use."""

    def __init__(self, name: str, config: RuleConfig) -> None:
        self._document = document(name)
        self._config = config
        self._jinja = jinja2.Environment(
            variable_start_string="${",
            variable_end_string="}",
            block_start_string="<%",
            block_end_string="%>",
            comment_start_string="<#",
            comment_end_string="#>",
            undefined=jinja2.StrictUndefined,
            finalize=lambda value: f"{value:g}" if isinstance(value, float) else value,
            autoescape=False,  # PromQL and words, which no browser reads as HTML
        )
        names = ("CLUSTER", "RUN", "RANKS", "NODE", "GPU", "ON_ITS_NODES", "OURS")
        self._names = {
            **{each: getattr(config, each) for each in RuleConfig.__dataclass_fields__},
            **{each: getattr(panels, each) for each in names},
            "HARDWARE": named(HARDWARE_ALERTS),
            "READS": READS,
            **{each.__name__: each for each in (firing, selected, suspects, evidence, duration)},
        }
        for texts in (document("shared")["texts"], self._document.get("texts", {})):
            self._add_texts(texts)

    def _add_texts(self, texts: Mapping[str, str]) -> None:
        for name, text in texts.items():
            self._names[name] = self._filled(text)

    def _filled(self, value: Any) -> Any:
        """Texts with what their `${...}` stand for; one that is nothing else is a value of its own type."""
        match value:
            case str() if whole := _WHOLE.fullmatch(value):
                return self._jinja.compile_expression(whole[1], undefined_to_none=False)(self._names)
            case str() if "${" in value:
                return self._jinja.from_string(value).render(self._names)
            case list():
                return [self._filled(each) for each in value]
            case dict():
                return {key: self._filled(each) for key, each in value.items()}
        return value

    def build(self) -> dashboard.Dashboard:
        written = self._document
        screen = written["first_screen"]
        first, second, third = (self._panel(each) for each in screen["views"])
        return board(
            written["title"],
            written["uid"],
            written["description"],
            variables=tuple(self._variables()),
            events=self._filled(written["events"]),
            screen=FirstScreen(
                verdicts=tuple(self._panel(each) for each in screen["verdicts"]),
                main=self._panel(screen["main"]),
                views=(first, second, third),
            ),
            rows=tuple(
                Row(each["title"], tuple(map(self._panel, each["panels"])), each.get("no_data", ""))
                for each in written["rows"]
            ),
            config=self._config,
        )

    def _variables(self) -> Iterator[dashboard.QueryVariable]:
        if self._document["variables"] == "run and ranks":
            yield from variables_of_run()
            return
        for each in self._filled(self._document["variables"]):
            if "any_cluster" in each:
                yield any_cluster(each["any_cluster"])
            else:
                made = chosen(each["name"], each["label"], each["query"])
                yield several(made) if each.get("several") else made

    def _panel(self, written: Document) -> Panel:
        if same_as := written.get("same_as"):
            written = {**_found(same_as, written["title"]), **written}
            del written["same_as"]
        if computed := written.get("computed"):
            return _COMPUTED[computed](self._config, **self._filled(written["with"]))
        if texts := written.get("texts"):
            outer, self._names = self._names, dict(self._names)
            self._add_texts(texts)
            panel = self._panel({key: each for key, each in written.items() if key != "texts"})
            self._names = outer
            return panel
        fields = self._filled(dict(written))
        legend = fields.pop("legend", "")
        queries = fields.pop("queries", [fields.pop("query")] if "query" in fields else [])
        return Panel(**self._values(fields), queries=tuple(self._query(each, legend) for each in queries))

    def _query(self, written: str | Document, legend: str) -> Query:
        if isinstance(written, str):
            return Query(expression=written, legend=legend)
        steps = _steps(written.get("steps", ()))
        return Query(expression=written["query"], legend=written["legend"], steps=steps)

    def _values(self, fields: dict[str, Any]) -> dict[str, Any]:
        """The fields of a panel or a column with names turned into what they stand for."""
        turned: dict[str, Callable[[Any], Any]] = {
            "drawing": Drawing,
            "steps": _steps,
            "threshold": float,
            "mappings": _mappings,
            "words": lambda name: getattr(words, name.upper()) if isinstance(name, str) else name,
            "sorted_by": tuple,
            "link": self._link,
            "links": lambda names: tuple(map(self._link, names)),
            "columns": lambda columns: tuple(Column(**self._values(each)) for each in columns),
        }
        return {key: turned[key](each) if key in turned else each for key, each in fields.items()}

    def _link(self, name: str) -> links.Link:
        if name in _LINKS:
            return _LINKS[name]
        return links.opens(document(name)["uid"], self._document["links"][name])


def _found(board_name: str, title: str) -> dict[str, Any]:
    """A panel of another file, as it is written there."""
    return next(
        dict(panel)
        for row in document(board_name)["rows"]
        for panel in row["panels"]
        if panel.get("title") == title
    )


def _steps(written: list[Any]) -> panels.Steps:
    return tuple((value, _COLOURS[colour]) for value, colour in written)


def _mappings(written: str | list[Any]) -> panels.Mappings:
    if isinstance(written, str):
        return _MAPPINGS[written]
    return tuple((value, text, _COLOURS.get(colour, "")) for value, text, colour in written)
