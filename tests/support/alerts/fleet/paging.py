"""What people are notified of: alerts behind the inhibition, the routes and the groups of Alertmanager.

It does with `route` and `inhibit_rules` what Alertmanager does, but in the time of a simulated day.
Left out: silences, several Alertmanagers, `continue`, repeated notifications of what goes on as it was, and
hours of tickets. `tests/alerts/test_fleet_life.py` compares it with a real Alertmanager.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

from support.alerts.fleet.firing import Labels
from support.alerts.rule_test import seconds_in

_MATCHER = re.compile(r'\s*([a-zA-Z_]\w*)\s*(=~|!~|!=|=)\s*"?((?:[^"\\]|\\.)*)"?\s*')


class Notification(NamedTuple):
    """A group of alerts of which a receiver is told for the first time since it was resolved."""

    moment: float
    receiver: str
    group: Labels
    alerts: tuple[Labels, ...]
    """Those that fire, and are not inhibited."""


class Matcher(NamedTuple):
    """One condition on a label. A label that is missing is empty."""

    label: str
    operator: str
    value: str

    def holds(self, labels: Mapping[str, str]) -> bool:
        """True if the labels meet it."""
        found = labels.get(self.label, "")
        if self.operator in ("=", "!="):
            return (found == self.value) == (self.operator == "=")
        return (_pattern(self.value).fullmatch(found) is not None) == (self.operator == "=~")


@lru_cache(maxsize=1024)
def _pattern(text: str) -> re.Pattern[str]:
    return re.compile(text)


def _matchers(texts: Iterable[str]) -> tuple[Matcher, ...]:
    found = []
    for text in texts:
        matched = _MATCHER.fullmatch(text)
        assert matched is not None, text
        found.append(Matcher(*matched.groups()))
    return tuple(found)


class Inhibition(NamedTuple):
    """One rule of inhibition."""

    source: tuple[Matcher, ...]
    target: tuple[Matcher, ...]
    equal: tuple[str, ...]

    def is_source(self, labels: Mapping[str, str]) -> bool:
        """True if an alert with these labels may inhibit others."""
        return all(each.holds(labels) for each in self.source)

    def is_target(self, labels: Mapping[str, str]) -> bool:
        """True if an alert with these labels may be inhibited."""
        return all(each.holds(labels) for each in self.target)

    def key(self, labels: Mapping[str, str]) -> tuple[str, ...]:
        """What source and target must have in common."""
        return tuple(labels.get(each, "") for each in self.equal)


class Route(NamedTuple):
    """One route, with what it inherits."""

    receiver: str
    matchers: tuple[Matcher, ...]
    group_by: tuple[str, ...]
    wait: float
    interval: float
    routes: tuple[Route, ...]


@dataclass
class _Group:
    """A group of alerts of one route."""

    due: float
    alerts: set[Labels] = field(default_factory=set)
    told: set[Labels] = field(default_factory=set)
    """What the receiver was told of, and was not told to be resolved."""


def read_inhibitions(config: Mapping[str, Any]) -> list[Inhibition]:
    """The rules of inhibition of a configuration."""
    return [
        Inhibition(
            _matchers(rule.get("source_matchers", ())),
            _matchers(rule.get("target_matchers", ())),
            tuple(rule.get("equal", ())),
        )
        for rule in config.get("inhibit_rules", ())
    ]


def read_route(config: Mapping[str, Any], above: Route | None = None) -> Route:
    """The tree of routes from the `route` of a configuration."""
    base = above or Route("", (), (), 30.0, 300.0, ())
    own = Route(
        receiver=config.get("receiver", base.receiver),
        matchers=_matchers(config.get("matchers", ())),
        group_by=tuple(config.get("group_by", base.group_by)),
        wait=seconds_in(config["group_wait"]) if "group_wait" in config else base.wait,
        interval=seconds_in(config["group_interval"]) if "group_interval" in config else base.interval,
        routes=(),
    )
    return own._replace(routes=tuple(read_route(each, own) for each in config.get("routes", ())))


def route_of(labels: Mapping[str, str], route: Route) -> Route:
    """The deepest route that takes the alert: the first child that matches, at each level."""
    for each in route.routes:
        if all(matcher.holds(labels) for matcher in each.matchers):
            return route_of(labels, each)
    return route


def inhibited(alerts: Iterable[Labels], rules: Sequence[Inhibition]) -> set[Labels]:
    """Of the alerts that fire, those that another one holds back.

    An alert on both sides of a rule is not held back by another that is on both sides.
    """
    firing = [(each, dict(each)) for each in alerts]
    held: set[Labels] = set()
    for rule in rules:
        sources = [(each, labels) for each, labels in firing if rule.is_source(labels)]
        if not sources:
            continue
        both = {each for each, labels in sources if rule.is_target(labels)}
        keys = {rule.key(labels) for _, labels in sources}
        keys_of_one_side = {rule.key(labels) for each, labels in sources if each not in both}
        for each, labels in firing:
            if rule.is_target(labels) and rule.key(labels) in (keys_of_one_side if each in both else keys):
                held.add(each)
    return held


class Pager:
    """Alertmanager in the time of the day. It is asked at each moment in turn."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._root = read_route(config["route"])
        self._rules = read_inhibitions(config)
        self._groups: dict[tuple[Route, Labels], _Group] = {}
        self._routes: dict[Labels, tuple[Route, Labels]] = {}

    def at(self, moment: float, firing: set[Labels]) -> Iterator[Notification]:
        """Take the alerts that fire at a moment; yields what receivers are told of until the next one."""
        for alert in firing:
            key = self._key(alert)
            group = self._groups.setdefault(key, _Group(moment + key[0].wait))
            group.alerts.add(alert)
        held = inhibited(firing, self._rules)
        for key, group in list(self._groups.items()):
            if group.due <= moment:
                yield from self._flush(moment, key, group, firing, held)

    def _key(self, alert: Labels) -> tuple[Route, Labels]:
        if alert not in self._routes:
            labels = dict(alert)
            route = route_of(labels, self._root)
            names = sorted(labels) if "..." in route.group_by else route.group_by
            grouped = tuple((name, labels[name]) for name in names if name in labels)
            self._routes[alert] = (route, grouped)
        return self._routes[alert]

    def _flush(
        self, moment: float, key: tuple[Route, Labels], group: _Group, firing: set[Labels], held: set[Labels]
    ) -> Iterator[Notification]:
        route, labels = key
        group.due = moment + route.interval
        heard = (group.alerts & firing) - held
        if heard and not group.told:
            yield Notification(moment, route.receiver, labels, tuple(sorted(heard)))
        group.told = (group.told | heard) & firing if heard or not group.told & firing else group.told
        group.alerts &= firing
        if not group.alerts:
            del self._groups[key]
