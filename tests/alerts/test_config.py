"""The windows and thresholds of the rules."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from rankwatch.errors import SettingError
from rankwatch.settings import FieldError, field_help, field_names, to_toml
from rankwatch_alerts import RuleConfig, load_config
from rankwatch_alerts.rules import duration


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0s"), (0.25, "250ms"), (1, "1s"), (1.5, "1500ms"), (90, "90s"), (300, "5m"), (7200, "2h")],
)
def test_duration(seconds: float, text: str) -> None:
    """In milliseconds below a second, else in the largest unit without a remainder."""
    assert duration(seconds) == text


def test_duration_below_a_millisecond() -> None:
    """Prometheus has no such duration, and zero would mean something else."""
    with pytest.raises(ValueError, match="less than a millisecond"):
        duration(0.0001)


def test_scaling() -> None:
    """A tenth of each time, and the same numbers to compare with."""
    config = RuleConfig()
    scaled = config.scaled(10)
    assert scaled.step_window_seconds == config.step_window_seconds / 10
    assert scaled.straggler_for_seconds == config.straggler_for_seconds / 10
    assert scaled.straggler_residual == config.straggler_residual
    assert scaled.loss_deviation == config.loss_deviation


def test_every_time_is_scaled() -> None:
    """A time that stays at half an hour never passes in a demo."""
    scaled = RuleConfig().scaled(10)
    times = {name for name in field_names(RuleConfig) if name.endswith("_seconds")}
    same = {name for name in times if getattr(scaled, name) == getattr(RuleConfig(), name)}
    # thresholds: a slow save is as long in a demo
    assert same == {"clock_error_seconds", "checkpoint_write_skew_seconds", "checkpoint_slow_seconds"}


def test_scaling_by_one() -> None:
    """Floors apply only to times that scaling would push below them."""
    assert RuleConfig().scaled(1) == RuleConfig()


@pytest.mark.parametrize("time_scale", [1, 7, 60, 1000])
def test_scaled_times_hold_enough_scrapes(time_scale: float) -> None:
    """At any scale, rates have samples and one slow event raises no straggler."""
    config = RuleConfig().scaled(time_scale)
    assert config.step_window_seconds >= 4 * config.scrape_interval_seconds
    assert config.straggler_for_seconds > config.step_window_seconds
    assert config.cause_for_seconds > config.step_window_seconds
    assert config.network_baseline_seconds > config.network_min_baseline_seconds
    assert config.absence_lookback_seconds > config.absence_window_seconds


def test_every_setting_has_a_help_text() -> None:
    assert tuple(field_help(RuleConfig)) == field_names(RuleConfig)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"straggler_residual": 0}, "straggler_residual = 0: expected a number above 0"),
        ({"step_window_seconds": 30.0}, "step_window_seconds = 30.0: expected at least 4 scrape intervals"),
        ({"straggler_cost": float("nan")}, "straggler_cost = nan: expected a number above 0"),
        ({"phase_share": 1.0}, "phase_share = 1.0: expected a share below 1"),
        (
            {"success_objectives": {"default": 1.0}},
            "expected names of classes, among them default, with shares above 0 and below 1",
        ),
        ({"goodput_objectives": {"production": 0.9}}, "expected names of classes, among them default"),
        ({"confirm_seconds": 1e12}, "confirm_seconds = 1000000000000.0: expected a number of seconds from"),
        ({"straggler_for_seconds": 300.0}, "straggler_for_seconds = 300.0: expected more than step_window"),
        ({"cause_for_seconds": 300.0}, "cause_for_seconds = 300.0: expected more than step_window"),
        ({"network_min_baseline_seconds": 3e4}, "expected more than network_min_baseline_seconds"),
        ({"jitter_rank_share": 1.0}, "jitter_rank_share = 1.0: expected a share below 1"),
        ({"agent_job": 'a"b'}, "agent_job = 'a\"b': expected a name of letters"),
        ({"prometheus_shards": ("a:1", "b:1")}, "prometheus_fleet = '': expected host:port, because"),
        ({"prometheus_shards": ("a:1",), "prometheus_fleet": "c:1"}, "expected host:port of two or more"),
        ({"prometheus_shards": ("a:1", "http://b:1"), "prometheus_fleet": "c:1"}, "prometheus_shards = "),
        ({"prometheus_shards": ("a:1", "b:1"), "prometheus_fleet": "b:1"}, "none of them twice"),
        ({"prometheus_fleet": "c"}, "prometheus_fleet = 'c': expected host:port"),
        ({"alertmanager_address": ""}, "alertmanager_address = '': expected host:port"),
        ({"absence_lookback_seconds": 60.0}, "absence_lookback_seconds = 60.0: expected more than"),
    ],
)
def test_wrong_values(changes: dict[str, object], message: str) -> None:
    """The error names field, value and what is expected."""
    with pytest.raises(FieldError, match=message):
        replace(RuleConfig(), **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("time_scale", [float("nan"), float("inf"), 0, -1, 1e9])
def test_wrong_time_scale(time_scale: float) -> None:
    """One sentence: no scale, or one beyond the upper bound."""
    with pytest.raises(FieldError, match="expected a number above 0 and at most 1000"):
        RuleConfig().scaled(time_scale)


@pytest.mark.parametrize("field", ["runbook_base_url", "dashboard_base_url"])
@pytest.mark.parametrize(
    "url",
    [
        *("wiki", "ftp://wiki", "https://", "https://:80", "http://[", "http://a:b/", "http://a b/"),
        *("https://wiki/{{ $labels.run }}", "https://wiki?page=", "https://wiki#top", "https://wiki\n"),
    ],
)
def test_wrong_base_url(field: str, url: str) -> None:
    """Prometheus expands braces, and the page is appended as a path."""
    with pytest.raises(FieldError, match=rf"{field} = .*: expected an http\(s\) URL"):
        replace(RuleConfig(), **{field: url})  # type: ignore[arg-type]


@pytest.mark.parametrize("url", ["http://localhost:3000", "https://[::1]/x", "https://wiki.test/a/b-c_d~e/"])
def test_base_url(url: str) -> None:
    """With a port, a path or an IPv6 host."""
    assert replace(RuleConfig(), runbook_base_url=url).runbook_base_url == url


@pytest.mark.parametrize("config", [RuleConfig(), RuleConfig.for_demo()])
def test_printed_settings_load_to_the_same_rules(config: RuleConfig, tmp_path: Path) -> None:
    """Every field, every number exactly."""
    file = tmp_path / "rules.toml"
    file.write_text(to_toml(config))
    assert load_config(file) == config


def test_file(tmp_path: Path) -> None:
    """A file sets the fields it names. A whole number is accepted for a float."""
    file = tmp_path / "rules.toml"
    file.write_text("checkpoint_age_budget_seconds = 7200\n")
    assert load_config(file) == RuleConfig(checkpoint_age_budget_seconds=7200.0)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("straggler_residul = 1", "no setting has this name; did you mean straggler_residual"),
        ("straggler_residual = '1'", "straggler_residual = '1' from file rules.toml: expected a number"),
        (
            "straggler_residual = nan",
            "straggler_residual = nan from file rules.toml: expected a number a",
        ),
        ("confirm_seconds = 1" + 400 * "0", "rules.toml: expected a number"),
        (
            "straggler_stage_ranks = 1.5",
            "straggler_stage_ranks = 1.5 from file rules.toml: expected a whole number",
        ),
        ("agent_job = 1", "agent_job = 1 from file rules.toml: expected a string"),
        ("runbook_base_url = 'https://w/{{'", "'https://w/{{' from file rules.toml: expected an http"),
    ],
)
def test_wrong_file(content: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names field, value, file and what is expected."""
    monkeypatch.chdir(tmp_path)
    file = Path("rules.toml")
    file.write_text(content)
    with pytest.raises(SettingError) as caught:
        load_config(file)
    assert message in str(caught.value)


def test_flags_win_over_the_file(tmp_path: Path) -> None:
    """Names that are no settings are left out; an error names the flag."""
    file = tmp_path / "rules.toml"
    file.write_text('agent_job = "file"\nrunbook_base_url = "https://file"\n')
    config = load_config(file, {"runbook_base_url": "https://flag", "output": "x"})
    assert (config.agent_job, config.runbook_base_url) == ("file", "https://flag")
    with pytest.raises(FieldError, match="= 'wiki' from flag --runbook-base-url: expected an http"):
        load_config(None, {"runbook_base_url": "wiki"})
