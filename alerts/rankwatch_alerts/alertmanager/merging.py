"""Our parts in a configuration of Alertmanager of others, added as text, so that theirs stays as it is.

Each part stands first in its list, between two comments by which the next merge finds and replaces it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from copy import deepcopy
from io import StringIO
from typing import Any, NamedTuple

import yaml

from rankwatch.errors import SettingError
from rankwatch_alerts.alertmanager import PRODUCT, TEMPLATES_FILE, fragments, that_take_ours
from rankwatch_alerts.config import RuleConfig
from rankwatch_alerts.delivery import BY_RECEIVER, PAGE, TICKET, in_alertmanager, lacks_slack_url
from rankwatch_alerts.generation import yaml_text

_BEGIN, _END = "# begin rankwatch: rankwatch generate --merge-into writes these lines anew", "# end rankwatch"
_MARK = re.compile(r"\s*# (begin|end) rankwatch\b")
_ITEM = re.compile(r"^( *)-", re.MULTILINE)
_LISTS = ("receivers", "time_intervals", "mute_time_intervals", "inhibit_rules")
"""Lists of tables."""
_OLD_MATCHERS = ("source_match", "source_match_re", "target_match", "target_match_re")


class Merged(NamedTuple):
    """A configuration with our parts."""

    text: str
    notes: tuple[str, ...]
    """Sentences on what whoever asked for it should know."""


class _Edit(NamedTuple):
    """Text in place of characters."""

    start: int
    end: int
    text: str


def merged(text: str, config: RuleConfig) -> Merged:
    """Return the configuration with our parts in place of those of an earlier merge, if any.

    Raises SettingError where it is no configuration, or has names of ours, or cannot be added to.
    """
    if "\r\n" not in text:
        return _merged(text, config)
    if "\n" in text.replace("\r\n", ""):
        raise SettingError("could not merge: lines of the file end in two ways, with and without CR")
    result = _merged(text.replace("\r\n", "\n"), config)
    return result._replace(text=result.text.replace("\n", "\r\n"))


def _merged(text: str, config: RuleConfig) -> Merged:
    theirs = _without_marked(text if text.endswith("\n") else f"{text}\n")
    document = _parsed(theirs)
    if _without_ours(document) != _without_ours(_parsed(text)):
        raise SettingError("could not merge: something of others stands between our two comments")
    of_all = document.get("global") or {}
    if lacks_slack_url(config) and not {"slack_api_url", "slack_api_url_file"} & of_all.keys():
        raise SettingError(
            "could not merge: channels of Slack need slack_api_url_file, here or in its global"
        )
    ours = fragments(config, theirs=of_all)
    _refuse_clashes(document, ours)
    in_brackets = _in_brackets(theirs, ours)
    if in_brackets:
        theirs = yaml_text(document)
    listed = document.get("templates") or ()
    parts = {
        name: part for name, part in ours.items() if part and not (name == "templates" and part[0] in listed)
    }
    result_text = _edited(theirs, _edits(theirs, parts))
    if _loaded(result_text) != _with_parts(document, parts):
        raise SettingError(f"could not merge: {_why_not(theirs)}")
    return Merged(result_text, tuple(_notes(result_text, ours, config, in_brackets)))


def _notes(result: str, ours: Mapping[str, list[Any]], config: RuleConfig, in_brackets: str) -> Iterator[str]:
    if in_brackets:
        yield f"{in_brackets} stands in brackets, so all is written anew: comments and layout are lost"
    kinds = tuple(map(in_alertmanager, (PAGE, TICKET)))
    empty = [each["name"] for each in ours["receivers"] if each["name"].startswith(kinds) and len(each) == 1]
    if empty:
        yield f"nobody hears of what goes to {', '.join(empty)}: set one of {', '.join(BY_RECEIVER)}"
    ((_, listed),) = _found(yaml.compose(result), ("inhibit_rules",))
    lines = (each.start_mark.line + 1 for each in listed.value)
    numbered = list(zip(lines, yaml.safe_load(result)["inhibit_rules"], strict=True))
    yield from that_take_ours(numbered[len(ours["inhibit_rules"]) :], config)


def _loaded(text: str) -> Any:
    """Return the document, or None if it is no YAML."""
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        return None


def _why_not(text: str) -> str:
    for each in yaml.scan(text):
        if isinstance(each, yaml.AnchorToken | yaml.AliasToken):
            where = f"line {each.start_mark.line + 1}: write out what & and * stand for"
            return f"nothing can be added to what has an anchor or alias, as in {where}"
    return "the file has a form that nothing can be added to by lines"


def _parsed(text: str) -> dict[str, Any]:
    try:
        document = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise SettingError(f"could not merge: the file is no YAML: {' '.join(str(error).split())}") from None
    if not isinstance(document, dict):
        raise SettingError("could not merge: the file is no configuration of Alertmanager")
    for key, kind, what in (("route", dict, "table"), ("receivers", list, "list")):
        if not isinstance(document.get(key), kind):
            raise SettingError(f"could not merge: the file has no {what} {key!r}, as Alertmanager wants it")
    _refuse_wrong_forms(document)
    return document


def _refuse_wrong_forms(document: Mapping[str, Any]) -> None:
    """Refuse what Alertmanager would refuse, too. Raises SettingError."""
    route = document["route"]
    lists = {key: document.get(key) or [] for key in _LISTS} | {"routes": route.get("routes") or []}
    wrong = [key for key, listed in lists.items() if not _all(listed, dict)]
    wrong += ["global"] * (not isinstance(document.get("global") or {}, dict))
    for entry in () if wrong else (*lists["inhibit_rules"], *lists["routes"]):
        wrong += [
            key for key, each in entry.items() if key.endswith("matchers") and not _all(each or [], str)
        ]
        wrong += [key for key in _OLD_MATCHERS if not isinstance(entry.get(key) or {}, dict)]
    if wrong:
        raise SettingError(f"could not merge: {wrong[0]} has a form that Alertmanager does not take")


def _all(listed: Any, kind: type) -> bool:
    return isinstance(listed, list) and all(isinstance(each, kind) for each in listed)


def _without_marked(text: str) -> str:
    """Leave out the lines from each mark to the next. Raises SettingError for a mark without the other."""
    kept, opened = [], 0
    for number, line in enumerate(StringIO(text), 1):
        mark = _MARK.match(line)
        if mark and (mark[1] == "begin") == bool(opened):
            raise _half(opened or number)
        if mark:
            opened = 0 if opened else number
        elif not opened:
            kept.append(line)
    if opened:
        raise _half(opened)
    return "".join(kept)


def _half(line: int) -> SettingError:
    return SettingError(f"could not merge: the comment in line {line} has lost the other one of its pair")


def _without_ours(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a configuration has beside our parts, which are known by their names, not by the marks."""
    kept = {key: _others(each) if isinstance(each, list) else each for key, each in document.items()}
    route = {**document["route"], "routes": _others(document["route"].get("routes") or ())}
    kept["route"] = {key: each for key, each in route.items() if each}
    return {key: each for key, each in kept.items() if each}


def _others(entries: Iterable[Any]) -> list[Any]:
    """Return entries that are not ours: neither name nor first matcher is, nor is it the file of texts."""

    def is_ours(entry: Any) -> bool:
        if not isinstance(entry, dict):
            return bool(entry == TEMPLATES_FILE)
        matchers = [PRODUCT in (entry.get(key) or ()) for key in ("matchers", "source_matchers")]
        return any(matchers) or str(entry.get("name")).startswith(in_alertmanager(""))

    return [each for each in entries if not is_ours(each)]


def _refuse_clashes(document: Mapping[str, Any], ours: Mapping[str, list[Any]]) -> None:
    """Refuse names that are taken: Alertmanager takes each name of a receiver and of a time interval once."""
    for what, lists in (
        ("receiver", ("receivers",)),
        ("time interval", ("time_intervals", "mute_time_intervals")),
    ):
        taken = {str(each.get("name")) for key in lists for each in document.get(key) or ()}
        wanted = {each["name"] for each in ours.get(lists[0], ())}
        if clash := sorted(taken & wanted):
            raise SettingError(f"could not merge: the file has a {what} {clash[0]} of its own")


def _in_brackets(text: str, ours: Iterable[str]) -> str:
    """Return the key of what we add to that is in braces or brackets, not in lines, unless these are empty.
    The list of templates may be in brackets: it is one line."""
    root: Any = yaml.compose(text)
    found = [(key.value, node) for name in ours for key, node in _found(root, _place(name))]
    nodes = [("the file", root), *(pair for pair in found if pair[0] != "templates")]
    return next((key for key, each in nodes if each.value and getattr(each, "flow_style", False)), "")


def _place(name: str) -> tuple[str, ...]:
    """Return the path at which a list stands."""
    return ("route", name) if name == "routes" else (name,)


def _found(root: Any, path: tuple[str, ...]) -> Iterator[tuple[yaml.Node, yaml.Node]]:
    """Yield key and value of each step of the path, as far as it is there."""
    for name in path:
        pair = next((each for each in root.value if each[0].value == name), None)
        if pair is None:
            return
        yield pair
        root = pair[1]


def _edits(text: str, parts: Mapping[str, list[Any]]) -> Iterator[_Edit]:
    root: Any = yaml.compose(text)
    for name, part in parts.items():
        path = _place(name)
        found = tuple(_found(root, path))
        if not found:
            yield _Edit(len(text), len(text), _block(part, root.start_mark.column, name))
            continue
        key, value = found[-1]
        below = text.index("\n", key.end_mark.index) + 1
        if len(found) < len(path):  # a route without routes
            yield _Edit(below, below, _block(part, value.start_mark.column, name))
        elif not isinstance(value, yaml.SequenceNode) or not value.value:
            yield _Edit(below, below, _block(part, key.start_mark.column))
            if value.start_mark.line == key.start_mark.line:
                yield _Edit(key.end_mark.index + 1, value.end_mark.index, "")
        elif value.flow_style:
            yield _Edit(value.start_mark.index + 1, value.start_mark.index + 1, f"{part[0]}, ")
        else:
            first = _ITEM.search(text, below)
            yield _Edit(below, below, _block(part, len(first[1]) if first else value.start_mark.column))


def _block(part: list[Any], column: int, key: str = "") -> str:
    lines = [_BEGIN, *([f"{key}:"] if key else []), *yaml_text(part).splitlines(), _END]
    return "".join(f"{' ' * column}{each}\n" if each else "\n" for each in lines)


def _edited(text: str, edits: Iterator[_Edit]) -> str:
    for start, end, new in sorted(edits, reverse=True):
        text = text[:start] + new + text[end:]
    return text


def _with_parts(document: Mapping[str, Any], parts: Mapping[str, list[Any]]) -> dict[str, Any]:
    """Return what the result must say."""
    expected = deepcopy(dict(document))
    for name, part in parts.items():
        *above, last = _place(name)
        table = expected[above[0]] if above else expected
        table[last] = [*part, *(table.get(last) or ())]
    return expected
