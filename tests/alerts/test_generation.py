"""The committed rule files are what the generator writes, and Prometheus takes them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import rankwatch_alerts
from rankwatch_alerts import RuleConfig, prometheus_config, to_yaml, write_all
from rankwatch_alerts.__main__ import main
from support_prometheus import require

GENERATED = Path(__file__).parents[2] / "alerts" / "generated"


def test_generating_again_changes_no_byte(tmp_path: Path) -> None:
    """`python -m rankwatch_alerts generate` leaves the repository as it is."""
    written = write_all(RuleConfig(), tmp_path)
    assert sorted(each.name for each in written) == sorted(each.name for each in GENERATED.glob("[!.]*"))
    for each in written:
        assert each.read_bytes() == (GENERATED / each.name).read_bytes(), each.name


@pytest.mark.parametrize("time_scale", [1, 60, 1000])
def test_prometheus_accepts_the_rules_at_every_scale(tmp_path: Path, time_scale: float) -> None:
    """promtool finds no fault and no duplicate in rules or configuration."""
    require("promtool")
    config = RuleConfig().scaled(time_scale)
    rules = rankwatch_alerts.write_rules(config, tmp_path)
    path = tmp_path / "prometheus.yml"
    path.write_text(to_yaml(prometheus_config(config, rule_files=rules, agent_targets=["127.0.0.1:9477"])))
    result = subprocess.run(
        ["promtool", "check", "config", str(path)], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr
    lint = ["promtool", "check", "rules", "--lint=all", "--lint-fatal", *map(str, rules)]
    result = subprocess.run(lint, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


def test_the_command_writes_three_files_and_names_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Links follow the base URLs given."""
    status = main(["generate", "--output", str(tmp_path), "--runbook-base-url", "https://wiki.test/rw/"])
    assert status == 0
    assert len(capsys.readouterr().out.splitlines()) == 3
    assert "https://wiki.test/rw/RankwatchStraggler" in (tmp_path / "alerts.rules.yml").read_text()


@pytest.mark.parametrize("arguments", [["--time-scale", "0"], ["--output", "/dev/null/rules"]])
def test_wrong_input_ends_with_one_sentence_and_status_2(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No traceback."""
    assert main(["generate", "--output", str(tmp_path), *arguments]) == 2
    error = capsys.readouterr().err
    assert error.startswith("could not generate the rules: ")
    assert len(error.splitlines()) == 1


def test_the_public_names_are_those_written_down() -> None:
    """`__all__` is the interface other parts may rely on."""
    assert set(rankwatch_alerts.__all__) <= set(dir(rankwatch_alerts))
    assert {"RuleConfig", "write_rules", "alertmanager_config", "prometheus_config"} <= set(
        rankwatch_alerts.__all__
    )


def test_the_package_needs_no_parser_of_promql() -> None:
    """Lints need promql-parser; generating rules does not."""
    code = "import sys, rankwatch_alerts; sys.exit('promql_parser' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
