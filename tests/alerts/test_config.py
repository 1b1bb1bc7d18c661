"""The one object that holds every window and threshold."""

from __future__ import annotations

import inspect
from dataclasses import fields, replace

import pytest

from rankwatch_alerts import RuleConfig, RuleConfigError
from rankwatch_alerts.duration import duration


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0s"), (0.25, "250ms"), (1, "1s"), (1.5, "1500ms"), (90, "90s"), (300, "5m"), (7200, "2h")],
)
def test_durations_are_written_exactly_and_short(seconds: float, text: str) -> None:
    """Below a second in milliseconds, else in the largest unit that holds them without a rest."""
    assert duration(seconds) == text


def test_a_duration_below_a_millisecond_is_refused() -> None:
    """Prometheus has no such duration, and rounding it to zero would change its meaning."""
    with pytest.raises(ValueError, match="less than a millisecond"):
        duration(0.0001)


def test_scaling_divides_times_and_leaves_thresholds() -> None:
    """A tenth of each time, and the same numbers to compare with."""
    config = RuleConfig()
    scaled = config.scaled(10)
    assert scaled.step_window_seconds == config.step_window_seconds / 10
    assert scaled.straggler_for_seconds == config.straggler_for_seconds / 10
    assert scaled.straggler_residual == config.straggler_residual
    assert scaled.loss_deviation == config.loss_deviation


def test_scaling_by_one_changes_nothing() -> None:
    """Floors hold only what scaling would push below them."""
    assert RuleConfig().scaled(1) == RuleConfig()


@pytest.mark.parametrize("time_scale", [1, 7, 60, 1000])
def test_at_every_scale_times_hold_enough_scrapes(time_scale: float) -> None:
    """However far times are compressed, rates have samples and one slow event raises no straggler."""
    config = RuleConfig().scaled(time_scale)
    assert config.step_window_seconds >= 4 * config.scrape_interval_seconds
    assert config.straggler_for_seconds > config.step_window_seconds
    assert config.cause_for_seconds > config.step_window_seconds
    assert config.network_past_seconds > config.network_least_past_seconds
    assert config.absence_memory_seconds > config.absence_window_seconds


def test_every_field_tells_what_it_means() -> None:
    """A docstring follows each field."""
    source = inspect.getsource(RuleConfig)
    for each in fields(RuleConfig):
        assert f"    {each.name}: " in source
        after = source.split(f"    {each.name}: ", 1)[1].split("\n", 1)[1]
        assert after.lstrip().startswith('"""'), each.name


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"straggler_residual": 0}, "straggler_residual is 0; expected a number above 0"),
        ({"step_window_seconds": 30.0}, "step_window_seconds is 30.0; expected at least 4 scrape intervals"),
        ({"straggler_cost": float("nan")}, "straggler_cost is nan; expected a number above 0"),
        ({"cause_share": 1.0}, "cause_share is 1.0; expected a share below 1"),
        ({"confirm_seconds": 1e12}, "confirm_seconds is 1000000000000.0; expected a number of seconds from"),
        ({"straggler_for_seconds": 300.0}, "straggler_for_seconds is 300.0; expected more than step_window"),
        ({"cause_for_seconds": 300.0}, "cause_for_seconds is 300.0; expected more than step_window"),
        ({"network_least_past_seconds": 3e4}, "network_least_past_seconds is 30000.0; expected less than"),
        ({"jitter_rank_share": 1.0}, "jitter_rank_share is 1.0; expected a share below 1"),
        ({"agent_job": 'a"b'}, "agent_job is 'a\"b'; expected a name of letters"),
        ({"absence_memory_seconds": 60.0}, "absence_memory_seconds is 60.0; expected more than"),
    ],
)
def test_a_value_no_rule_can_work_with_is_refused(changes: dict[str, object], message: str) -> None:
    """The error names field, value and what was expected."""
    with pytest.raises(RuleConfigError, match=message):
        replace(RuleConfig(), **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("time_scale", [float("nan"), float("inf"), 0, -1, 1e9])
def test_an_absurd_time_scale_is_refused(time_scale: float) -> None:
    """Past the upper bound every time has long been at its floor."""
    with pytest.raises(RuleConfigError, match="expected a number above 0 and at most 1000"):
        RuleConfig().scaled(time_scale)


@pytest.mark.parametrize("field", ["runbook_base_url", "dashboard_base_url"])
@pytest.mark.parametrize(
    "url",
    [
        *("", "wiki", "ftp://wiki", "https://", "https://:80", "http://[", "http://a:b/", "http://a b/"),
        *("https://wiki/{{ $labels.run }}", "https://wiki?page=", "https://wiki#top", "https://wiki\n"),
    ],
)
def test_a_base_url_that_links_cannot_begin_with_is_refused(field: str, url: str) -> None:
    """Prometheus would expand braces, and the page is appended as a path."""
    with pytest.raises(RuleConfigError, match=rf"{field} is .*; expected an http\(s\) URL"):
        replace(RuleConfig(), **{field: url})  # type: ignore[arg-type]


@pytest.mark.parametrize("url", ["http://localhost:3000", "https://[::1]/x", "https://wiki.test/a/b-c_d~e/"])
def test_an_ordinary_base_url_is_taken(url: str) -> None:
    """With a port, a path or an IPv6 host."""
    assert replace(RuleConfig(), runbook_base_url=url).runbook_base_url == url
