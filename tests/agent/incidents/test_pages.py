"""The pages of metrics from before an incident."""

from __future__ import annotations

from rankwatch_agent.incidents.metrics_history import MAX_PAGE_BYTES, PAGE_INTERVAL_SECONDS, MetricsHistory
from support.agent.process import ManualClock


def pages(clock: ManualClock) -> MetricsHistory:
    """Pages that say when they were taken."""
    made = MetricsHistory(clock)
    made.set_source(lambda: b"%d" % clock.now)
    return made


def test_the_page_is_from_before_the_moment_and_at_most_about_twice_as_old() -> None:
    """For a stall of half a minute as for one of a quarter of an hour, in a page or two of any age."""
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


def test_without_an_older_page_the_oldest_there_is_has_to_do() -> None:
    """And without any there is none."""
    clock = ManualClock()
    kept = pages(clock)
    assert kept.before(clock.now) is None
    kept.keep()
    page = kept.before(clock.now - 50.0)
    assert page is not None and page.text == b"1000"


def test_without_an_agent_around_them_there_are_no_pages() -> None:
    """Nor where a page is too large to be kept."""
    clock = ManualClock()
    kept = MetricsHistory(clock)
    kept.keep()
    assert (kept.now(), kept.before(2000.0)) == (None, None)
    kept.set_source(lambda: bytes(MAX_PAGE_BYTES + 1))
    kept.keep()
    assert kept.before(2000.0) is None
