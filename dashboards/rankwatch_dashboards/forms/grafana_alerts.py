"""The alerts as Grafana evaluates and provisions them itself, in the format of its files."""

from __future__ import annotations

import hashlib
import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from rankwatch_alerts import RuleConfig

_BASE_SECONDS = 10
"""Grafana evaluates at multiples of this."""
_UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600}
_VALUE = re.compile(r"\$value\b")


def grafana_alerts(config: RuleConfig, groups: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """A file for `provisioning/alerting`. Recording rules stay with Prometheus.

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
    """The name of the alert; where several rules have it, with what tells them apart."""
    repeated = Counter(rule["alert"] for rule in rules)
    seen: Counter[str] = Counter()
    for rule in rules:
        details = [rule["labels"][name] for name in ("severity", "reason", "cause") if name in rule["labels"]]
        title = f"{rule['alert']} ({', '.join(details)})" if repeated[rule["alert"]] > 1 else rule["alert"]
        seen[title] += 1
        yield f"{title} {seen[title]}" if seen[title] > 1 else title


def _rule(config: RuleConfig, title: str, rule: dict[str, Any]) -> dict[str, Any]:
    """An alerting rule of Prometheus. In labels Grafana looks for variables of the environment."""
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
    """The instant query, and a condition that holds for each of its series, whatever the value.

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
    """The next multiple of what Grafana evaluates at."""
    number, unit = re.fullmatch(r"(\d+)(ms|s|m|h)", interval).groups()  # type: ignore[union-attr]
    return _BASE_SECONDS * math.ceil(int(number) * _UNITS[unit] / _BASE_SECONDS)
