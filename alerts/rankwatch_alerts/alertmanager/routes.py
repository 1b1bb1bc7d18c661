"""Routes by severity and owner, all below one matcher of the product; when tickets are delivered."""

from __future__ import annotations

from collections.abc import Iterator

from rankwatch_alerts.alertmanager.inhibition import PRODUCT
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
    in_alertmanager,
)
from rankwatch_alerts.rules import duration

TICKET_HOURS = in_alertmanager("ticket-hours")
"""Name of the time interval in which tickets are delivered."""


def route(config: RuleConfig) -> dict[str, object]:
    """Pages to the receiver of the owner at once, tickets in working hours, context to nobody.

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
            *_contacts(config),
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


def _contacts(config: RuleConfig) -> Iterator[dict[str, object]]:
    """The contact of a run hears of it beside the owner, if it is one that the settings allow."""
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
    """When tickets are delivered; empty for always. A ticket that resolves before is never delivered."""
    if not config.ticket_hours:
        return []
    start, _, end = config.ticket_hours.partition("-")
    hours = {
        "weekdays": [config.ticket_weekdays],
        "times": [{"start_time": start, "end_time": end}],
        "location": config.ticket_time_zone,
    }
    return [{"name": TICKET_HOURS, "time_intervals": [hours]}]
