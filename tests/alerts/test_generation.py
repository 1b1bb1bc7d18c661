"""The committed rule files are what the generator writes, and Prometheus takes them."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from dataclasses import asdict, replace
from pathlib import Path

import pytest

import rankwatch_alerts
from rankwatch_alerts import RuleConfig, prometheus_config, to_yaml, write_all
from rankwatch_alerts.__main__ import main
from support.paths import ROOT
from support.servers.prometheus import require

GENERATED = ROOT / "alerts" / "generated"


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


def test_the_config_file_reaches_the_rules(tmp_path: Path) -> None:
    """What is raised there is raised in the expression."""
    file = tmp_path / "rules.toml"
    file.write_text("checkpoint_age_budget_seconds = 7200\n")
    assert main(["generate", "--output", str(tmp_path), "--config", str(file)]) == 0
    assert "> 7200" in (tmp_path / "alerts.rules.yml").read_text()


def test_the_effective_config_is_printed_and_nothing_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """File, time scale and flags together; a flag wins over the file."""
    file = tmp_path / "rules.toml"
    file.write_text("runbook_base_url = 'https://file.test'\nloss_deviation = 7\n")
    arguments = ["--config", str(file), "--runbook-base-url", "https://flag.test/", "--time-scale", "10"]
    assert main(["generate", "--output", str(tmp_path / "new"), *arguments, "--print-config"]) == 0
    printed = tomllib.loads(capsys.readouterr().out)
    expected = replace(RuleConfig(loss_deviation=7.0).scaled(10), runbook_base_url="https://flag.test")
    assert printed == asdict(expected)
    assert not (tmp_path / "new").exists()


def test_every_flag_has_a_help_text(capsys: pytest.CaptureFixture[str]) -> None:
    """Two columns for each."""
    with pytest.raises(SystemExit):
        main(["generate", "--help"])
    text = " ".join(capsys.readouterr().out.split("options:")[1].split())
    for flag in ("output", "config", "print-config", "time-scale", "runbook-base-url", "dashboard-base-url"):
        assert re.search(rf"--{flag} ([A-Z]+ )?[A-Za-z]\w+ [A-Za-z]+ ", text), flag


def test_a_flag_that_is_no_number_ends_with_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    """Status 2 and no page of usage."""
    with pytest.raises(SystemExit) as caught:
        main(["generate", "--time-scale", "fast"])
    assert caught.value.code == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


@pytest.mark.parametrize(
    ("module", "absent", "extra"),
    [
        ("rankwatch_alerts", "yaml", "alerts"),
        ("rankwatch_dashboards", "grafana_foundation_sdk", "dashboards"),
    ],
)
def test_a_missing_extra_is_named(module: str, absent: str, extra: str, tmp_path: Path) -> None:
    """One sentence, status 2 and no traceback where the third-party module is not installed."""
    code = (
        "import runpy, sys\n"
        f"sys.modules[{absent!r}] = None\n"
        f"sys.argv = ['x', 'generate', '--output', {str(tmp_path / 'out')!r}]\n"
        f"runpy.run_module({module!r}, run_name='__main__')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert f"could not import {absent}: in a clone of rankwatch, pip install '.[{extra}]'" in done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        *(["--time-scale", text] for text in ("0", "nan", "inf", "-1", "1e9")),
        *([f"--{which}-base-url", "https://w/{{ $labels.run }}"] for which in ("runbook", "dashboard")),
        ["--config", "/dev/null/rules.toml"],
        ["--output", "/dev/null/rules"],
    ],
)
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
