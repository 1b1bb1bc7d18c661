"""The alerts as Grafana evaluates and provisions them itself.

Made with the SDK's models of Grafana's API, and written in the format of its files, which differs from that
of the API in names and in what it leaves to the group.
"""

from __future__ import annotations

import hashlib
import json
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
_OF_GROUP = frozenset({"folderUID", "ruleGroup", "orgID"})
_IN_FILES = {"keep_firing_for": "keepFiringFor"}


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
                "rules": [
                    _in_file(rule_model(config, group["name"], next(named), each)) for each in group["rules"]
                ],
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


def rule_model(config: RuleConfig, group: str, title: str, rule: dict[str, Any]) -> dict[str, Any]:
    """An alerting rule of Prometheus as Grafana's API takes it."""
    from grafana_foundation_sdk.cog.encoder import JSONEncoder
    from grafana_foundation_sdk.models.alerting import Rule

    uid = hashlib.sha256(title.encode()).hexdigest()[:24]
    model = Rule(
        uid=f"rankwatch-{uid}",
        title=title,
        folder_uid=config.grafana_folder,
        rule_group=group,
        org_id=1,
        condition="B",
        data=_queries(config, rule["expr"]),
        no_data_state="OK",
        exec_err_state="Error",
        for_val=rule["for"],
        keep_firing_for=rule["keep_firing_for"],
        labels={**rule["labels"], "alert": rule["alert"]},
        annotations=rule["annotations"],
        is_paused=False,
    )
    encoded: dict[str, Any] = json.loads(JSONEncoder(sort_keys=True).encode(model))
    return encoded


def _queries(config: RuleConfig, expression: str) -> list[Any]:
    """The instant query, and a condition that holds for each of its series, whatever the value.

    Grafana takes zero for "does not fire", Prometheus takes a series for "fires".
    """
    from grafana_foundation_sdk.models.alerting import Query, RelativeTimeRange
    from grafana_foundation_sdk.models.common import DataSourceRef
    from grafana_foundation_sdk.models.expr import TypeMath
    from grafana_foundation_sdk.models.prometheus import Dataquery

    now = RelativeTimeRange(from_val=600, to=0)
    source = DataSourceRef(type_val="prometheus", uid=config.grafana_datasource_uid)
    asked = Dataquery(expr=expression, instant=True, range_val=False, ref_id="A", datasource=source)
    present = TypeMath(
        expression="is_number($A) || is_nan($A) || is_inf($A)",
        ref_id="B",
        datasource=DataSourceRef(type_val="__expr__", uid="__expr__"),
    )
    return [
        Query(ref_id="A", datasource_uid=config.grafana_datasource_uid, model=asked, relative_time_range=now),
        Query(ref_id="B", datasource_uid="__expr__", model=present, relative_time_range=now),
    ]


def _in_file(rule: dict[str, Any]) -> dict[str, Any]:
    """What stands in a file: labels escaped from the environment, the value of the query under its name."""
    kept = {_IN_FILES.get(name, name): value for name, value in rule.items() if name not in _OF_GROUP}
    labels = {name: _text(value).replace("$", "$$") for name, value in rule["labels"].items()}
    return {
        **kept,
        "labels": labels,
        "annotations": {name: _text(value) for name, value in rule["annotations"].items()},
    }


def _text(template: str) -> str:
    return _VALUE.sub("$values.A.Value", template)


def _interval_seconds(interval: str) -> int:
    """The next multiple of what Grafana evaluates at."""
    number, unit = re.fullmatch(r"(\d+)(ms|s|m|h)", interval).groups()  # type: ignore[union-attr]
    return _BASE_SECONDS * math.ceil(int(number) * _UNITS[unit] / _BASE_SECONDS)
