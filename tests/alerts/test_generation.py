"""The committed rule files are what the generator writes, and Prometheus takes them."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from dataclasses import asdict, fields, replace
from pathlib import Path

import pytest

import rankwatch_alerts
from rankwatch.settings import toml_value
from rankwatch_alerts import RuleConfig, load_config, prometheus_config, to_yaml, write_all, write_rules
from rankwatch_alerts.__main__ import main
from rankwatch_alerts.reference import rules_reference
from support.paths import ROOT
from support.servers.prometheus import require

GENERATED = ROOT / "alerts" / "generated"


def test_committed_files(tmp_path: Path) -> None:
    """`python -m rankwatch_alerts generate` leaves the repository as it is."""
    written = write_all(RuleConfig(), tmp_path)
    assert sorted(each.name for each in written) == sorted(each.name for each in GENERATED.glob("[!.]*"))
    for each in written:
        assert each.read_bytes() == (GENERATED / each.name).read_bytes(), each.name


@pytest.mark.process
@pytest.mark.parametrize("time_scale", [1, 60, 1000])
def test_promtool_check(tmp_path: Path, time_scale: float) -> None:
    """At every time scale promtool finds no fault and no duplicate in rules or configuration."""
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


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It writes the files and prints their paths; links follow the base URLs given."""
    status = main(["generate", "--output", str(tmp_path), "--runbook-base-url", "https://wiki.test/rw/"])
    assert status == 0
    assert sorted(capsys.readouterr().out.split()) == sorted(str(each) for each in tmp_path.iterdir())
    assert "https://wiki.test/rw/RankwatchRunSlow" in (tmp_path / "alerts.rules.yml").read_text()


def test_config_file(tmp_path: Path) -> None:
    """A threshold raised there is raised in the expressions."""
    file = tmp_path / "rules.toml"
    file.write_text("checkpoint_age_budget_seconds = 7200\n")
    assert main(["generate", "--output", str(tmp_path), "--config", str(file)]) == 0
    assert "+ 7200" in (tmp_path / "recording.rules.yml").read_text()


def test_print_config(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The effective config of file, time scale and flags, where a flag wins; no file is written."""
    file = tmp_path / "rules.toml"
    file.write_text("runbook_base_url = 'https://file.test'\nloss_deviation = 7\n")
    arguments = ["--config", str(file), "--runbook-base-url", "https://flag.test/", "--time-scale", "10"]
    assert main(["generate", "--output", str(tmp_path / "new"), *arguments, "--print-config"]) == 0
    printed = tomllib.loads(capsys.readouterr().out)
    expected = replace(RuleConfig(loss_deviation=7.0).scaled(10), runbook_base_url="https://flag.test")
    lists = {name: list(value) for name, value in asdict(expected).items() if isinstance(value, tuple)}
    assert printed == asdict(expected) | lists
    assert not (tmp_path / "new").exists()


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    """Two columns for each."""
    with pytest.raises(SystemExit):
        main(["generate", "--help"])
    text = " ".join(capsys.readouterr().out.split("options:")[1].split())
    for flag in ("output", "config", "print-config", "time-scale", "runbook-base-url", "dashboard-base-url"):
        assert re.search(rf"--{flag} ([A-Z]+ )?[A-Za-z]\w+ [A-Za-z]+ ", text), flag


def test_wrong_flag(capsys: pytest.CaptureFixture[str]) -> None:
    """Status 2 and no page of usage."""
    with pytest.raises(SystemExit) as caught:
        main(["generate", "--time-scale", "fast"])
    assert caught.value.code == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


@pytest.mark.process
@pytest.mark.parametrize(
    ("module", "absent", "extra"),
    [
        ("rankwatch_alerts", "yaml", "alerts"),
        ("rankwatch_dashboards", "grafana_foundation_sdk", "dashboards"),
    ],
)
def test_missing_extra(module: str, absent: str, extra: str, tmp_path: Path) -> None:
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
def test_wrong_input(arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One sentence, status 2, no traceback."""
    assert main(["generate", "--output", str(tmp_path), *arguments]) == 2
    error = capsys.readouterr().err
    assert error.startswith("could not generate the rules: ")
    assert len(error.splitlines()) == 1


def test_public_names() -> None:
    """`__all__` is the interface other parts may rely on."""
    assert set(rankwatch_alerts.__all__) <= set(dir(rankwatch_alerts))
    assert {"RuleConfig", "write_rules", "alertmanager_config", "prometheus_config"} <= set(
        rankwatch_alerts.__all__
    )


PAGE = "\n".join(rules_reference({each.name: f"Meaning of {each.name}." for each in fields(RuleConfig)}))


def _blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, flags=re.DOTALL)


def test_page_lists_every_setting() -> None:
    """One row each."""
    for name, value in asdict(RuleConfig()).items():
        number = isinstance(value, int | float) and not isinstance(value, bool)
        default = f"{value:g}" if number else toml_value(value)
        assert f"| `{name}` | `{default}` | Meaning of {name}. |" in PAGE


@pytest.mark.parametrize("block", _blocks("toml"), ids=["rules", "notifications"])
def test_page_config_loads(block: str, tmp_path: Path) -> None:
    """As it is printed."""
    file = tmp_path / "rules.toml"
    file.write_text(block)
    loaded = asdict(load_config(file))
    for name, value in tomllib.loads(block).items():
        assert loaded[name] == (tuple(value) if isinstance(value, list) else value)


@pytest.mark.process
def test_page_prometheus_config(tmp_path: Path) -> None:
    """As it is printed, beside the rules it names."""
    require("promtool")
    (config,) = _blocks("yaml")
    (tmp_path / "prometheus.yml").write_text(config)
    write_rules(RuleConfig(), tmp_path / "rules")
    command = ["promtool", "check", "config", str(tmp_path / "prometheus.yml")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "SUCCESS: 2 rule files found" in done.stdout + done.stderr
    assert "job_name: rankwatch\n    scrape_interval: 15s" in config
