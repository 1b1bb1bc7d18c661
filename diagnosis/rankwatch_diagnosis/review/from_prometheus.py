"""The review of a run from Prometheus: over all nodes, with the alerts that fired."""

from __future__ import annotations

import math
import re
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from rankwatch.conventions.vocabulary import LOSS
from rankwatch_diagnosis.goodput.from_prometheus import read_prometheus
from rankwatch_diagnosis.goodput.model import RunGoodput
from rankwatch_diagnosis.loss.anomaly import Severity
from rankwatch_diagnosis.prometheus_api import Points, PrometheusApi, quoted, whole
from rankwatch_diagnosis.review.incidents import (
    FAULT_COUNTERS,
    LEAST_GROWTH,
    Growth,
    growth_event,
    is_fault,
    named,
)
from rankwatch_diagnosis.review.model import (
    Event,
    EventKind,
    Judgement,
    LossCurve,
    RankPhases,
    RunReview,
    attempt_events,
    shown_events,
    thinned,
)
from rankwatch_diagnosis.run.step_rows import phase_order
from rankwatch_diagnosis.words import counted, duration

_MOST_POINTS = 600
_LEAST_STEP_SECONDS = 15.0
_MARGIN_SECONDS = 600.0
"""After the last sign of life, in which an alert on it may still fire."""
_MOST_NODES = 500
_MOST_OF_A_COUNTER = 20
_SOURCE = "Prometheus"
_SEVERITY = {each.value: each for each in Severity}
_UNNAMED = frozenset(
    {"alertname", "severity", "cluster", "run", "rank", "node", "alertstate", "instance"}
    | {"product", "owner", "contact"}
)


def review_prometheus(
    api: PrometheusApi, run: str, *, cluster: str | None, since_seconds: float
) -> RunReview:
    """Return the review of a run of which Prometheus has anything since then. Raises UserError for none."""
    goodput = read_prometheus(api, run, cluster=cluster, since_seconds=since_seconds)
    return _Reading(api, goodput, cluster, since_seconds).review()


class _Reading:
    def __init__(
        self, api: PrometheusApi, goodput: RunGoodput, cluster: str | None, since_seconds: float
    ) -> None:
        self._api = api
        self._goodput = goodput
        now, attempts = time.time(), goodput.attempts
        self._running = any(each.running for each in attempts)
        self._began = min((each.started for each in attempts), default=now - since_seconds)
        self._ended = max((each.ended for each in attempts), default=now)
        self._until = min(now, self._ended + _MARGIN_SECONDS)
        self._step = max(_LEAST_STEP_SECONDS, (self._until - self._began) / _MOST_POINTS)
        self._window = f"{max(60, math.ceil(self._until - self._began))}s"
        self._in_cluster = f", cluster={quoted(cluster)}" if cluster is not None else ""
        self._matcher = f"run={quoted(goodput.run)}{self._in_cluster}"
        self._nodes = self._labels("node", f"rankwatch_rank_info{{{self._matcher}}}")

    def review(self) -> RunReview:
        alerts = list(self._alerts())
        hardware = list(self._hardware())
        shown, left_out = shown_events([*attempt_events(self._goodput.attempts, _SOURCE), *alerts, *hardware])
        worst = max((each.severity for each in alerts), key=list(Severity).index, default=Severity.INFO)
        last = self._goodput.attempts[-1:]
        result = "running" if self._running else (last[0].ended_how if last else "") or "ended"
        world = max((each.world_size for each in self._goodput.attempts), default=0)
        return RunReview(
            run=self._goodput.run,
            source=self._goodput.source,
            result=result,
            severity=worst,
            why=self._why(alerts),
            running=self._running,
            started=self._began,
            ended=self._ended,
            world_size=world,
            nodes=tuple(self._nodes),
            steps=self._steps(),
            goodput=self._goodput,
            events=shown,
            events_left_out=left_out,
            judgements=tuple(_judgements(alerts)),
            phases=tuple(self._phases()),
            loss=self._loss(),
            checkpoint_summary=self._checkpoints(),
            unseen=tuple(self._unseen()),
        )

    def _alerts(self) -> Iterator[Event]:
        """Yield the alerts of the run, and those of its nodes while it ran."""
        of_run = f'ALERTS{{alertstate="firing", {self._matcher}}}'
        of_nodes = f'ALERTS{{alertstate="firing", run="", node=~{self._node_pattern()}{self._in_cluster}}}'
        for series in self._range(of_run) + (self._range(of_nodes) if self._nodes else []):
            for began, ended in _stretches(series, self._step):
                yield _alert(series.labels, began, ended if ended < self._until - self._step else None)

    def _hardware(self) -> Iterator[Event]:
        if not self._nodes:
            return
        on_nodes = f"{{node=~{self._node_pattern()}{self._in_cluster}}}"
        for name in FAULT_COUNTERS:
            counted = [each for each in self._range(name + on_nodes) if is_fault(each.labels)]
            grown = [each for series in counted for each in self._grown(name, series)]
            for at, growth, node in sorted(grown, key=lambda each: -each[1].amount)[:_MOST_OF_A_COUNTER]:
                yield growth_event(growth, at=at - self._step, until=at, source=_SOURCE, node=node)

    def _grown(self, name: str, series: Points) -> Iterator[tuple[float, Growth, str]]:
        """Yield when a counter grew, by how much, and on which node. One born later counted from 0."""
        first = series.points[0]
        before = first[1] if first[0] < self._began + 2.0 * self._step else 0.0
        for at, value in series.points:
            if value - before > LEAST_GROWTH:
                yield at, Growth(name, named(series.labels), value - before), series.labels.get("node", "")
            before = value

    def _phases(self) -> Iterator[RankPhases]:
        increase = f"increase(rankwatch_step_phase_seconds_total{{{self._matcher}}}[{self._window}])"
        by_rank: dict[tuple[int, str], dict[str, float]] = defaultdict(dict)
        for labels, value in self._at_end(f"sum by (rank, node, phase) ({increase})"):
            rank = whole(labels.get("rank", ""))
            if rank is not None and math.isfinite(value):
                by_rank[rank, labels.get("node", "")][labels.get("phase", "")] = value
        for (number, node), seconds in sorted(by_rank.items()):
            yield RankPhases(number, node, {each: seconds[each] for each in sorted(seconds, key=phase_order)})

    def _loss(self) -> LossCurve | None:
        found = self._range(f"rankwatch_scalar{{name={quoted(LOSS)}, {self._matcher}}}")
        usable = [(rank, each) for each in found if (rank := whole(each.labels.get("rank", ""))) is not None]
        if not usable:
            return None
        rank = min(number for number, _ in usable)
        points = sorted(at for number, each in usable if number == rank for at in each.points)
        return LossCurve(rank=rank, axis="time", points=thinned(points))

    def _checkpoints(self) -> str:
        """Describe the checkpoints in words, from the indicators of the rules and the counters."""
        words = []
        for text, series in (
            ("complete up to step {:.0f}", "run:rankwatch_checkpoint_complete_step:max"),
            ("verified up to step {:.0f}", "rankwatch_checkpoint_verified_step"),
        ):
            words += [text.format(each) for each in self._last(series)]
        failures = f'increase(rankwatch_checkpoint_operations_total{{{self._matcher}, outcome="failure"}}'
        failed = [value for _, value in self._at_end(f"sum ({failures}[{self._window}]))")]
        words += [f"{failed[0]:.0f} failures"] if failed else []
        return ", ".join(words) or "none known to Prometheus"

    def _steps(self) -> str:
        highest, target = self._last("rankwatch_step"), self._last("rankwatch_target_steps")
        if not highest:
            return ""
        return f"step {highest[0]:.0f}" + (f" of {target[0]:.0f}" if target else "")

    def _why(self, alerts: Sequence[Event]) -> str:
        if not alerts:
            return "no alert fired on the run or its nodes"
        first = min(alerts, key=lambda each: (-list(Severity).index(each.severity), each.at))
        more = f", and {len(alerts) - 1} more alerts" if len(alerts) > 1 else ""
        return f"the first alert of the worst severity was {first.text}{more}"

    def _unseen(self) -> Iterator[str]:
        yield from self._goodput.unseen
        if not self._nodes:
            yield "nodes of the run: Prometheus has no rankwatch_rank_info of it in that time"
        yield f"what is shorter than {duration(self._step)}: that is how often Prometheus was asked"
        yield "stacks, flight recorders and single steps: evidence bundles and black boxes hold them"

    def _node_pattern(self) -> str:
        return quoted("|".join(re.escape(each) for each in self._nodes[:_MOST_NODES]))

    def _labels(self, label: str, series: str) -> list[str]:
        found = self._api.query(f"group by ({label}) (last_over_time({series}[{self._ago()}]))")
        return sorted(text for each in found if (text := each.labels.get(label, "")))

    def _ago(self) -> str:
        return f"{max(60, math.ceil(time.time() - self._began))}s"

    def _range(self, expression: str) -> list[Points]:
        return self._api.query_range(expression, self._began, self._until, self._step)

    def _at_end(self, expression: str) -> list[tuple[Mapping[str, str], float]]:
        """Return the value at the end of the run."""
        found = self._api.query_range(expression, self._until, self._until, 1.0)
        return [(each.labels, each.points[-1][1]) for each in found]

    def _last(self, series: str) -> list[float]:
        """Return the highest of the series' last values; empty without any."""
        found = self._at_end(f"max(last_over_time({series}{{{self._matcher}}}[{self._window}]))")
        return [value for _, value in found if math.isfinite(value)]


def _stretches(series: Points, step: float) -> Iterator[tuple[float, float]]:
    """Yield the times without a gap."""
    began = before = math.nan
    for at, _ in series.points:
        if not at - before <= 1.5 * step:
            if not math.isnan(began):
                yield began, before
            began = at
        before = at
    if not math.isnan(began):
        yield began, before


def _alert(labels: Mapping[str, str], began: float, ended: float | None) -> Event:
    more = ", ".join(
        f"{name} {labels[name]}"
        for name in sorted(labels)
        if labels[name] and name not in _UNNAMED and not name.startswith("__")
    )
    return Event(
        began,
        EventKind.ALERT,
        _SEVERITY.get(labels.get("severity", ""), Severity.WARNING),
        labels.get("alertname", "?") + (f" ({more})" if more else ""),
        "alert",
        rank=whole(labels.get("rank", "")),
        node=labels.get("node", ""),
        until=ended,
    )


def _judgements(alerts: Iterable[Event]) -> Iterator[Judgement]:
    """Yield one judgement for each alert, with whom it named and for how long."""
    by_name: dict[str, list[Event]] = defaultdict(list)
    for each in alerts:
        by_name[each.text.partition(" ")[0]].append(each)
    for name, of_name in sorted(by_name.items(), key=lambda each: min(event.at for event in each[1])):
        ranks = sorted({each.rank for each in of_name if each.rank is not None})
        nodes = sorted({each.node for each in of_name if each.node})
        whom = [f"rank {', '.join(map(str, ranks[:16]))}"] if ranks else []
        whom += [f"on {', '.join(nodes[:8])}"] if nodes else []
        seconds = sum(each.until - each.at for each in of_name if each.until is not None)
        goes_on = " and goes on" if any(each.until is None for each in of_name) else ""
        times = counted(len(of_name), "time")
        sentence = f"fired {times}, for {duration(seconds)}{goes_on}{'; ' if whom else ''}{' '.join(whom)}"
        worst = max((each.severity for each in of_name), key=list(Severity).index)
        yield Judgement(name, worst, sentence)
