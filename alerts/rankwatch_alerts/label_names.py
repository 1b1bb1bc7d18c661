"""Other names of labels: where a Prometheus calls `cluster` something else, so do rules, routes and boards.

A name is only replaced where the grammar of PromQL has a label: in matchers, in lists after `by`, `on` and
the like, and in the functions that take labels as strings. Layout and comments stay, and so do variables of
Grafana, `%q` of templates and quotes of a shell, which no parser of PromQL reads.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from rankwatch.conventions.metrics import Label

_TOKEN = re.compile(
    r"""(?P<comment>\#[^\n]*)
    |(?P<string>"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'|`[^`]*`)
    |(?P<variable>\$\w+|\$\{[^}]*\})
    |(?P<number>[0-9][0-9A-Za-z_.]*)
    |(?P<name>[A-Za-z_:][A-Za-z0-9_:]*)
    |(?P<other>.)""",
    re.VERBOSE | re.DOTALL,
)
_GROUPINGS = frozenset({"by", "without"})
_LISTS = _GROUPINGS | {"on", "ignoring", "group_left", "group_right"}
_MATCHED = re.compile(r"\s*(=|!)")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
RESERVED = frozenset({"alertname", "alertstate", "severity", "job", "instance", "le"})
"""Labels that Prometheus or Alertmanager give a meaning."""


def wrong_names(names: Mapping[str, str]) -> bool:
    """Return True if a name is no label of rankwatch, is no name for a label, or would stand for two."""
    known = {str(each) for each in Label}
    others = (known - names.keys()) | RESERVED
    new = list(names.values())
    return (
        not names.keys() <= known - RESERVED
        or len(set(new)) != len(new)
        or any(not _NAME.fullmatch(each) or each.startswith("__") or each in others for each in new)
    )


def in_query(text: str, names: Mapping[str, str]) -> str:
    """Rename labels in PromQL, also with variables of Grafana, or in one of Grafana's `label_values(...)`."""
    return "".join(_translated(text, names)) if names else text


def _translated(text: str, names: Mapping[str, str]) -> Iterator[str]:
    opened: list[_Bracket] = []
    earlier = before = ""
    for token in _TOKEN.finditer(text):
        word, kind = token.group(), token.lastgroup
        inside = opened[-1] if opened else _Bracket("")
        if kind == "name" and inside.names_label(text, token.end()):
            yield names.get(word, word)
        elif kind == "string" and inside.quotes_label():
            yield word[0] + names.get(word[1:-1], word[1:-1]) + word[-1]
        else:
            yield word
        if word.isspace() or kind == "comment":
            continue
        if word in ("(", "{"):
            opened.append(_Bracket(word if word == "{" else before.lower(), earlier))
        elif word == ",":
            inside.argument += 1
        earlier, before = before, word
        if word in (")", "}") and opened and opened.pop().word in _GROUPINGS:
            before = inside.earlier  # count_values by (node) ("x", ...) is count_values("x", ...) by (node)


class _Bracket:
    """What stands in a bracket that is open: `{`, or the word before the parenthesis."""

    def __init__(self, word: str, earlier: str = "") -> None:
        self.word = word
        self.earlier = earlier
        """The word before that one."""
        self.argument = 0

    def names_label(self, text: str, end: int) -> bool:
        """Return True if a bare name that ends there is a label."""
        if self.word == "{":
            return bool(_MATCHED.match(text, end))
        if self.word == "label_values":
            return self.argument > 0 or text[end:].lstrip().startswith(")")
        return self.word in _LISTS

    def quotes_label(self) -> bool:
        """Return True if a string is a label."""
        match self.word:
            case "label_replace":
                return self.argument in (1, 3)
            case "label_join":
                return self.argument == 1 or self.argument > 2
            case "count_values":
                return self.argument == 0
            case _:
                return False


_OF_TEMPLATE = re.compile(
    r"(?<=printf `)(?P<query>[^`]*)(?=`)"
    r"|(?P<before>\$labels\.|\.(?:Common|Group)?Labels\.|\b(?:sortByLabel|label) \")(?P<label>\w+)"
)


def in_template(text: str, names: Mapping[str, str]) -> str:
    """Rename labels in a template of Prometheus or Alertmanager, and in the queries in it."""

    def translated(found: re.Match[str]) -> str:
        if query := found["query"]:
            return in_query(query, names)
        return found["before"] + names.get(found["label"], found["label"])

    return _OF_TEMPLATE.sub(translated, text) if names else text


_MATCHER = re.compile(r"\w+")


def in_routes(value: Any, names: Mapping[str, str], key: str = "") -> Any:
    """Rename labels in a configuration of Alertmanager: lists, matchers, and texts of notifications."""
    match value:
        case dict():
            return {each: in_routes(inner, names, each) for each, inner in value.items()}
        case list():
            return [in_routes(each, names, key) for each in value]
        case str() if key in ("group_by", "equal"):
            return names.get(value, value)
        case str() if key.endswith("matchers"):
            return _MATCHER.sub(lambda found: names.get(found[0], found[0]), value, count=1)
        case str():
            return in_template(value, names)
        case _:
            return value


_QUERY_OF_RUNBOOK = re.compile(r"(?<=\bask \")[^\"]*")


def in_runbook(text: str, names: Mapping[str, str]) -> str:
    """Rename labels in the queries of a page's commands."""
    return _QUERY_OF_RUNBOOK.sub(lambda found: in_query(found[0], names), text) if names else text
