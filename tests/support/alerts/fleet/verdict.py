"""Which pages of a day somebody had to answer, and which faults nobody was paged for.

Alerts are matched by the labels `run`, `node`, `rank` and `gpu` and by time, and but for a lost node not by
their names: so the same verdict holds for any set of rules.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from rankwatch_alerts import Alert, RuleConfig
from support.alerts.fleet.day import Day, Fault, FaultKind
from support.alerts.fleet.firing import Labels, firing, shipped
from support.alerts.fleet.paging import Notification, Pager

LIMIT_SECONDS: Mapping[FaultKind, float] = MappingProxyType(
    {
        FaultKind.LOST_NODE: 600.0,
        FaultKind.STRAGGLER: 1200.0,
        FaultKind.CHECKPOINT: 600.0,
        FaultKind.GPU: 600.0,
        FaultKind.CUT_OFF: 600.0,
    }
)
"""Within which a fault must page."""
BUDGET = 2
"""Pages a day that no one had to answer."""
_AFTERWARDS_SECONDS = 900.0
"""A page may still be about a fault that has just ended."""
_NOBODY = frozenset({"null", "dead-man", ""})


class Answer(NamedTuple):
    """The pages on one fault."""

    fault: Fault
    pages: tuple[Notification, ...]

    @property
    def delay(self) -> float | None:
        """Seconds until the first page, None without one."""
        return self.pages[0].moment - self.fault.start if self.pages else None

    @property
    def in_time(self) -> bool:
        """True if it paged soon enough, or did not have to."""
        limit = LIMIT_SECONDS.get(self.fault.kind)
        return limit is None or (self.delay is not None and self.delay <= limit)

    @property
    def named(self) -> bool:
        """True if a page names what is broken, and none names another node or rank."""
        labels = [dict(alert) for page in self.pages for alert in page.alerts if _is_about(alert, self.fault)]
        places = {
            name: getattr(self.fault, name) for name in ("node", "rank", "gpu") if getattr(self.fault, name)
        }
        wrong = any(each.get(name, value) != value for each in labels for name, value in places.items())
        if self.fault.kind == FaultKind.LOST_NODE:  # ranks that stall there are no answer
            labels = [each for each in labels if each["alertname"] == Alert.NODE_LOST]
        right = any(each.get(name) == value for each in labels for name, value in places.items())
        return not wrong and (right or not places)


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """On one day."""

    answers: Sequence[Answer]
    needless: Sequence[tuple[str, Notification]]
    """Pages that no one had to answer, each with what happened then."""
    tickets: int
    ticket_names: Mapping[str, int]

    @property
    def missed(self) -> list[Fault]:
        """Faults that nobody was paged for in time."""
        return [each.fault for each in self.answers if not each.in_time]

    @property
    def misnamed(self) -> list[Fault]:
        """Faults of which pages name something else, or nothing."""
        return [
            each.fault
            for each in self.answers
            if each.pages and each.fault.kind in LIMIT_SECONDS and not each.named
        ]


def is_page(notification: Notification) -> bool:
    """True if it wakes somebody."""
    return "page" in notification.receiver


def judge(day: Day, notifications: Iterable[Notification]) -> Verdict:
    """Match all notifications of a day to its faults."""
    pages: dict[Fault, list[Notification]] = {fault: [] for fault in day.faults}
    needless, tickets = [], []
    for each in notifications:
        if each.receiver in _NOBODY:
            continue
        if not is_page(each):
            tickets.append(each)
            continue
        fault = next((fault for fault in day.faults if _answers(each, fault)), None)
        if fault is None:
            needless.append((_context(day, each), each))
        else:
            pages[fault].append(each)
    names = Counter(dict(alert)["alertname"] for each in tickets for alert in each.alerts)
    answers = [Answer(fault, tuple(found)) for fault, found in pages.items()]
    return Verdict(answers=answers, needless=needless, tickets=len(tickets), ticket_names=names)


def together(verdicts: Sequence[Verdict]) -> Verdict:
    """On the shifts of a day."""
    names = Counter[str]()
    for each in verdicts:
        names.update(each.ticket_names)
    return Verdict(
        answers=[answer for each in verdicts for answer in each.answers],
        needless=[page for each in verdicts for page in each.needless],
        tickets=sum(each.tickets for each in verdicts),
        ticket_names=names,
    )


def live(life: Day, interval: int, directory: Path, late: int = 0) -> Verdict:
    """Evaluate a day with the rules that ship, which takes minutes. Files are written to a directory.

    interval: seconds between two scrapes, and between two evaluations.
    """
    given = shipped(RuleConfig(scrape_interval_seconds=float(interval)), directory)
    pager = Pager(given.alertmanager)
    moments = firing(life, given.groups, interval, directory, late)
    return judge(life, [told for moment, alerts in moments for told in pager.at(moment, alerts)])


def _answers(page: Notification, fault: Fault) -> bool:
    in_time = fault.start <= page.moment <= fault.end + _AFTERWARDS_SECONDS
    return in_time and any(_is_about(alert, fault) for alert in page.alerts)


def _is_about(alert: Labels, fault: Fault) -> bool:
    labels = dict(alert)
    if fault.kind is FaultKind.CUT_OFF:
        return "run" not in labels and "run_class" not in labels
    if "run" in labels:
        return labels["run"] == fault.run
    return bool(fault.node) and labels.get("node") == fault.node


def _context(day: Day, page: Notification) -> str:
    """What happened when nobody had to be paged."""
    labels = dict(page.alerts[0])
    if day.cut_off is not None and day.cut_off[0] <= page.moment <= day.cut_off[1] + _AFTERWARDS_SECONDS:
        return "agents cut off"
    if day.server_gap is not None and day.server_gap[0] <= page.moment <= day.server_gap[1] + 300:
        return "restart of Prometheus"
    run = next((run for run in day.runs if run.name == labels.get("run")), None)
    if run is None:
        return "fleet"
    over = run.ending == "finished" or page.moment < run.attempts[0].end - 60
    kind = "run that goes on" if over and run.ending != "nan_step" else run.ending
    return f"{kind}, class {run.run_class or 'none'}"
