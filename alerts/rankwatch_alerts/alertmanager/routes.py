"""Routes by severity, owner and class; when tickets are delivered."""

from __future__ import annotations

from rankwatch_alerts.config import RuleConfig
from rankwatch_alerts.delivery import DEAD_MAN, NULL, PAGE, TICKET, alerts_by_owner
from rankwatch_alerts.rules import NO_PAGE, PAGE_LABEL, Alert, duration

TICKET_HOURS = "ticket-hours"
"""Name of the time interval in which tickets are delivered."""


def route(config: RuleConfig) -> dict[str, object]:
    """Pages to the receiver of the owner at once, tickets in working hours, context to nobody.

    The class of a run decides in the rule: `page_least_ranks` gives a critical alert the label `page`, and
    `page="no"` makes it a ticket. An alert that the rules do not know goes to `page` or `ticket`.
    """
    alerts = alerts_by_owner(config.owners)
    owners = {owner: f'alertname=~"{"|".join(names)}"' for owner, names in alerts.items()}
    return {
        "receiver": TICKET,
        "group_by": ["cluster", "run"],
        "group_wait": duration(config.group_wait_seconds),
        "group_interval": duration(config.group_interval_seconds),
        "repeat_interval": duration(config.repeat_interval_seconds),
        "routes": [
            {
                "receiver": DEAD_MAN,
                "matchers": [f'alertname="{Alert.WATCHDOG}"'],
                "group_wait": "0s",
                "group_interval": duration(config.page_group_interval_seconds),
                "repeat_interval": duration(config.page_group_interval_seconds),
            },
            {"receiver": NULL, "matchers": ['severity="info"']},
            {
                "receiver": PAGE,
                "matchers": ['severity="critical"', f'{PAGE_LABEL}!="{NO_PAGE}"'],
                # Not behind the open group of another alert of the run.
                "group_by": ["alertname", "cluster", "run"],
                "group_interval": duration(config.page_group_interval_seconds),
                "routes": [{"receiver": f"{PAGE}-{owner}", "matchers": [of]} for owner, of in owners.items()],
            },
            {
                # An unknown severity is a ticket rather than lost.
                "receiver": TICKET,
                **_in_hours(config),
                "routes": [
                    {"receiver": f"{TICKET}-{owner}", "matchers": [of], **_in_hours(config)}
                    for owner, of in owners.items()
                ],
            },
        ],
    }


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


def _in_hours(config: RuleConfig) -> dict[str, object]:
    return {"active_time_intervals": [TICKET_HOURS]} if config.ticket_hours else {}
