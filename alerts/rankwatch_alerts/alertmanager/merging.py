"""Our parts in a configuration of Alertmanager of others, added as text, so that theirs stays as it is.

Each part stands first in its list, between two comments by which the next merge finds and replaces it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from copy import deepcopy
from io import StringIO
from typing import TYPE_CHECKING, Any, NamedTuple

from rankwatch.errors import SettingError
from rankwatch_alerts.alertmanager import TEMPLATES_FILE
from rankwatch_alerts.alertmanager.inhibition import PRODUCT
from rankwatch_alerts.delivery import in_alertmanager
from rankwatch_alerts.generation import yaml_text

if TYPE_CHECKING:
    import yaml

_BEGIN, _END = "# begin rankwatch: rankwatch generate --merge-into writes these lines anew", "# end rankwatch"
_MARK = re.compile(r"\s*# (begin|end) rankwatch\b")
_PLACES = {
    "routes": ("route", "routes"),
    "templates": ("templates",),
    "receivers": ("receivers",),
    "inhibit_rules": ("inhibit_rules",),
    "time_intervals": ("time_intervals",),
}
"""Where each list stands."""


class Merged(NamedTuple):
    """A configuration with our parts."""

    text: str
    comments_lost: bool
    """True if theirs had to be written anew, because it has lists or tables in braces."""


class _Edit(NamedTuple):
    """Text in place of characters."""

    start: int
    end: int
    text: str


def merged(text: str, ours: Mapping[str, list[Any]]) -> Merged:
    """The configuration with our parts in place of those of an earlier merge, if any. Needs PyYAML.

    Raises SettingError where it is no configuration, or has names of ours, or cannot be added to.
    """
    unix = text.replace("\r\n", "\n")
    if unix != text:
        if "\n" in text.replace("\r\n", ""):
            raise SettingError("could not merge: lines of the file end in two ways, with and without CR")
        result = merged(unix, ours)
        return result._replace(text=result.text.replace("\n", "\r\n"))
    theirs = _without_marked(text if text.endswith("\n") else f"{text}\n")
    document = _parsed(theirs)
    if _without_ours(document) != _without_ours(_parsed(text)):
        raise SettingError("could not merge: something of others stands between our two comments")
    _refuse_clashes(document, ours)
    lost = not _in_blocks(theirs)
    if lost:
        theirs = yaml_text(document)
    listed = document.get("templates") or ()
    parts = {
        name: part for name, part in ours.items() if part and not (name == "templates" and part[0] in listed)
    }
    result = _edited(theirs, _edits(theirs, parts))
    if _parsed(result) != _with_parts(document, parts):
        raise SettingError("could not merge: the file has a form that nothing can be added to by lines")
    return Merged(result, lost)


def _parsed(text: str) -> dict[str, Any]:
    import yaml

    try:
        document = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise SettingError(f"could not merge: the file is no YAML: {' '.join(str(error).split())}") from None
    route = document.get("route") if isinstance(document, dict) else None
    if not isinstance(route, dict) or not isinstance(document.get("receivers"), list):
        raise SettingError("could not merge: the file is no configuration of Alertmanager")
    return document  # type: ignore[no-any-return]


def _without_marked(text: str) -> str:
    """Without the lines from each mark to the next. Raises SettingError for a mark without the other."""
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
    """What a configuration has beside our parts, which are known by their names, and not by the marks."""
    kept = {key: _others(each) if isinstance(each, list) else each for key, each in document.items()}
    kept["route"] = {**document["route"], "routes": _others(document["route"].get("routes") or ())}
    kept["route"] = {key: each for key, each in kept["route"].items() if each}
    return {key: each for key, each in kept.items() if each}


def _others(entries: Iterable[Any]) -> list[Any]:
    """Those of a list that are not ours: neither name nor first matcher is, nor is it the file of texts."""

    def is_ours(entry: Any) -> bool:
        if not isinstance(entry, dict):
            return bool(entry == TEMPLATES_FILE)
        matchers = [PRODUCT in (entry.get(key) or ()) for key in ("matchers", "source_matchers")]
        return any(matchers) or str(entry.get("name")).startswith(in_alertmanager(""))

    return [each for each in entries if not is_ours(each)]


def _refuse_clashes(document: Mapping[str, Any], ours: Mapping[str, list[Any]]) -> None:
    """Alertmanager takes each name of a receiver and of a time interval once."""
    for what, lists in (
        ("receiver", ("receivers",)),
        ("time interval", ("time_intervals", "mute_time_intervals")),
    ):
        taken = {str(each.get("name")) for key in lists for each in document.get(key) or ()}
        wanted = {each["name"] for each in ours.get(lists[0], ())}
        if clash := sorted(taken & wanted):
            raise SettingError(f"could not merge: the file has a {what} {clash[0]} of its own")


def _in_blocks(text: str) -> bool:
    """True if what we add to is written by lines, and not in braces or brackets, unless these are empty. The
    list of templates may be in brackets: it is one line."""
    import yaml

    root = yaml.compose(text)
    found = [pair for path in _PLACES.values() for pair in _found(root, path)]
    nodes = [root, *(node for key, node in found if key.value != "templates")]
    return not any(isinstance(each, yaml.CollectionNode) and each.flow_style and each.value for each in nodes)


def _found(root: Any, path: tuple[str, ...]) -> Iterator[tuple[yaml.Node, yaml.Node]]:
    """Key and value of each step of the path, as far as it is there."""
    for name in path:
        pair = next((each for each in root.value if each[0].value == name), None)
        if pair is None:
            return
        yield pair
        root = pair[1]


def _edits(text: str, parts: Mapping[str, list[Any]]) -> Iterator[_Edit]:
    import yaml

    root: Any = yaml.compose(text)
    for name, part in parts.items():
        path = _PLACES[name]
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
            yield _Edit(below, below, _block(part, value.start_mark.column))


def _block(part: list[Any], column: int, key: str = "") -> str:
    lines = [_BEGIN, *([f"{key}:"] if key else []), *yaml_text(part).splitlines(), _END]
    return "".join(f"{' ' * column}{each}\n" if each else "\n" for each in lines)


def _edited(text: str, edits: Iterator[_Edit]) -> str:
    for start, end, new in sorted(edits, reverse=True):
        text = text[:start] + new + text[end:]
    return text


def _with_parts(document: Mapping[str, Any], parts: Mapping[str, list[Any]]) -> dict[str, Any]:
    """What the result must say."""
    expected = deepcopy(dict(document))
    for name, part in parts.items():
        *above, last = _PLACES[name]
        table = expected[above[0]] if above else expected
        table[last] = [*part, *(table.get(last) or ())]
    return expected
