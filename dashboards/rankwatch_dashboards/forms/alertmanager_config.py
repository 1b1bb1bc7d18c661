"""Our part of Alertmanager as an AlertmanagerConfig, the object by which the Prometheus operator takes it.

It can name no file: secrets come from one Secret, and the texts of notifications stand in it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

from rankwatch_alerts import RuleConfig
from rankwatch_alerts.alertmanager import TEMPLATES, fragments
from rankwatch_alerts.alertmanager.inhibition import MATCHER
from rankwatch_alerts.label_names import in_template

_NAMES = {
    "source_matchers": "sourceMatch",
    "target_matchers": "targetMatch",
    "api_url_file": "apiURL",
    "routing_key_file": "routingKey",
    "auth_password_file": "authPassword",
    "client_url": "clientURL",
    "links": "pagerDutyLinkConfigs",
    "require_tls": "requireTLS",
    "pagerduty_configs": "pagerdutyConfigs",
}
"""Names of fields that are not only spelt otherwise."""
_PAIRS = ("details", "headers")
"""Tables that are lists of `key` and `value`."""
_DEFINED = re.compile(r'\{\{ define "([\w.]+)" (-?)\}\}(.*?)(?=\{\{/\*|\{\{ define|\Z)', re.DOTALL)
_ENDED = re.compile(r"(?:\s*\{\{-|\{\{) end \}\}\s*\Z")
_USED = re.compile(r'\{\{(-?) ?template "([\w.]+)" ([\w.]+|\([^()]+\)) ?(-?)\}\}')


def alertmanager_config_object(config: RuleConfig) -> dict[str, Any]:
    """The object. Tickets go out at all hours where the settings have a time zone, of which it knows none."""
    ours = fragments(config)
    parts = {key: _converted(key, part, config) for key, part in ours.items()}
    in_hours = config.ticket_time_zone in ("UTC", "Etc/UTC")
    (route,) = parts["routes"]
    spec = {"route": route if in_hours else _at_all_hours(route), "inhibitRules": parts["inhibit_rules"]}
    if in_hours and parts["time_intervals"]:
        spec["muteTimeIntervals"] = parts["time_intervals"]
    return {
        "apiVersion": "monitoring.coreos.com/v1alpha1",
        "kind": "AlertmanagerConfig",
        "metadata": {
            "name": "rankwatch",
            "labels": {"app.kubernetes.io/name": "rankwatch", **config.prometheus_rule_labels},
        },
        "spec": {**spec, "receivers": parts["receivers"]},
    }


def _converted(key: str, value: Any, config: RuleConfig) -> Any:
    """A part of a configuration in the words of the object."""
    match value:
        case list() if key.endswith("matchers"):
            return [_matcher(each) for each in value]
        case list():
            return [_converted(key, each, config) for each in value]
        case dict() if key in _PAIRS:
            return [{"key": name, "value": whole_text(text, config)} for name, text in value.items() if text]
        case dict() if key == "links":
            return {"href": whole_text(value["href"], config), "alt": value["text"]}
        case dict() if key == "times":
            return {"startTime": value["start_time"], "endTime": value["end_time"]}
        case dict():
            named = {name: each for name, each in value.items() if name != "location"}
            return {_name(name): _converted(name, each, config) for name, each in named.items()}
        case str() if key.endswith("_file"):
            return {"name": config.notification_secret, "key": PurePosixPath(value).name}
        case str():
            return whole_text(value, config)
        case _:
            return value


def _name(name: str) -> str:
    return _NAMES.get(name) or re.sub(r"_(\w)", lambda found: found[1].upper(), name)


def _matcher(text: str) -> dict[str, str]:
    name, kind, value = MATCHER.fullmatch(text).groups()  # type: ignore[union-attr]
    return {"name": name, "value": value, "matchType": kind}


def _at_all_hours(route: Mapping[str, Any]) -> dict[str, Any]:
    kept = {key: value for key, value in route.items() if key != "activeTimeIntervals"}
    return kept | ({"routes": [_at_all_hours(each) for each in kept["routes"]]} if "routes" in kept else {})


def whole_text(text: str, config: RuleConfig) -> str:
    """The text with the templates that it names in place of their names."""
    given = in_template(TEMPLATES.read_text(encoding="utf-8"), config.label_names)
    defined = {name: _body(before, body) for name, before, body in _DEFINED.findall(given)}

    def put(found: re.Match[str]) -> str:
        # What trims spaces must not trim those around the text. Of nothing, `with` shows nothing.
        before, name, of, after = found.groups()
        return f"{{{{{before} with {of} }}}}{_USED.sub(put, defined[name])}{{{{ end {after}}}}}"

    return _USED.sub(put, text)


def _body(trimmed: str, text: str) -> str:
    """What stands between `define` and its `end`, without the spaces that these trim."""
    inner = _ENDED.sub("", text)
    return inner.lstrip() if trimmed else inner
