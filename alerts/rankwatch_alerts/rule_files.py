"""The rules as files: PromQL as it runs, with `${...}` where a setting or a text that is looked up stands.

`${stall_floor_seconds}` is a setting as a number (`60`), `${stall_floor}` the same as a duration (`1m`), and
`${2 * stall_floor}` is arithmetic on it. In annotations a name may also be one below `lookups:` of a file: a
query that Prometheus makes when the alert fires, with `"$run"` for a label of the alert. A rule with
`by_class` is joined with `or` for each class of a setting by class: `${run_class}` is a regular expression,
`${value}` its value. An annotation may be a map, with a text for each value of the label that `by` names.
`reasons` are those of a rule that neither its labels nor its own expression name.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any

import yaml

from rankwatch.errors import SettingError
from rankwatch_alerts.adjustments import adjusted, links, reasons_of, refuse_unknown
from rankwatch_alerts.config import RuleConfig
from rankwatch_alerts.config.thresholds import DEFAULT_CLASS
from rankwatch_alerts.rules import (
    PRODUCT,
    RUN_DEBUG_UID,
    AlertRule,
    RecordingRule,
    RuleGroup,
    Severity,
    duration,
    reason_of,
    shipped_rules,
)

RULE_FILES = (
    *("telemetry", "runs", "hardware", "stalls", "slow", "learning"),
    *("goodput", "checkpoints", "objectives"),
)
"""Files of rules, each behind those whose series it reads."""
NO_RULES = ("slis", "inhibitions")
"""Files beside them that `slis` and `alertmanager` read."""
_NEEDED = {"record": ("expr", "labels", "help"), "alert": ("expr", "labels", "annotations")}

Document = Mapping[str, Any]


class RuleFileError(SettingError):
    """A file of rules that cannot be rendered: names the rule and what is wrong with it."""


@cache
def rule_documents(directory: str = "") -> Mapping[str, Document]:
    """Return the files of rules and what they share, by name without suffix.

    A directory of the user's own may hold some of them, which take the place of those that are shipped, and
    further ones. Raises RuleFileError for what is no YAML or no file of rules.
    """
    named = (*RULE_FILES, "lookups", *_own_files(directory))
    return {name: _checked(name, document(name, directory)) for name in named if name not in NO_RULES}


@cache
def document(name: str, directory: str = "") -> Any:
    """Return what a file holds, of the user's own directory if it is there. Raises RuleFileError."""
    file = _own_files(directory).get(name) or shipped_rules() / f"{name}.yaml"
    try:
        return yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise RuleFileError(f"could not read {file}: {' '.join(str(error).split())}") from error


@cache
def _own_files(directory: str) -> Mapping[str, Path]:
    own = sorted(Path(directory).iterdir()) if directory else []
    if wrong := next((each for each in own if each.suffix == ".yml"), None):
        raise RuleFileError(f"could not use {wrong}: files in rules_directory end in .yaml")
    return {each.stem: each for each in own if each.suffix == ".yaml"}


def _checked(name: str, document: Any) -> Document:
    """Return the document, if its groups and rules have what they need. Raises RuleFileError."""
    with _readable(name):
        _refuse_without(document, "a file of rules")
        _refuse_without(document.get("lookups") or {}, "lookups")
        for group in document.get("groups") or ():
            _refuse_without(group, "a group", "name", "interval", "rules")
            kind = "alert" if "alert" in group["rules"][0] else "record"
            for rule in group["rules"]:
                _refuse_without(rule, f"a rule of group {group['name']}", kind)
                _refuse_without(rule, rule[kind], *_NEEDED[kind])
                if kind == "alert":
                    _refuse_wrong_labels(rule["alert"], rule["labels"])
    return document  # type: ignore[no-any-return]


def _refuse_without(table: Any, what: str, *needed: str) -> None:
    if not isinstance(table, dict):
        raise RuleFileError(f"{what} must be a table")
    for each in needed:
        if each not in table or (not table[each] and each != "labels"):
            raise RuleFileError(f"{what} has no {each}")


def _refuse_wrong_labels(alert: str, labels: Any) -> None:
    _refuse_without(labels, f"labels of {alert}", "owner")
    if wrong := [name for name, text in labels.items() if not isinstance(text, str)]:
        raise RuleFileError(f"label {wrong[0]} of {alert} must be text")
    if labels.get("severity", Severity.INFO) not in tuple(Severity):
        known = ", ".join(Severity)
        raise RuleFileError(f"severity {labels['severity']!r} of {alert} is none of {known}")


@contextmanager
def _readable(name: str) -> Iterator[None]:
    """Say in which file something is wrong."""
    try:
        yield
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        raise RuleFileError(f"could not read the rules of {name}.yaml: {error!r}") from error
    except RuleFileError as error:
        raise RuleFileError(f"could not use {name}.yaml: {error}") from error


def recording_groups(config: RuleConfig) -> tuple[RuleGroup, ...]:
    """Return the groups of recording rules. Raises RuleFileError."""
    return tuple(_groups(config, "record"))


def alert_groups(config: RuleConfig) -> tuple[RuleGroup, ...]:
    """Return the groups of alerting rules. Raises RuleFileError; FieldError for a setting that changes
    none."""
    refuse_unknown(written_alerts(config.rules_directory), config)
    return tuple(_groups(config, "alert"))


def written_alerts(directory: str = "") -> list[Document]:
    """Return all alerting rules as the files have them, before settings change them. Raises RuleFileError."""
    documents = rule_documents(directory).values()
    groups = [group for document in documents for group in document.get("groups") or ()]
    return [rule for group in groups for rule in group["rules"] if "alert" in rule]


def recording_rules(config: RuleConfig) -> tuple[RecordingRule, ...]:
    """Return all recording rules. Raises RuleFileError."""
    rules = (rule for group in recording_groups(config) for rule in group.rules)
    return tuple(each for each in rules if isinstance(each, RecordingRule))


def alert_rules(config: RuleConfig) -> tuple[AlertRule, ...]:
    """Return all alerting rules. Raises RuleFileError."""
    rules = (rule for group in alert_groups(config) for rule in group.rules)
    return tuple(each for each in rules if isinstance(each, AlertRule))


def _groups(config: RuleConfig, kind: str) -> Iterator[RuleGroup]:
    renderer = _Renderer(config)
    render = renderer.recording if kind == "record" else renderer.alerting
    wanted = partial(adjusted, config=config) if kind == "alert" else tuple
    for name, document in rule_documents(config.rules_directory).items():
        with _readable(name):
            for group in document.get("groups") or ():
                if kind in group["rules"][0]:
                    yield RuleGroup(
                        name=group["name"],
                        interval_seconds=renderer.seconds(group["interval"]),
                        rules=tuple(render(each) for each in wanted(group["rules"])),
                        of_fleet=group.get("server", document.get("server")) == "fleet",
                    )


class _Renderer:
    """Writes rules out with the settings of one configuration."""

    def __init__(self, config: RuleConfig) -> None:
        derived = {name for name in dir(type(config)) if isinstance(getattr(type(config), name), property)}
        self._values = {**vars(config), **{name: getattr(config, name) for name in derived}}
        files = rule_documents(config.rules_directory).values()
        self._lookups = {name: each for file in files for name, each in file.get("lookups", {}).items()}
        self._written: dict[str, str] = {}
        self._links = partial(links, runbooks=config.runbook_base_url, dashboards=config.dashboard_base_url)

    def recording(self, rule: Document) -> RecordingRule:
        """Return a recording rule."""
        with _named(rule["record"]):
            return RecordingRule(
                record=rule["record"],
                expression=self._expression(rule),
                labels=tuple(rule["labels"]),
                help=rule["help"],
            )

    def alerting(self, rule: Document) -> AlertRule:
        """Return an alerting rule."""
        labels = rule["labels"]
        reason = reason_of(labels)
        with _named(f"{rule['alert']} {reason}".rstrip()):
            described = rule["annotations"]["description"]
            if isinstance(described, str):
                described = {reason: described}
            acts = {key: _FIRST_ACT.search(text) for key, text in described.items()}
            texts = {name: self._text_of(rule, text) for name, text in rule["annotations"].items()}
            board = rule.get("dashboard", _BOARD_OF_RUN)
            return AlertRule(
                alert=rule["alert"],
                expression=self._expression(rule),
                for_seconds=self.seconds(rule.get("for", 0)),
                keep_firing_seconds=self.seconds(rule.get("keep_firing_for", "${keep_firing}")),
                labels={**labels, "product": PRODUCT},
                reasons=reasons_of(rule) or ("",),
                first_acts={key: act[1][0].upper() + act[1][1:] for key, act in acts.items() if act},
                annotations={**texts, **self._links(rule["alert"], _opened_on(board))},
            )

    def seconds(self, text: str | float) -> float:
        """Return the time of `${name}`, or a number of seconds."""
        found = _PLACE.fullmatch(text) if isinstance(text, str) else None
        seconds = _evaluated(found[1], self._values)[0] if found else text
        _duration(str(text), seconds)
        return float(seconds)

    def _expression(self, rule: Document) -> str:
        expression: str = rule["expr"]
        if "by_class" not in rule:
            return fill(expression, self._values)
        by_class: Mapping[str, float] = self._values[rule["by_class"]]
        classes = {_quoted(each): value for each, value in by_class.items() if each != DEFAULT_CLASS}
        return "\nor\n".join(
            fill(expression.rstrip(), {**self._values, "run_class": run_class, "value": value})
            for run_class, value in {**classes, ".*": by_class[DEFAULT_CLASS]}.items()
        )

    def _text_of(self, rule: Document, text: str | Mapping[str, str]) -> str:
        """Return an annotation, of which there may be one for each value of the label that `by` names."""
        if isinstance(text, str):
            return _FIRST_ACT.sub(r"\1", self._annotation(text))
        label = rule["by"]
        branches = (
            f'{{{{ {"else " if number else ""}if eq $labels.{label} "{value}" }}}}{self._text_of(rule, each)}'
            for number, (value, each) in enumerate(text.items())
        )
        return "".join(branches) + "{{ end }}"

    def _annotation(self, text: str) -> str:
        """Return the text with settings and what is looked up written out."""
        return _PLACE.sub(lambda found: self._looked_up(found[1]), text)

    def _looked_up(self, name: str) -> str:
        if name not in self._written:
            known = name in self._lookups
            self._written[name] = self._lookup(self._lookups[name]) if known else _text(name, self._values)
        return self._written[name]

    def _lookup(self, lookup: Document) -> str:
        """Return a template that queries when the alert fires. People read it: its query must bound lists."""
        query = fill(lookup["query"], self._values).replace("%", "%%")
        labels = "".join(f" $labels.{each}" for each in _OF_ALERT.findall(query))
        by = f' | sortByLabel "{lookup["by"]}"' if "by" in lookup else ""
        if "list" in lookup:
            item = self._annotation(lookup["list"])
            if not by and "$series.Value" not in item:
                raise RuleFileError(f"a list that shows no value needs `by`: {item}")
            shown = (
                f"{{{{ range $index, $series := . }}}}{{{{ if $index }}}}, {{{{ end }}}}{item}{{{{ end }}}}"
            )
        else:
            shown = _SHOWN.get(lookup["show"]) or self._annotation(lookup["show"])
        return (
            f"{{{{ with printf `{_OF_ALERT.sub('%q', query)}`{labels} | query{by} }}}}{shown}"
            f"{{{{ else }}}}{self._annotation(lookup['none'])}{{{{ end }}}}"
        )


@contextmanager
def _named(rule: str) -> Iterator[None]:
    """Say in which rule something is wrong."""
    try:
        yield
    except KeyError as error:
        raise RuleFileError(f"could not render {rule}: {error.args[0]} is missing") from error
    except RuleFileError as error:
        raise RuleFileError(f"could not render {rule}: {error}") from error


_FIRST_ACT = re.compile(r"\[\[(.+?)\]\]")
"""Mark of what to do first in a description: "[[Check the disk]], and keep the last checkpoint."."""
_BOARD_OF_RUN = f"{RUN_DEBUG_UID}?cluster&run"
_OF_ALERT = re.compile(r'"\$(\w+)"')
_SHOWN = {
    name: f"{{{{ . | first | value | {how} }}}}"
    for name, how in {
        "number": 'printf "%.0f"',
        "tenths": 'printf "%.1f"',
        "ratio": 'printf "%.2f"',
        "percent": "humanizePercentage",
        "duration": "humanizeDuration",
        "time": "humanizeTimestamp",
    }.items()
}
"""How one number is shown."""


def _opened_on(board: str) -> str:
    """Return a board whose variables have the values of the alert's labels, from `uid?label&label`."""
    uid, _, labels = board.partition("?")
    chosen = "&".join(f"var-{each}={{{{ $labels.{each} | urlquery }}}}" for each in labels.split("&") if each)
    return f"{uid}?{chosen}" if chosen else uid


def _quoted(run_class: str) -> str:
    """Return a class as a regular expression in a string of PromQL."""
    return re.sub(r"[.+]", r"[\g<0>]", run_class)


_PLACE = re.compile(r"\$\{([^}]*)\}")
_OPERATORS: Mapping[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
}


def fill(text: str, values: Mapping[str, Any]) -> str:
    """Return the text with its `${...}` written out. Raises RuleFileError for a name that no setting has."""
    return _PLACE.sub(lambda found: _text(found[1], values), text)


def _text(source: str, values: Mapping[str, Any]) -> str:
    value, is_duration = _evaluated(source, values)
    if is_duration:
        return _duration(f"${{{source}}}", value)
    return f"{value:.10g}".replace("inf", "+Inf") if isinstance(value, int | float) else str(value)


def _duration(text: str, seconds: Any) -> str:
    try:
        return duration(seconds)
    except (TypeError, ValueError, OverflowError) as error:
        raise RuleFileError(
            f"{text} gives {seconds!r}, which is no number of seconds from 0.001 on"
        ) from error


def _evaluated(source: str, values: Mapping[str, Any]) -> tuple[Any, bool]:
    """Return the value, and whether it is a duration: a name without its `_seconds` makes it one."""
    is_duration = False

    def value(node: ast.expr) -> Any:
        nonlocal is_duration
        match node:
            case ast.Constant(value=int() | float() as number):
                return number
            case ast.Name(id=name) if name in values:
                return values[name]
            case ast.Name(id=name) if f"{name}_seconds" in values:
                is_duration = True
                return values[f"{name}_seconds"]
            case ast.Call(func=ast.Name(id="max"), args=[_, _, *_] as several):
                return max(map(value, several))
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
                return _OPERATORS[type(op)](value(left), value(right))
            case _:
                raise RuleFileError(f"${{{source}}} is no setting or sum of settings")

    try:
        return value(ast.parse(source.strip(), mode="eval").body), is_duration
    except (SyntaxError, TypeError, ArithmeticError) as error:
        raise RuleFileError(f"${{{source}}} is no setting or sum of settings") from error
