"""The goodput of a run from Prometheus: over all nodes, also those that are gone by now."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence

from rankwatch.conventions.states import GoodputState
from rankwatch_agent.runtime.errors import UserError
from rankwatch_diagnosis.goodput.model import AttemptGoodput, Cost, RunGoodput, Saves
from rankwatch_diagnosis.prometheus_api import LATEST, PrometheusApi, Sample, quoted, whole

_MOST_POINTS = 5000
"""Prometheus gives at most 11,000 of a series."""
_STALE_SECONDS = 300.0
_STATES = {each.value: each for each in GoodputState}


def read_prometheus(api: PrometheusApi, run: str, *, cluster: str | None, since_seconds: float) -> RunGoodput:
    """Return the goodput of a run of which Prometheus has anything since then.

    Raises UserError where it has nothing, or knows runs of that name in several clusters.
    """
    return _Reading(api, run, cluster, since_seconds).goodput()


class _Reading:
    def __init__(self, api: PrometheusApi, run: str, cluster: str | None, since_seconds: float) -> None:
        self._api = api
        self._run = run
        self._window = f"{max(1, math.ceil(since_seconds))}s"
        self._since = since_seconds
        self._matcher = f"run={quoted(run)}"
        if cluster is not None:
            self._matcher += f", cluster={quoted(cluster)}"

    def goodput(self) -> RunGoodput:
        # The last value of each node's counter: increase() would lose what came before its first scrape.
        found = self._api.query(f"sum by (cluster, state) ({self._last('rankwatch_goodput_seconds_total')})")
        if not found:
            raise UserError(
                f"{self._api.address} has no goodput of a run {self._run!r} in the last {self._window}"
            )
        clusters = sorted({each.labels.get("cluster", "") for each in found})
        if len(clusters) > 1:
            named = ", ".join(map(repr, clusters[:8]))
            raise UserError(f"a run {self._run!r} is in the clusters {named}: choose one with --cluster")
        attempts = tuple(self._attempts())
        seconds = dict.fromkeys(GoodputState, 0.0)
        for labels, value in found:
            if math.isfinite(value):
                seconds[_STATES.get(labels.get("state", ""), GoodputState.UNKNOWN)] += value
        series = f"run:rankwatch_model_flops_utilisation:ratio{{{self._matcher}}}[{self._window}]"
        mean = self._api.query(f"max by (dtype) (avg_over_time({series}))")  # while it was known
        return RunGoodput(
            run=self._run,
            source=self._api.address,
            seconds=seconds,
            attempts=attempts,
            saves=self._saves(attempts),
            costs=tuple(self._costs(seconds)),
            flops_utilisation={
                each.labels.get("dtype", ""): each.value for each in mean if math.isfinite(each.value)
            },
            unseen=tuple(self._unseen(attempts)),
        )

    def _last(self, series: str, matchers: str = "") -> str:
        return f"last_over_time({series}{{{self._matcher}{matchers}}}[{self._window}])"

    def _attempts(self) -> Iterator[AttemptGoodput]:
        """Yield the attempts: each value of their number lasts for as long as the attempt does."""
        now = time.time()
        step = max(15.0, self._since / _MOST_POINTS)
        by_name = {
            name: self._over_time(name, now, step)
            for name in (
                "rankwatch_run_attempt",
                "rankwatch_run_world_size",
                "rankwatch_run_attempt_start_timestamp_seconds",
            )
        }
        ends = self._ends()
        moments: dict[int, list[float]] = {}
        for at, number in by_name["rankwatch_run_attempt"].items():
            moments.setdefault(int(number), []).append(at)
        sizes, starts = (
            by_name["rankwatch_run_world_size"],
            by_name["rankwatch_run_attempt_start_timestamp_seconds"],
        )
        for number, seen in sorted(moments.items()):
            last = seen[-1]
            ended, how = ends.get(number, (last, ""))
            running = number not in ends and now - last < _STALE_SECONDS
            yield AttemptGoodput(
                number=number,
                started=min(starts.get(last, seen[0]), ended),
                ended=now if running else ended,
                running=running,
                world_size=int(sizes.get(last, 0)),
                ended_how=how,
            )

    def _over_time(self, name: str, now: float, step: float) -> dict[float, float]:
        found = self._api.query_range(f"max({name}{{{self._matcher}}})", now - self._since, now, step)
        points = found[0].points if found else ()
        return {at: value for at, value in points if 0.0 <= value < LATEST}

    def _ends(self) -> dict[int, tuple[float, str]]:
        """Map the number of each attempt to when it ended, and how."""
        found: dict[int, tuple[float, str]] = {}
        for labels, value in self._api.query(self._last("rankwatch_run_attempt_end_timestamp_seconds")):
            number = whole(labels.get("attempt", ""))
            if number is not None and 0.0 <= value < LATEST:
                words = [labels.get(each, "") for each in ("outcome", "kind")]
                how = ": ".join(each for each in words if each)
                found[number] = max(found.get(number, (0.0, "")), (value, how))
        return found

    def _saves(self, attempts: tuple[AttemptGoodput, ...]) -> Saves | None:
        """Return the saves as the rank sees them that saves block most: sometimes rank 0 alone saves."""
        saved = ', operation="save"'
        of_saves = {
            "rankwatch_checkpoint_operations_total": saved + ', outcome="success"',
            "rankwatch_checkpoint_blocking_seconds_total": saved,
            "rankwatch_checkpoint_operation_seconds_total": saved,
        }
        counted = [
            self._api.query(f"max(increase({name}{{{self._matcher}{matchers}}}[{self._window}]))")
            for name, matchers in of_saves.items()
        ]
        count, blocking, seconds = map(_first, counted)
        if count < 1.0 or not attempts:
            return None
        running = sum(each.ended - each.started for each in attempts)
        return Saves(
            count=count,
            interval_seconds=running / count,
            blocking_seconds=blocking / count,
            seconds=max(seconds, blocking) / count,
        )

    def _costs(self, seconds: Mapping[GoodputState, float]) -> Iterator[Cost]:
        """Yield what was spent, by the share of each state in the time charged: that with a process."""
        charged = {**seconds, GoodputState.DOWN: 0.0}
        total = sum(charged.values())
        found = self._api.query(f"sum by (currency, basis) ({self._last('rankwatch_run_spent')})")
        for labels, value in found:
            if total > 0.0 and math.isfinite(value):
                by_state = {state: value * each / total for state, each in charged.items()}
                currency, basis = (labels.get(each, "") for each in ("currency", "basis"))
                yield Cost(currency=currency, basis=basis, by_state=by_state)

    def _unseen(self, attempts: tuple[AttemptGoodput, ...]) -> Iterator[str]:
        if not attempts:
            yield f"Prometheus has no attempts of the run in the last {self._window}"
        elif attempts[0].number > 0:
            yield f"attempts before number {attempts[0].number}: Prometheus has none of them in that time"


def _first(found: Sequence[Sample]) -> float:
    """Return the value of the one series; 0 without any, or where it is none."""
    return found[0].value if found and math.isfinite(found[0].value) else 0.0
