"""Collectors are kept apart: none costs another its series, or a scrape its time."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import pytest

from rankwatch.conventions.metrics import metric
from rankwatch_agent.runtime.collector import Collection, Collector, Series
from rankwatch_agent.runtime.errors import CollectError, NotApplicable
from rankwatch_agent.runtime.supervisor import Clocks, Supervisor, next_start, stale_after
from support.agent.process import FakeCollector, HungCollector, ManualClock, load, until, values

LOAD = ("rankwatch_host_cpus",)


@contextmanager
def supervising(collectors: Sequence[Collector], clocks: Clocks | None = None) -> Iterator[Supervisor]:
    supervisor = Supervisor(collectors, version="1", clocks=clocks)
    supervisor.start()
    try:
        yield supervisor
    finally:
        for collector in collectors:
            if isinstance(collector, HungCollector):
                collector.release.set()
        supervisor.stop(10)


def shown(supervisor: Supervisor) -> dict[tuple[str, ...], float]:
    return values(supervisor.snapshot().collections)


def settled(supervisor: Supervisor) -> None:
    until(lambda: not supervisor.snapshot().pending, "every collector has run")


def raises(error: Exception) -> Callable[[], Collection]:
    def act() -> Collection:
        raise error

    return act


def succeeds_once() -> Callable[[], Collection]:
    results = iter([lambda: load(1.0)])
    return lambda: next(results, raises(CollectError("could not read it")))()


def runs(supervisor: Supervisor, name: str) -> dict[str, float]:
    found = shown(supervisor)
    return {key[2]: n for key, n in found.items() if key[:2] == ("rankwatch_collector_runs_total", name)}


def test_first_run() -> None:
    """It does not wait for the first interval. The snapshot shows the series and the health."""
    with supervising([FakeCollector(act=lambda: load(1.5))]) as supervisor:
        settled(supervisor)
        found = shown(supervisor)
    assert found[LOAD] == 1.5
    assert found["rankwatch_agent_info", "1"] == 1
    assert found["rankwatch_collector_state", "fake", "ok"] == 1
    assert found["rankwatch_collector_interval_seconds", "fake"] == 3600
    assert found["rankwatch_collector_duration_seconds", "fake"] >= 0
    assert found["rankwatch_collector_last_success_timestamp_seconds", "fake"] > 1e9


def test_run_past_its_deadline() -> None:
    """It counts once as `deadline`. The state is failed and the series are hidden until it returns."""
    clock = ManualClock()
    hung = HungCollector(deadline_seconds=5)
    with supervising([hung], Clocks(monotonic=clock, wall=clock)) as supervisor:
        until(hung.entered.is_set, "the collector hangs")
        clock.now += 4
        assert ("rankwatch_collector_state", "hung", "failed") not in shown(supervisor)
        clock.now += 2
        for _ in range(3):
            assert shown(supervisor)["rankwatch_collector_state", "hung", "failed"] == 1
        late = {"ok": 0, "failed": 0, "not_applicable": 0, "deadline": 1}
        assert runs(supervisor, "hung") == late
        hung.release.set()
        settled(supervisor)
        assert shown(supervisor)["rankwatch_collector_state", "hung", "ok"] == 1
        assert shown(supervisor)[LOAD] == 2.0
        assert runs(supervisor, "hung") == late


@pytest.mark.parametrize(
    ("error", "state"),
    [
        (CollectError("could not read it"), "failed"),
        (ZeroDivisionError("a bug"), "failed"),
        (NotApplicable("no such hardware"), "not_applicable"),
    ],
)
def test_errors_become_states(error: Exception, state: str) -> None:
    """Broken and absent differ: what is absent has its state only. The series of the other collector stay."""
    collectors = [FakeCollector("sick", act=raises(error)), FakeCollector("well", act=lambda: load(1.0))]
    with supervising(collectors) as supervisor:
        settled(supervisor)
        found = shown(supervisor)
        assert runs(supervisor, "sick").get(state) == (None if state == "not_applicable" else 1)
    assert found["rankwatch_collector_state", "sick", state] == 1
    assert found["rankwatch_collector_state", "well", "ok"] == 1
    assert found[LOAD] == 1.0
    assert ("rankwatch_collector_last_success_timestamp_seconds", "sick") not in found


@pytest.mark.parametrize(
    "bad",
    [
        Series(metric("rankwatch_host_cpus"), ("one label too many",), 1.0),
        Series(metric("rankwatch_host_cpus"), (), "text"),  # type: ignore[arg-type]
        Series(metric("rankwatch_host_cpus"), (), 10**400),  # as a garbled kernel file may hold
        Series(metric("rankwatch_host_cpu_seconds_total"), (7,), 1.0),  # type: ignore[arg-type]
    ],
)
def test_unrenderable_sample(bad: Series) -> None:
    """A bug in one collector must not break the exposition of all."""
    with supervising([FakeCollector(act=lambda: Collection([bad]))]) as supervisor:
        settled(supervisor)
        found = shown(supervisor)
    assert found["rankwatch_collector_state", "fake", "failed"] == 1
    assert bad.metric.name not in {key[0] for key in found}


def test_repeated_failure_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    collector = FakeCollector(interval_seconds=0.001, act=raises(CollectError("could not read /x: gone")))
    with caplog.at_level(logging.INFO), supervising([collector]):
        until(lambda: collector.runs > 5, "it failed several times")
    lines = [record.getMessage() for record in caplog.records]
    assert lines == ["collector fake failed: could not read /x: gone"]


def test_stale_result() -> None:
    """A result older than three intervals disappears, and the state turns to failed."""
    clock = ManualClock()
    ran = threading.Event()
    collector = FakeCollector(interval_seconds=100, deadline_seconds=10, act=lambda: ran.set() or load(1.0))
    with supervising([collector], Clocks(monotonic=clock, wall=clock)) as supervisor:
        settled(supervisor)
        clock.now += 300
        assert shown(supervisor)[LOAD] == 1.0
        clock.now += 1
        found = shown(supervisor)
    assert LOAD not in found
    assert found["rankwatch_collector_state", "fake", "failed"] == 1


def test_failed_run() -> None:
    """It hides the previous result. From two intervals on a collector says how long ago it succeeded, unless
    there is nothing to read."""
    overdue = "rankwatch_collector_overdue_intervals"
    clock = ManualClock()
    absent = FakeCollector("absent", act=raises(NotApplicable("there is none")))
    with supervising(
        [FakeCollector(interval_seconds=0.01, act=succeeds_once()), absent], Clocks(wall=clock)
    ) as supervisor:
        until(lambda: ("rankwatch_collector_state", "fake", "failed") in shown(supervisor), "it failed")
        assert (overdue, "fake") not in shown(supervisor)
        clock.now += 0.05
        found = shown(supervisor)
    assert LOAD not in found, "an old value must not look like a new one"
    assert ("rankwatch_collector_last_success_timestamp_seconds", "fake") in found
    assert found[overdue, "fake"] == pytest.approx(5.0)
    assert (overdue, "absent") not in found


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        (100.0, 110.0),  # a run without cost
        (103.0, 110.0),  # the run's own time is not added
        (110.0, 120.0),  # a run that took all of the interval
        (137.0, 140.0),  # two starts are skipped, not caught up
    ],
)
def test_next_start(now: float, expected: float) -> None:
    """Starts lie at first + k * interval."""
    assert next_start(100.0, 10.0, now) == expected


def test_stale_after() -> None:
    """The longer of three intervals and a late run: a slow collector may have a short interval."""
    assert stale_after(interval=10, deadline=5) == 30
    assert stale_after(interval=1, deadline=10) == 11
