"""The committed dashboards are what the generator writes."""

from __future__ import annotations

from pathlib import Path

import pytest

import rankwatch_dashboards
from rankwatch_alerts import RUN_DEBUG_UID, RuleConfig, alert_groups
from rankwatch_dashboards import write_dashboards
from rankwatch_dashboards.__main__ import main
from support.paths import ROOT

GENERATED = ROOT / "dashboards" / "generated"
LARGEST_BYTES = 200 * 1024
"""Client-side apply of a ConfigMap keeps a copy in an annotation of at most 256 KiB."""


def test_generating_again_changes_no_byte(tmp_path: Path) -> None:
    """`python -m rankwatch_dashboards generate` leaves the repository as it is."""
    written = write_dashboards(RuleConfig(), tmp_path)
    assert sorted(each.name for each in written) == sorted(each.name for each in GENERATED.glob("[!.]*"))
    for each in written:
        assert each.read_bytes() == (GENERATED / each.name).read_bytes(), each.name


def test_a_dashboard_fits_into_a_configmap() -> None:
    """Larger ones are refused by kubectl."""
    assert all(each.stat().st_size < LARGEST_BYTES for each in GENERATED.glob("[!.]*"))


def test_the_command_writes_the_dashboard_and_names_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Into a directory that need not exist."""
    assert main(["generate", "--output", str(tmp_path / "new")]) == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / "new" / f"{RUN_DEBUG_UID}.json")


def test_a_directory_that_cannot_be_made_is_told_in_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    """Status 2 and no traceback."""
    assert main(["generate", "--output", "/dev/null/dashboards"]) == 2
    assert capsys.readouterr().err.startswith("could not generate the dashboards: ")


def test_the_config_file_of_the_rules_moves_the_lines(tmp_path: Path) -> None:
    """A panel draws the threshold its alert uses."""
    file = tmp_path / "rules.toml"
    file.write_text("checkpoint_age_budget_seconds = 7654\n")
    assert main(["generate", "--output", str(tmp_path), "--config", str(file)]) == 0
    assert "7654" in (tmp_path / f"{RUN_DEBUG_UID}.json").read_text()


def test_a_wrong_config_file_is_told_in_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Status 2 and no traceback."""
    file = tmp_path / "rules.toml"
    file.write_text("loss_deviation = 'high'\n")
    assert main(["generate", "--output", str(tmp_path), "--config", str(file)]) == 2
    error = capsys.readouterr().err
    assert f"loss_deviation = 'high' from file {file}: expected a number" in error
    assert len(error.splitlines()) == 1


def test_alerts_link_to_a_dashboard_there_is() -> None:
    """The uid in every dashboard_url is that of a generated file."""
    for group in alert_groups(RuleConfig()):
        for rule in group.rules:
            annotations = rule.as_dict()["annotations"]
            assert isinstance(annotations, dict)
            uid = str(annotations["dashboard_url"]).split("/d/")[1].split("?")[0]
            assert (GENERATED / f"{uid}.json").exists()


def test_the_public_names_are_those_written_down() -> None:
    """`__all__` is the interface other parts may rely on."""
    assert rankwatch_dashboards.__all__ == ["dashboards", "write_dashboards"]
