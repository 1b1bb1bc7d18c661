"""Rules and dashboards in the forms in which Kubernetes and Grafana import them."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from rankwatch_alerts import RuleConfig, alert_groups, recording_groups, to_yaml
from rankwatch_alerts.alertmanager import MATCHER, TEMPLATES, fragments
from rankwatch_alerts.generation import remove_generated, rule_file, write_yaml
from rankwatch_alerts.label_names import in_template

__all__ = ["write_forms"]


def write_forms(config: RuleConfig, *, dashboards: Sequence[Path], directory: Path) -> Iterator[Path]:
    """Write each form of the rules and of these dashboards into folders below `directory`; yields the paths.

    `kubernetes`: PrometheusRule objects, an AlertmanagerConfig, and of each dashboard a ConfigMap for the
    sidecar of Grafana and a GrafanaDashboard for the Grafana operator. `grafana-alerts`: the alerts for
    Grafana's own evaluation, a file for its folder `provisioning/alerting`; use it instead of the alerts of
    Prometheus, not with them.

    Raises OSError where the directory cannot be written, and ValueError for a group of rules that is larger
    than Kubernetes takes.
    """
    kubernetes = directory / "kubernetes"
    remove_generated(kubernetes / "rules", "rankwatch-*.yml")
    alerts = rule_file(config, alert_groups(config))["groups"]
    for kind, groups in (
        ("recording", rule_file(config, recording_groups(config))["groups"]),
        ("alerts", alerts),
    ):
        for each in prometheus_rules(config, kind, groups):
            yield write_yaml(kubernetes / "rules" / f"{each['metadata']['name']}.yml", each)
    yield write_yaml(directory / "grafana-alerts" / "rankwatch.yml", grafana_alerts(config, alerts))
    yield write_yaml(kubernetes / "alertmanager-config.yml", alertmanager_config_object(config))
    for file in dashboards:
        dashboard = json.loads(file.read_text(encoding="utf-8"))
        name = f"{file.stem}.yml"
        yield write_yaml(kubernetes / "config-maps" / name, config_map(config, dashboard))
        yield write_yaml(kubernetes / "grafana-operator" / name, grafana_dashboard(config, dashboard))


MOST_BYTES = 200 * 1024
"""Of one object. `kubectl apply` copies it into an annotation, and annotations end at 256 KiB."""
_LABELS = {"app.kubernetes.io/name": "rankwatch"}


def prometheus_rules(
    config: RuleConfig, name: str, groups: Sequence[dict[str, Any]]
) -> Iterator[dict[str, Any]]:
    """Yield the groups of a rule file as objects of the Prometheus operator, as few as their size allows.

    Raises ValueError for a group that is too large for an object of its own.
    """
    parts: list[list[dict[str, Any]]] = [[]]
    filled = 0
    for group in groups:
        size = len(to_yaml({"groups": [group]}).encode())
        if size > MOST_BYTES:
            raise ValueError(
                f"could not write a PrometheusRule of group {group['name']}: over {MOST_BYTES} bytes"
            )
        if filled + size > MOST_BYTES:
            parts.append([])
            filled = 0
        parts[-1].append(group)
        filled += size
    for number, part in enumerate(parts, start=1):
        yield {
            "apiVersion": "monitoring.coreos.com/v1",
            "kind": "PrometheusRule",
            "metadata": {
                "name": f"rankwatch-{name}-{number}",
                "labels": {**_LABELS, **config.prometheus_rule_labels},
            },
            "spec": {"groups": part},
        }


def config_map(config: RuleConfig, dashboard: dict[str, Any]) -> dict[str, Any]:
    """Return a dashboard for the sidecar of Grafana, which takes ConfigMaps with its label."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": dashboard["uid"],
            "labels": {**_LABELS, **config.dashboard_labels},
            "annotations": {"grafana_folder": config.grafana_folder},
        },
        "data": {f"{dashboard['uid']}.json": _compact(dashboard)},
    }


def grafana_dashboard(config: RuleConfig, dashboard: dict[str, Any]) -> dict[str, Any]:
    """Return a dashboard for the Grafana operator."""
    return {
        "apiVersion": "grafana.integreatly.org/v1beta1",
        "kind": "GrafanaDashboard",
        "metadata": {"name": dashboard["uid"], "labels": dict(_LABELS)},
        "spec": {
            "folder": config.grafana_folder,
            "instanceSelector": {"matchLabels": dict(config.grafana_instance_labels)},
            "json": _compact(dashboard),
        },
    }


def _compact(dashboard: dict[str, Any]) -> str:
    return json.dumps(dashboard, sort_keys=True, ensure_ascii=False, separators=(",", ":"))


_BASE_SECONDS = 10
"""Grafana evaluates at multiples of this."""
_UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600}
_VALUE = re.compile(r"\$value\b")


def grafana_alerts(config: RuleConfig, groups: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return a file for `provisioning/alerting`. Recording rules stay with Prometheus.

    Grafana has no function `query` in templates: what a text looks up there shows as not known.
    """
    alerting = [group for group in groups if any("alert" in rule for rule in group["rules"])]
    named = iter(_titles([rule for group in alerting for rule in group["rules"]]))
    return {
        "apiVersion": 1,
        "groups": [
            {
                "orgId": 1,
                "name": group["name"],
                "folder": config.grafana_folder,
                "interval": f"{_interval_seconds(group['interval'])}s",
                "rules": [_rule(config, next(named), each) for each in group["rules"]],
            }
            for group in alerting
        ],
    }


def _titles(rules: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield the name of the alert; where several rules have it, with what tells them apart."""
    repeated = Counter(rule["alert"] for rule in rules)
    seen: Counter[str] = Counter()
    for rule in rules:
        details = [rule["labels"][name] for name in ("severity", "reason", "cause") if name in rule["labels"]]
        title = f"{rule['alert']} ({', '.join(details)})" if repeated[rule["alert"]] > 1 else rule["alert"]
        seen[title] += 1
        yield f"{title} {seen[title]}" if seen[title] > 1 else title


def _rule(config: RuleConfig, title: str, rule: dict[str, Any]) -> dict[str, Any]:
    """Return an alerting rule of Prometheus. In labels Grafana looks for variables of the environment."""
    labels = {**rule["labels"], "alert": rule["alert"]}
    return {
        "uid": f"rankwatch-{hashlib.sha256(title.encode()).hexdigest()[:24]}",
        "title": title,
        "condition": "B",
        "data": _queries(config, rule["expr"]),
        "noDataState": "OK",
        "execErrState": "Error",
        "for": rule["for"],
        "keepFiringFor": rule["keep_firing_for"],
        "labels": {name: _text(value).replace("$", "$$") for name, value in labels.items()},
        "annotations": {name: _text(value) for name, value in rule["annotations"].items()},
        "isPaused": False,
    }


def _queries(config: RuleConfig, expression: str) -> list[dict[str, Any]]:
    """Return the instant query, and a condition that holds for each of its series, whatever the value.

    Grafana takes zero for "does not fire", Prometheus takes a series for "fires".
    """
    asked = {"expr": expression, "instant": True, "range": False}
    present = {"type": "math", "expression": "is_number($A) || is_nan($A) || is_inf($A)"}
    return [
        {
            "refId": letter,
            "datasourceUid": uid,
            "relativeTimeRange": {"from": 600, "to": 0},
            "model": {**model, "refId": letter, "datasource": {"type": kind, "uid": uid}},
        }
        for letter, kind, uid, model in (
            ("A", "prometheus", config.grafana_datasource_uid, asked),
            ("B", "__expr__", "__expr__", present),
        )
    ]


def _text(template: str) -> str:
    return _VALUE.sub("$values.A.Value", template)


def _interval_seconds(interval: str) -> int:
    """Return the next multiple of what Grafana evaluates at."""
    number, unit = re.fullmatch(r"(\d+)(ms|s|m|h)", interval).groups()  # type: ignore[union-attr]
    return _BASE_SECONDS * math.ceil(int(number) * _UNITS[unit] / _BASE_SECONDS)


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
    """Return the object. It knows no time zones: with one in the settings, tickets go out at all hours."""
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
    """Return a part of a configuration in the words of the object."""
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
    """Return the text with the templates that it names in place of their names."""
    given = in_template(TEMPLATES.read_text(encoding="utf-8"), config.label_names)
    defined = {name: _body(before, body) for name, before, body in _DEFINED.findall(given)}

    def put(found: re.Match[str]) -> str:
        # What trims spaces must not trim those around the text. Of nothing, `with` shows nothing.
        before, name, of, after = found.groups()
        return f"{{{{{before} with {of} }}}}{_USED.sub(put, defined[name])}{{{{ end {after}}}}}"

    return _USED.sub(put, text)


def _body(trimmed: str, text: str) -> str:
    """Return what stands between `define` and its `end`, without the spaces that these trim."""
    inner = _ENDED.sub("", text)
    return inner.lstrip() if trimmed else inner
