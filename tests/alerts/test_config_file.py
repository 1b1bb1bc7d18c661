"""The rule configuration as a TOML file."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankwatch_alerts import RuleConfig, RuleConfigError, load_config
from rankwatch_alerts.config_toml import to_toml


@pytest.mark.parametrize("config", [RuleConfig(), RuleConfig.for_demo()])
def test_what_is_printed_loads_to_the_same_rules(config: RuleConfig, tmp_path: Path) -> None:
    """Every field, every number exactly."""
    file = tmp_path / "rules.toml"
    file.write_text(to_toml(config))
    assert load_config(file) == config


def test_a_file_sets_what_it_names_and_leaves_the_rest(tmp_path: Path) -> None:
    """A whole number will do where a number is expected."""
    file = tmp_path / "rules.toml"
    file.write_text("checkpoint_age_budget_seconds = 7200\n")
    assert load_config(file) == RuleConfig(checkpoint_age_budget_seconds=7200.0)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            "straggler_residul = 1",
            "has the key 'straggler_residul'; expected one of scrape_interval_seconds, ",
        ),
        ("straggler_residual = '1'", "straggler_residual is '1'; expected a number"),
        ("straggler_residual = true", "straggler_residual is True; expected a number"),
        ("straggler_residual = nan", "straggler_residual is nan; expected a number above 0"),
        ("confirm_seconds = 1" + 400 * "0", "confirm_seconds is too large; expected a number"),
        ("alert_limit = 1.5", "alert_limit is 1.5; expected a whole number"),
        ("agent_job = 1", "agent_job is 1; expected a string"),
        ("[alert_limit]", "alert_limit is {}; expected a whole number"),
        ("runbook_base_url = 'https://w/{{'", "runbook_base_url is 'https://w/{{'; expected an http"),
        ("step_window_seconds = ", "could not parse config file"),
        ("\udcff", "could not parse config file"),
    ],
)
def test_a_wrong_file_is_told_in_one_sentence(content: str, message: str, tmp_path: Path) -> None:
    """Field, value and what was expected, and which file."""
    file = tmp_path / "rules.toml"
    file.write_text(content, errors="surrogateescape")
    with pytest.raises(RuleConfigError) as caught:
        load_config(file)
    assert message in str(caught.value)
    assert str(file) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_cannot_be_read_is_told_in_one_sentence(tmp_path: Path) -> None:
    """Missing, or a directory."""
    for file in (tmp_path / "none.toml", tmp_path):
        with pytest.raises(RuleConfigError, match="could not read config file"):
            load_config(file)
