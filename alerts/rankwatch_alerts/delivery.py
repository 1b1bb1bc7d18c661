"""Who is notified: the owner of each alert, and the settings that say where and when notifications go."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from urllib.parse import urlsplit

from rankwatch.settings import expect
from rankwatch_alerts.rules import ALERT_NAMES, HARDWARE_ALERTS, Alert

PAGE, TICKET, NULL, DEAD_MAN = "page", "ticket", "null", "dead-man"
"""Kinds of notification: a person is woken, a person looks in working hours, nobody is notified, and the
service that pages when this one stops."""


class Owner(StrEnum):
    """Who acts on an alert, unless the setting `owners` names somebody else."""

    PLATFORM = "platform"
    """Nodes, GPUs, network, storage, and the monitoring itself."""
    TRAINING = "training"
    """The run: its code, data, checkpoints, cost."""


_OF_PLATFORM = frozenset(
    (
        *HARDWARE_ALERTS,
        Alert.PREEMPTION_STORM,
        *(Alert.SUCCESS_BUDGET, Alert.GOODPUT_BUDGET, Alert.REQUEUE_RATE),
        *(Alert.NODE_LOST, Alert.STRAGGLER, Alert.NETWORK_DEGRADED, Alert.JITTER),
        *(
            Alert.TELEMETRY_ABSENT,
            Alert.COLLECTOR_FAILING,
            Alert.RULES_FAILING,
            Alert.RECORDS_MISSED,
            Alert.BLACK_BOXES_LEFT_OUT,
        ),
        Alert.WATCHDOG,
    )
)


def owner_of(alert: str, owners: Mapping[str, str]) -> str:
    """Who acts on the alert; `owners` is the setting of that name."""
    return owners.get(alert) or (Owner.PLATFORM if alert in _OF_PLATFORM else Owner.TRAINING)


def alerts_by_owner(owners: Mapping[str, str]) -> dict[str, list[str]]:
    """Every alert of the rules, below its owner; both in alphabetical order."""
    found: dict[str, list[str]] = {}
    for alert in sorted(ALERT_NAMES, key=lambda name: (owner_of(name, owners), name)):
        found.setdefault(owner_of(alert, owners), []).append(alert)
    return found


def receiver_names(owners: Mapping[str, str]) -> tuple[str, ...]:
    """`page` and `ticket` for alerts that the rules do not know, and both of each owner."""
    return tuple(
        f"{kind}{of}"
        for kind in (PAGE, TICKET)
        for of in ("", *(f"-{each}" for each in alerts_by_owner(owners)))
    )


def destination(given: Mapping[str, str], receiver: str) -> str:
    """What a setting says for a receiver such as `page-platform`; without it, what it says for `page`."""
    return given.get(receiver, given.get(receiver.partition("-")[0], ""))


@dataclass(frozen=True, kw_only=True)
class Delivery:
    """Settings that say where notifications go, and when."""

    owners: Mapping[str, str] = field(default_factory=dict)
    """Who acts on an alert, by its name, where it is not `platform` or `training` as shipped. Each owner has
    the receivers `page-OWNER` and `ticket-OWNER`; alerts of other rules go to `page` and `ticket`."""
    ticket_weekdays: str = "monday:friday"
    """Days on which tickets are delivered; at other times they wait."""
    ticket_hours: str = "08:00-18:00"
    """Times of these days; nothing for tickets at all days and hours."""
    ticket_time_zone: str = "UTC"
    """Time zone of `ticket_hours`, such as `Europe/Berlin`."""
    slack_channels: Mapping[str, str] = field(default_factory=dict)
    """Channel of Slack for each receiver. `page` holds for all pages that name no channel of their owner,
    `ticket` for such tickets; so in all tables of receivers."""
    slack_api_url_file: str = ""
    """File on the machine of Alertmanager with the URL of Slack's incoming webhook."""
    pagerduty_routing_key_files: Mapping[str, str] = field(default_factory=dict)
    """File on the machine of Alertmanager with the routing key of PagerDuty, for each receiver."""
    pagerduty_url: str = "https://events.pagerduty.com/v2/enqueue"
    """Address of PagerDuty's Events API v2; another one in the EU."""
    email_to: Mapping[str, str] = field(default_factory=dict)
    """Addresses for each receiver, with a comma between several."""
    email_from: str = "rankwatch@example.com"
    """Sender of mails."""
    smtp_smarthost: str = "localhost:25"
    """Mail server, as host:port."""
    smtp_username: str = ""
    """User at the mail server, if it asks for one."""
    smtp_password_file: str = ""
    """File on the machine of Alertmanager with the password of `smtp_username`."""
    smtp_tls: bool = True
    """Refuse to send mail without TLS."""
    webhook_urls: Mapping[str, str] = field(default_factory=dict)
    """URL to which Alertmanager posts its JSON, for each receiver."""
    dead_man_url: str = ""
    """URL that Alertmanager calls each minute (`page_group_interval_seconds`) while agents, Prometheus and
    Alertmanager work. The service there, outside of the cluster, must page when the calls stop."""

    def check_delivery(self) -> None:
        """Raise FieldError for a setting that Alertmanager would refuse or that delivers nothing."""
        known = set(self.owners) <= set(ALERT_NAMES) and all(map(_OWNER.fullmatch, self.owners.values()))
        expect(self, "owners", known, "names of alerts, each with an owner of small letters, digits and _")
        receivers = receiver_names(self.owners)
        for name in _BY_RECEIVER:
            given = getattr(self, name)
            expected = f"a table with some of the receivers {', '.join(receivers)}"
            expect(self, name, set(given) <= set(receivers), expected)
            expect(self, name, all(each and _plain(each) for each in given.values()), _PLAIN)
        for name in _TEXTS:
            expect(self, name, _plain(getattr(self, name)), _PLAIN)
        for name, url in self.webhook_urls.items():
            expect(self, "webhook_urls", is_url(url), f"an http(s) URL without query for {name}")
        expect(self, "pagerduty_url", is_url(self.pagerduty_url), "an http(s) URL without query")
        dead_man = self.dead_man_url
        expect(self, "dead_man_url", not dead_man or is_url(dead_man), "an http(s) URL without query")
        wanted = "the file with the URL of Slack, because slack_channels names channels"
        expect(self, "slack_api_url_file", bool(self.slack_api_url_file) or not self.slack_channels, wanted)
        expect(self, "smtp_smarthost", bool(HOST_PORT.fullmatch(self.smtp_smarthost)), "host:port")
        self._check_ticket_hours()

    def _check_ticket_hours(self) -> None:
        days, hours, zone = self.ticket_weekdays, self.ticket_hours, self.ticket_time_zone
        expect(self, "ticket_weekdays", _weekdays(days), "a range of weekdays, such as monday:friday")
        expected = "times of one day, such as 08:00-18:00, or nothing for all hours"
        expect(self, "ticket_hours", not hours or _hours(hours), expected)
        expected = "a time zone, such as UTC or Europe/Berlin"
        expect(self, "ticket_time_zone", bool(_ZONE.fullmatch(zone)), expected)


DELIVERY_SETTINGS = frozenset(each.name for each in fields(Delivery))
"""Names of the settings that `Delivery` checks."""
_BY_RECEIVER = ("slack_channels", "pagerduty_routing_key_files", "email_to", "webhook_urls")
_TEXTS = ("slack_api_url_file", "email_from", "smtp_username", "smtp_password_file")
_PLAIN = "printable text without template braces"
_OWNER = re.compile(r"[a-z][a-z0-9_]{0,31}")
_HOURS = re.compile(r"([01]\d|2[0-3]):([0-5]\d)-([01]\d:[0-5]\d|2[0-3]:[0-5]\d|24:00)")
_ZONE = re.compile(r"[A-Za-z0-9_+-]+(/[A-Za-z0-9_+-]+){0,2}")
HOST_PORT = re.compile(r"[\w.:\[\]-]+:\d{1,5}", re.ASCII)
"""An address without a scheme, as Alertmanager and Prometheus take it."""
# Pages are appended as a path, and Prometheus and Alertmanager expand braces.
_URL = re.compile(r"https?://[^\s{}?#\"\\]+")
_DAYS = ("sunday", "monday", "tuesday", "wednesday", "thursday", "friday", "saturday")
"""As Alertmanager counts them: a range must not run backwards."""


def _plain(text: str) -> bool:
    return text.isprintable() and "{{" not in text


def _weekdays(text: str) -> bool:
    days = text.split(":")
    known = 1 <= len(days) <= 2 and all(each in _DAYS for each in days)
    return known and _DAYS.index(days[0]) <= _DAYS.index(days[-1])


def _hours(text: str) -> bool:
    start, _, end = text.partition("-")
    return bool(_HOURS.fullmatch(text)) and start < end


def is_url(text: str) -> bool:
    """True for an http(s) URL to which a path can be appended."""
    if not (text.isascii() and text.isprintable() and _URL.fullmatch(text)):
        return False
    try:
        parts = urlsplit(text)
        return bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port or an IPv6 host that is none
        return False
