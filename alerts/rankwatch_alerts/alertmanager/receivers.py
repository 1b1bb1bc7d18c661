"""Receivers: where the notifications of each owner go, with the texts of rankwatch.tmpl."""

from __future__ import annotations

from rankwatch_alerts.config import RuleConfig
from rankwatch_alerts.delivery import DEAD_MAN, NULL, PAGE, destination, receiver_names

_DETAILS = ("who", "cause", "cost", "since", "runbook", "dashboard", "alerts")
"""What a page of PagerDuty lists, each by the template of that name; shown in alphabetical order."""


def receivers(config: RuleConfig, webhook_url: str | None) -> list[dict[str, object]]:
    """One for each kind and owner; `webhook_url` takes the place of all that the settings name."""
    found: list[dict[str, object]] = []
    for name in receiver_names(config.owners):
        posted = {"webhook_configs": [{"url": webhook_url, "send_resolved": True}]}
        found.append({"name": name, **(posted if webhook_url else _of(config, name))})
    url = config.dead_man_url
    called = {"webhook_configs": [{"url": url, "send_resolved": False}]} if url else {}
    return [*found, {"name": NULL}, {"name": DEAD_MAN, **called}]


def _of(config: RuleConfig, receiver: str) -> dict[str, object]:
    channel = destination(config.slack_channels, receiver)
    key_file = destination(config.pagerduty_routing_key_files, receiver)
    address = destination(config.email_to, receiver)
    url = destination(config.webhook_urls, receiver)
    wanted = {
        "slack_configs": [_slack(config, channel)] if channel else [],
        "pagerduty_configs": [_pagerduty(config, receiver, key_file)] if key_file else [],
        "email_configs": [_email(config, address)] if address else [],
        "webhook_configs": [{"url": url, "send_resolved": True}] if url else [],
    }
    return {kind: configs for kind, configs in wanted.items() if configs}


def _slack(config: RuleConfig, channel: str) -> dict[str, object]:
    return {
        "api_url_file": config.slack_api_url_file,
        "channel": channel,
        "send_resolved": True,
        "color": _text("slack.color"),
        "fallback": _text("title"),
        "title": _text("title"),
        "title_link": _text("first.dashboard"),
        "text": _text("slack.text"),
        "mrkdwn_in": ["text"],
    }


def _pagerduty(config: RuleConfig, receiver: str, key_file: str) -> dict[str, object]:
    """An incident for each group: of a page the alert and the run. It resolves when the group does."""
    return {
        "routing_key_file": key_file,
        "url": config.pagerduty_url,
        "send_resolved": True,
        "severity": "critical" if receiver.startswith(PAGE) else "warning",
        "class": "{{ .CommonLabels.alertname }}",
        "group": "{{ .CommonLabels.run }}",
        "component": "{{ .CommonLabels.node }}",
        "client": "rankwatch",
        "client_url": _text("first.dashboard"),
        "description": _text("title"),
        "details": {
            **{each: _text(f"first.{each}") for each in _DETAILS[:-1]},
            "alerts": _text("text"),
            # The defaults of Alertmanager, which repeat all labels of all alerts.
            **dict.fromkeys(("firing", "num_firing", "num_resolved", "resolved"), ""),
        },
        "links": [
            {"href": _text("first.runbook"), "text": "Runbook"},
            {"href": _text("first.dashboard"), "text": "Dashboard"},
        ],
    }


def _email(config: RuleConfig, address: str) -> dict[str, object]:
    login = {"auth_username": config.smtp_username, "auth_password_file": config.smtp_password_file}
    return {
        "to": address,
        "from": config.email_from,
        "smarthost": config.smtp_smarthost,
        "require_tls": config.smtp_tls,
        **{name: value for name, value in login.items() if value},
        "send_resolved": True,
        "headers": {"Subject": _text("title")},
        "text": _text("text"),
        "html": _text("email.html"),
    }


def _text(template: str) -> str:
    return f'{{{{ template "rankwatch.{template}" . }}}}'
