"""Who is notified: the owner of each alert, and the settings that say where and when notifications go."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from urllib.parse import urlsplit
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

from rankwatch.identity import as_contact
from rankwatch.settings import expect
from rankwatch_alerts.adjustments import Adjustments, is_plain

PAGE, TICKET, NULL, DEAD_MAN = "page", "ticket", "null", "dead-man"
"""Kinds of notification: a person is woken, a person looks in working hours, nobody is notified, and the
service that pages when this one stops."""
CONTACT_EMAIL, CONTACT_SLACK = "ticket-contact-email", "ticket-contact-slack"
"""Receivers of the contact that a run names."""


class Owner(StrEnum):
    """Who acts on an alert, unless the setting `owners` names somebody else."""

    PLATFORM = "platform"
    """Nodes, GPUs, network, storage, and the monitoring itself."""
    TRAINING = "training"
    """The run: its code, data, checkpoints, cost."""


def all_owners(owners: Mapping[str, str]) -> tuple[str, ...]:
    """Return everybody who acts on alerts, in alphabetical order; `owners` is the setting of that name."""
    return tuple(sorted({*map(str, Owner), *owners.values()}))


def receiver_names(owners: Mapping[str, str]) -> tuple[str, ...]:
    """Return `page` and `ticket` for alerts without a known owner, and both of each owner."""
    return tuple(
        f"{kind}{of}" for kind in (PAGE, TICKET) for of in ("", *(f"-{each}" for each in all_owners(owners)))
    )


def destination(given: Mapping[str, str], receiver: str) -> str:
    """Return what a setting says for a receiver such as `page-platform`; without it, that for `page`."""
    return given.get(receiver, given.get(receiver.partition("-")[0], ""))


def in_alertmanager(name: str) -> str:
    """Return the name of a receiver or time interval in a configuration that others have parts of, too."""
    return f"rankwatch-{name}"


@dataclass(frozen=True, kw_only=True)
class Delivery(Adjustments):
    """Settings that say where notifications go, and when."""

    ticket_weekdays: str = "monday:friday"
    """Days on which tickets are delivered; at other times they wait."""
    ticket_hours: str = "08:00-18:00"
    """Times of these days; nothing for tickets at all days and hours."""
    ticket_time_zone: str = "UTC"
    """Time zone of `ticket_hours`, such as `Europe/Berlin`."""
    ticket_repeat_interval_seconds: float = 86400.0
    """Time before an unchanged ticket is repeated."""
    slack_channels: Mapping[str, str] = field(default_factory=dict)
    """Channel of Slack for each receiver. `page` holds for all pages that name no channel of their owner,
    `ticket` for such tickets; so in all tables of receivers."""
    slack_api_url_file: str = ""
    """File on the machine of Alertmanager with the URL of Slack's incoming webhook. Without it, that of the
    table `global` of an Alertmanager holds."""
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
    contact_email_domains: tuple[str, ...] = ()
    """Domains of mail addresses, such as `example.com`: a run that declares one of them by RANKWATCH_CONTACT
    has its alerts mailed there, too. Users write what they like, so no other address is mailed to."""
    contact_slack_channels: tuple[str, ...] = ()
    """Channels that a run may declare so, such as `#pretraining`."""
    notification_secret: str = "rankwatch-notifications"
    """Secret of Kubernetes from which an AlertmanagerConfig takes what other settings name by a file; its
    keys are the names of these files."""
    webhook_urls: Mapping[str, str] = field(default_factory=dict)
    """URL to which Alertmanager posts its JSON, for each receiver."""
    dead_man_url: str = ""
    """URL that Alertmanager calls each minute (`page_group_interval_seconds`) while agents, Prometheus and
    Alertmanager work. The service there, outside of the cluster, must page when the calls stop."""

    def check_delivery(self) -> None:
        """Raise FieldError for a setting that Alertmanager would refuse or that delivers nothing."""
        self.check_adjustments()
        receivers = receiver_names(self.owners)
        for name in BY_RECEIVER:
            given = getattr(self, name)
            expected = f"a table with some of the receivers {', '.join(receivers)}"
            expect(self, name, set(given) <= set(receivers), expected)
            expect(self, name, all(each and is_plain(each) for each in given.values()), _PLAIN)
        for name in _TEXTS:
            expect(self, name, is_plain(getattr(self, name)), _PLAIN)
        for name, url in self.webhook_urls.items():
            expect(self, "webhook_urls", is_url(url), f"an http(s) URL without query for {name}")
        expect(self, "pagerduty_url", is_url(self.pagerduty_url), "an http(s) URL without query")
        dead_man = self.dead_man_url
        expect(self, "dead_man_url", not dead_man or is_url(dead_man), "an http(s) URL without query")
        expect(self, "smtp_smarthost", bool(HOST_PORT.fullmatch(self.smtp_smarthost)), "host:port")
        self._check_contacts()
        self._check_ticket_hours()

    def _check_contacts(self) -> None:
        domains, channels = self.contact_email_domains, self.contact_slack_channels
        valid = all(as_contact(f"a@{each}") for each in domains)
        expect(self, "contact_email_domains", valid, "domains, such as example.com")
        valid = all(each.startswith("#") and as_contact(each) for each in channels)
        expect(self, "contact_slack_channels", valid, "channels of Slack, such as #pretraining")
        valid = bool(_SECRET.fullmatch(self.notification_secret))
        expect(self, "notification_secret", valid, "a name of Kubernetes")
        valid = 1 <= self.ticket_repeat_interval_seconds <= 31_536_000
        expect(self, "ticket_repeat_interval_seconds", valid, "a number of seconds from 1 to a year")

    def _check_ticket_hours(self) -> None:
        days, hours, zone = self.ticket_weekdays, self.ticket_hours, self.ticket_time_zone
        expect(self, "ticket_weekdays", _weekdays(days), "a range of weekdays, such as monday:friday")
        expected = "times of one day, such as 08:00-18:00, or nothing for all hours"
        expect(self, "ticket_hours", not hours or _hours(hours), expected)
        expected = "a time zone, such as UTC or Europe/Berlin"
        expect(self, "ticket_time_zone", _is_zone(zone), expected)


def lacks_slack_url(config: Delivery) -> bool:
    """Return True if channels of Slack are named, but not how to reach it."""
    return bool(config.slack_channels or config.contact_slack_channels) and not config.slack_api_url_file


def allowed_contacts(config: Delivery) -> tuple[str, str]:
    """Return patterns of the mail addresses and channels that a run may name as contact; empty for none."""
    domains = "|".join(config.contact_email_domains).replace(".", "[.]")
    channels = "|".join(config.contact_slack_channels).replace(".", "[.]")
    return (f"[A-Za-z0-9][A-Za-z0-9._+-]*@({domains})" if domains else "", channels)


BY_RECEIVER = ("slack_channels", "pagerduty_routing_key_files", "email_to", "webhook_urls")
"""Settings that name destinations."""
_TEXTS = ("slack_api_url_file", "email_from", "smtp_username", "smtp_password_file")
_PLAIN = "printable text without template braces"
_SECRET = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
_HOURS = re.compile(r"([01]\d|2[0-3]):([0-5]\d)-([01]\d:[0-5]\d|2[0-3]:[0-5]\d|24:00)")
_ZONE = re.compile(r"[A-Za-z0-9_+-]+(/[A-Za-z0-9_+-]+){0,2}")
HOST_PORT = re.compile(r"[\w.:\[\]-]+:\d{1,5}", re.ASCII)
"""An address without a scheme, as Alertmanager and Prometheus take it."""
# Pages are appended as a path, and Prometheus and Alertmanager expand braces.
_URL = re.compile(r"https?://[^\s{}?#\"\\]+")
_DAYS = ("sunday", "monday", "tuesday", "wednesday", "thursday", "friday", "saturday")
"""As Alertmanager counts them: a range must not run backwards."""


def _weekdays(text: str) -> bool:
    days = text.split(":")
    known = 1 <= len(days) <= 2 and all(each in _DAYS for each in days)
    return known and _DAYS.index(days[0]) <= _DAYS.index(days[-1])


def _is_zone(name: str) -> bool:
    """Return True if Alertmanager, which has all zones, knows it; a machine without any cannot judge
    names."""
    try:
        return name in ("UTC", "Local") or bool(ZoneInfo(name))
    except (ZoneInfoNotFoundError, ValueError, OSError):  # OSError: the name of a folder of zones
        return not available_timezones() and bool(_ZONE.fullmatch(name))


def _hours(text: str) -> bool:
    start, _, end = text.partition("-")
    return bool(_HOURS.fullmatch(text)) and start < end


def is_url(text: str) -> bool:
    """Return True for an http(s) URL to which a path can be appended."""
    if not (text.isascii() and text.isprintable() and _URL.fullmatch(text)):
        return False
    try:
        parts = urlsplit(text)
        return bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port or an IPv6 host that is none
        return False
