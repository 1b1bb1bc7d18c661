"""The page on the rules, docs/rules.md."""

from __future__ import annotations

import re
import subprocess
import tomllib
from dataclasses import fields
from pathlib import Path

from rankwatch_alerts import RuleConfig, load_config, write_rules
from rankwatch_alerts.reference import rules_reference
from support.servers.prometheus import require

PAGE = "\n".join(rules_reference({each.name: f"Meaning of {each.name}." for each in fields(RuleConfig)}))


def _block(language: str) -> str:
    (found,) = re.findall(rf"```{language}\n(.*?)```", PAGE, flags=re.DOTALL)
    return str(found)


def test_the_page_names_every_setting_with_default_and_meaning() -> None:
    """One row each."""
    for each in fields(RuleConfig):
        default = f'"{each.default}"' if isinstance(each.default, str) else f"{each.default:g}"
        assert f"| `{each.name}` | `{default}` | Meaning of {each.name}. |" in PAGE


def test_the_example_of_a_config_file_loads(tmp_path: Path) -> None:
    """As it is printed."""
    file = tmp_path / "rules.toml"
    file.write_text(_block("toml"))
    assert (
        load_config(file).checkpoint_age_budget_seconds
        == tomllib.loads(_block("toml"))["checkpoint_age_budget_seconds"]
    )


def test_prometheus_takes_the_example_configuration(tmp_path: Path) -> None:
    """As it is printed, beside the rules it names."""
    require("promtool")
    (tmp_path / "prometheus.yml").write_text(_block("yaml"))
    write_rules(RuleConfig(), tmp_path / "rules")
    command = ["promtool", "check", "config", str(tmp_path / "prometheus.yml")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "SUCCESS: 2 rule files found" in done.stdout + done.stderr
    assert "job_name: rankwatch\n    scrape_interval: 15s" in _block("yaml")
