"""The Alertmanager configuration: routes, receivers, texts, and which alert holds back which, read from
alerts/rules/inhibitions.yaml; and which inhibitions of others take alerts of ours.

The sources of inhibitions keep firing as long as their victims (`keep_firing_seconds`), so that no victim
notifies in the gap after its cause.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from rankwatch_alerts.adjustments import FIXED_LABELS
from rankwatch_alerts.config import RuleConfig
from rankwatch_alerts.delivery import (
    CONTACT_EMAIL,
    CONTACT_SLACK,
    DEAD_MAN,
    NULL,
    PAGE,
    TICKET,
    all_owners,
    allowed_contacts,
    destination,
    in_alertmanager,
    receiver_names,
)
from rankwatch_alerts.label_names import in_routes
from rankwatch_alerts.rule_files import RuleFileError, document
from rankwatch_alerts.rules import ALERT_NAMES, Severity, duration

__all__ = ["TEMPLATES", "TEMPLATES_FILE", "alertmanager_config", "fragments"]

TEMPLATES = Path(__file__).with_name("rankwatch.tmpl")
"""Texts of notifications."""
TEMPLATES_FILE = TEMPLATES.name
"""Name of their copy beside the configuration."""


def fragments(config: RuleConfig, theirs: Mapping[str, Any] = MappingProxyType({})) -> dict[str, list[Any]]:
    """Return what is added to each list of a configuration, by the key of the list; `routes` is that below
    `route`. Labels have the names that the settings give. Receivers leave out what is not set and `theirs`,
    the table `global` of the configuration, has."""
    ours: Mapping[str, list[Any]] = {
        "templates": [TEMPLATES_FILE],
        "routes": [route(config)],
        "inhibit_rules": inhibit_rules(config.rules_directory),
        "time_intervals": time_intervals(config),
        "receivers": receivers(config, theirs),
    }
    return {key: in_routes(each, config.label_names) for key, each in ours.items()}


def alertmanager_config(config: RuleConfig) -> dict[str, object]:
    """Return the configuration as Alertmanager reads it; the receivers' texts lie beside it (TEMPLATES_FILE).

    Receivers deliver to what the settings name for them, or nothing. Alerts of other rules are tickets.
    """
    ours = fragments(config)
    root = {"receiver": in_alertmanager(TICKET), "group_by": ["alertname"], "routes": ours.pop("routes")}
    templates = ours.pop("templates")
    return {"templates": templates, "route": root, **ours}


_DETAILS = ("who", "cause", "cost", "since")
"""Details that a page of PagerDuty lists of its first alert, each by the template of that name."""
_OF_GLOBAL = {
    "from": ("email_from", "smtp_from"),
    "smarthost": ("smtp_smarthost", "smtp_smarthost"),
    "require_tls": ("smtp_tls", "smtp_require_tls"),
    "url": ("pagerduty_url", "pagerduty_url"),
}
"""Field of a receiver -> our setting, and what it is called in `global`."""
_CONTACT = "{{ .CommonLabels.contact }}"


def receivers(config: RuleConfig, theirs: Mapping[str, Any]) -> list[dict[str, object]]:
    """Return the receivers, one for each kind and owner; `theirs`, a table `global`, has what is not set."""
    found: list[dict[str, object]] = [
        {"name": in_alertmanager(name), **_of(config, name, theirs)} for name in receiver_names(config.owners)
    ]
    url = config.dead_man_url
    called = {"webhook_configs": [{"url": url, "send_resolved": False}]} if url else {}
    found.extend(_contacts(config, theirs))
    found.append({"name": in_alertmanager(NULL)})
    return [*found, {"name": in_alertmanager(DEAD_MAN), **called}]


def _of(config: RuleConfig, receiver: str, theirs: Mapping[str, Any]) -> dict[str, object]:
    channel = destination(config.slack_channels, receiver)
    key_file = destination(config.pagerduty_routing_key_files, receiver)
    address = destination(config.email_to, receiver)
    url = destination(config.webhook_urls, receiver)
    wanted = {
        "slack_configs": [_slack(config, channel)] if channel else [],
        "pagerduty_configs": [_pagerduty(config, receiver, key_file, theirs)] if key_file else [],
        "email_configs": [_email(config, address, theirs)] if address else [],
        "webhook_configs": [{"url": url, "send_resolved": True}] if url else [],
    }
    return {kind: configs for kind, configs in wanted.items() if configs}


def _contacts(config: RuleConfig, theirs: Mapping[str, Any]) -> Iterator[dict[str, object]]:
    email, slack = allowed_contacts(config)
    if email:
        yield {"name": in_alertmanager(CONTACT_EMAIL), "email_configs": [_email(config, _CONTACT, theirs)]}
    if slack:
        yield {"name": in_alertmanager(CONTACT_SLACK), "slack_configs": [_slack(config, _CONTACT)]}


def _set(config: RuleConfig, theirs: Mapping[str, Any], *fields: str) -> dict[str, object]:
    """Return the fields of a receiver, but for those that `theirs` has and the settings leave as they are."""
    found = {}
    for field in fields:
        setting, of_global = _OF_GLOBAL[field]
        value = getattr(config, setting)
        if of_global not in theirs or value != getattr(RuleConfig, setting):
            found[field] = value
    return found


def _slack(config: RuleConfig, channel: str) -> dict[str, object]:
    return {
        **({"api_url_file": config.slack_api_url_file} if config.slack_api_url_file else {}),
        "channel": channel,
        "send_resolved": True,
        "color": _text("slack.color"),
        "fallback": _text("slack.title"),
        "title": _text("slack.title"),
        "title_link": _text("first.dashboard"),
        "text": _text("slack.text"),
        "mrkdwn_in": ["text"],
    }


def _pagerduty(
    config: RuleConfig, receiver: str, key_file: str, theirs: Mapping[str, Any]
) -> dict[str, object]:
    """Return an incident for each group: of a page the alert and the run. It resolves when the group does."""
    return {
        "routing_key_file": key_file,
        **_set(config, theirs, "url"),
        "send_resolved": True,
        "severity": "critical" if receiver.startswith(PAGE) else "warning",
        "class": "{{ .CommonLabels.alertname }}",
        "group": "{{ .CommonLabels.run }}",
        "component": "{{ .CommonLabels.node }}",
        "client": "rankwatch",
        "client_url": _text("first.dashboard"),
        "description": _text("title"),
        "details": {
            **{each: _detail(f"first.{each}") for each in _DETAILS},
            **{each: _text(f"first.{each}") for each in ("runbook", "dashboard")},
            "alerts": _detail("text"),
            # The defaults of Alertmanager, which repeat all labels of all alerts.
            **dict.fromkeys(("firing", "num_firing", "num_resolved", "resolved"), ""),
        },
        "links": [
            {"href": _text("first.runbook"), "text": "Runbook"},
            {"href": _text("first.dashboard"), "text": "Dashboard"},
        ],
    }


def _email(config: RuleConfig, address: str, theirs: Mapping[str, Any]) -> dict[str, object]:
    login = {"auth_username": config.smtp_username, "auth_password_file": config.smtp_password_file}
    return {
        "to": address,
        **_set(config, theirs, "from", "smarthost", "require_tls"),
        **{name: value for name, value in login.items() if value},
        "send_resolved": True,
        "headers": {"Subject": _text("title")},
        "text": _text("text"),
        "html": _text("email.html"),
    }


def _text(template: str) -> str:
    return f'{{{{ template "rankwatch.{template}" . }}}}'


def _detail(template: str) -> str:
    """Return a detail behind a tab: newer versions of Alertmanager read a detail as YAML, and `who: rank 5`
    as a map. No YAML begins with a tab, so that the text stays a text; it is no part of what people see."""
    return "\t" + _text(template)


TICKET_HOURS = in_alertmanager("ticket-hours")
"""Name of the time interval in which tickets are delivered."""


def route(config: RuleConfig) -> dict[str, object]:
    """Return what routes pages to the owner's receiver at once, tickets in working hours, context to nobody.

    Only alerts with the label of the product enter, so it can stand first among the routes of others.
    """
    return {
        "matchers": [PRODUCT],
        "receiver": in_alertmanager(TICKET),
        "group_by": ["cluster", "run"],
        "group_wait": duration(config.group_wait_seconds),
        "group_interval": duration(config.group_interval_seconds),
        "repeat_interval": duration(config.repeat_interval_seconds),
        "routes": [
            {
                "receiver": in_alertmanager(DEAD_MAN),
                "matchers": ['alertname="RankwatchWatchdog"'],
                "group_wait": "0s",
                "group_interval": duration(config.page_group_interval_seconds),
                # Shorter, or the flush a moment before it has passed calls nobody.
                "repeat_interval": duration(max(config.page_group_interval_seconds / 2, 0.001)),
            },
            {"receiver": in_alertmanager(NULL), "matchers": ['severity="info"']},
            *_contact_routes(config),
            {
                "receiver": in_alertmanager(PAGE),
                "matchers": ['severity="critical"'],
                # Not behind the open group of another alert of the run.
                "group_by": ["alertname", "cluster", "run"],
                "group_interval": duration(config.page_group_interval_seconds),
                "routes": _by_owner(config, PAGE, {}),
            },
            # An unknown severity is a ticket rather than lost.
            {
                "receiver": in_alertmanager(TICKET),
                **_tickets(config),
                "routes": _by_owner(config, TICKET, _tickets(config)),
            },
        ],
    }


def _by_owner(config: RuleConfig, kind: str, more: dict[str, object]) -> list[dict[str, object]]:
    return [
        {"receiver": in_alertmanager(f"{kind}-{owner}"), "matchers": [f'owner="{owner}"'], **more}
        for owner in all_owners(config.owners)
    ]


def _contact_routes(config: RuleConfig) -> Iterator[dict[str, object]]:
    """Let the contact of a run hear of it beside the owner, if it is one that the settings allow."""
    for receiver, pattern in zip((CONTACT_EMAIL, CONTACT_SLACK), allowed_contacts(config), strict=True):
        if pattern:
            yield {
                "receiver": in_alertmanager(receiver),
                "matchers": ['severity=~"critical|warning"', f'contact=~"{pattern}"'],
                "group_by": ["cluster", "run", "contact"],
                "repeat_interval": duration(config.ticket_repeat_interval_seconds),
                "continue": True,
            }


def _tickets(config: RuleConfig) -> dict[str, object]:
    hours = {"active_time_intervals": [TICKET_HOURS]} if config.ticket_hours else {}
    return {"repeat_interval": duration(config.ticket_repeat_interval_seconds), **hours}


def time_intervals(config: RuleConfig) -> list[dict[str, object]]:
    """Return when tickets are delivered; empty for always. One that resolves before is never delivered."""
    if not config.ticket_hours:
        return []
    start, _, end = config.ticket_hours.partition("-")
    hours = {
        "weekdays": [config.ticket_weekdays],
        "times": [{"start_time": start, "end_time": end}],
        "location": config.ticket_time_zone,
    }
    return [{"name": TICKET_HOURS, "time_intervals": [hours]}]


PRODUCT = 'product="rankwatch"'
"""Matcher of all alerts of ours, and of no other."""
MATCHER = re.compile(r'(\w+)(=~|!~|!=|=)"([^"\\]*)"')
"""Of Alertmanager: label, operator, value."""
_ANY_MATCHER = re.compile(r'([\w.:]+)\s*(=~|!~|!=|=)\s*(?:"((?:\\.|[^"\\])*)"|([^\s,}]*))')
"""The same as people write it: the quotes may be missing, and braces may stand around several."""
_SEVERITIES = {
    "any": (('severity="critical"',), ('severity="warning"', 'severity=~"warning|info"')),
    "page": (('severity="critical"',),),
    "replaced": (('severity="critical"', 'severity="warning"'),),
}
"""Matchers of source and target of each rule that an entry becomes; a source never has less severity."""


@dataclass(frozen=True, kw_only=True)
class Inhibition:
    """An entry of the file."""

    why: str
    source: Sequence[str]
    target: Sequence[str]
    equal: Sequence[str] = ()
    """Labels that both have, with the same value."""
    alike: Sequence[str] = ()
    """Labels that have the same value, or that neither has."""
    severity: str = "any"

    def rules(self) -> Iterator[dict[str, list[str]]]:
        """Yield its rules as Alertmanager reads them."""
        present = tuple(f'{label}=~".+"' for label in self.equal if label != "alertname")
        for of_source, *of_target in _SEVERITIES[self.severity]:
            yield {
                "source_matchers": [PRODUCT, *self.source, *present, of_source],
                "target_matchers": [PRODUCT, *self.target, *present, *of_target],
                "equal": ["cluster", *self.equal, *self.alike],
            }


def inhibitions(directory: str = "") -> tuple[Inhibition, ...]:
    """Return the entries of the file, of the user's own directory if it is there. Raises RuleFileError."""
    try:
        found = tuple(Inhibition(**each) for each in document("inhibitions", directory))
    except TypeError as error:
        raise RuleFileError(f"could not use inhibitions.yaml: {error}") from error
    for each in found:
        matchers = all(MATCHER.fullmatch(str(one)) for one in (*each.source, *each.target))
        if not matchers or each.severity not in _SEVERITIES:
            raise RuleFileError(f"could not use inhibitions.yaml: wrong matcher or severity in {each.why!r}")
    return found


def inhibit_rules(directory: str = "") -> list[dict[str, list[str]]]:
    """Return all inhibitions as Alertmanager reads them."""
    return [rule for each in inhibitions(directory) for rule in each.rules()]


def that_take_ours(rules: Iterable[tuple[int, Mapping[str, Any]]], config: RuleConfig) -> Iterator[str]:
    """Yield a sentence on each inhibition of others, given with its line, that can hold for our alerts."""
    for line, rule in rules:
        matchers = {side: list(_matchers(rule, side)) for side in ("source", "target")}
        if ours := [f"{side}_matchers" for side, each in matchers.items() if _can_match(each, config)]:
            source, target = (" ".join(map("".join, each)) for each in matchers.values())
            yield (
                f"the inhibition in line {line}, of {target} by {source}, takes alerts of ours, too: "
                f'add product!="rankwatch" to its {" and ".join(ours)}'
            )


def _matchers(rule: Mapping[str, Any], side: str) -> Iterator[tuple[str, str, str]]:
    """Label, operator and value of each, also in the form of old releases."""
    for text in rule.get(f"{side}_matchers") or ():
        for label, how, quoted, bare in _ANY_MATCHER.findall(text):
            yield label, how, quoted or bare
    for key, how in ((f"{side}_match", "="), (f"{side}_match_re", "=~")):
        yield from ((label, how, str(value)) for label, value in (rule.get(key) or {}).items())


def _can_match(matchers: Iterable[tuple[str, str, str]], config: RuleConfig) -> bool:
    """Return True if an alert of ours can have labels with which all of them match."""
    overridden = (label for each in config.overrides.values() for label in each.get("labels", ()))
    free = {*FIXED_LABELS, *config.label_names.values(), *overridden}
    known = {
        **{label: (value,) for label, value in config.extra_labels.items() if label not in free},
        "product": ("rankwatch",),
        "alertname": ALERT_NAMES,
        "severity": tuple(Severity),
        "owner": all_owners(config.owners),
    }
    left = {label: known.get(label, ("",)) for label, _, _ in matchers if label in known or label not in free}
    for label, how, value in matchers:
        if label in left:
            left[label] = tuple(each for each in left[label] if _matches(each, how, value))
    return all(left.values())


def _matches(text: str, how: str, value: str) -> bool:
    if "~" not in how:
        return (text == value) == (how == "=")
    try:
        return bool(re.fullmatch(value, text)) == (how == "=~")
    except re.error:  # Go has forms that Python has not
        return True
