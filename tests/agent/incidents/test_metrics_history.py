"""The agent's metrics from before an incident."""

from __future__ import annotations

from rankwatch_agent.incidents.metrics_history import MAX_PAGE_BYTES, PAGE_INTERVAL_SECONDS, MetricsHistory
from support.agent.process import ManualClock


def pages(clock: ManualClock) -> MetricsHistory:
    """Pages that say when they were taken."""
    made = MetricsHistory(clock)
    made.set_source(lambda: b"%d" % clock.now)
    return made


def test_age_of_the_page_before() -> None:
    """The page is at most about twice as old as the moment, for a stall of half a minute or of fifteen."""
    clock = ManualClock()
    kept = pages(clock)
    for _ in range(7200):
        clock.now += 1.0
        kept.keep()
    for ago in (40.0, 120.0, 300.0, 900.0):
        page = kept.before(clock.now - ago)
        assert page is not None
        assert ago < clock.now - page.moment <= 2 * ago + 2 * PAGE_INTERVAL_SECONDS
    assert len(kept._pages) <= 9


def test_oldest_page_without_an_older_one() -> None:
    clock = ManualClock()
    kept = pages(clock)
    assert kept.before(clock.now) is None
    kept.keep()
    page = kept.before(clock.now - 50.0)
    assert page is not None and page.text == b"1000"


def test_no_page_without_a_source() -> None:
    """Nor if a page is too large to keep."""
    clock = ManualClock()
    kept = MetricsHistory(clock)
    kept.keep()
    assert (kept.now(), kept.before(2000.0)) == (None, None)
    kept.set_source(lambda: bytes(MAX_PAGE_BYTES + 1))
    kept.keep()
    assert kept.before(2000.0) is None
