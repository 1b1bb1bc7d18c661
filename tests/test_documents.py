"""The documents tell the truth: their code runs, their links exist, and nothing is left out of them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest

from rankwatch_alerts import ALERT_NAMES, RuleConfig, alert_rules, load_config
from rankwatch_alerts.checks import violations
from rankwatch_cli.main import commands_for
from support.alerts.reasons import ALERTS
from support.jobs.forked_ranks import shared_ranks
from support.paths import ROOT

PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("runbooks/*.md")])
README = (ROOT / "README.md").read_text()


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(), flags=re.DOTALL)


FRAMEWORKS = {"structlog", "loguru"}


def marks(code: str) -> list[pytest.MarkDecorator]:
    needed = FRAMEWORKS & set(re.findall(r"^import (\w+)", code, flags=re.MULTILINE))
    skipped = [pytest.mark.skipif(find_spec(each) is None, reason=f"needs {each}") for each in needed]
    return [
        *skipped,
        *([pytest.mark.frameworks] if needed else []),
    ]


PROGRAMS = [
    pytest.param(code, id=f"{name}-{number}", marks=marks(code))
    for name in ("README.md", "docs/instrumentation.md", "docs/logs.md")
    for number, code in enumerate(blocks(ROOT / name, "python"), start=1)
]


@pytest.mark.process
@pytest.mark.parametrize("code", PROGRAMS)
def test_python(code: str, tmp_path: Path) -> None:
    """Every printed program runs, a distributed one on two ranks, and each rank leaves a black box."""
    program, log = tmp_path / "train.py", tmp_path / "log"
    program.write_text(code.replace("200", "20"))  # steps
    if "init_process_group" in code:
        recorded = {"RANKWATCH_DIR": str(tmp_path), "RANKWATCH_RUN": "job"}
        assert shared_ranks().run((str(program),), recorded, ranks=2, log=log) == [0, 0], log.read_text()
        assert len(list(tmp_path.glob("job/*.blackbox"))) == 2
    else:
        env = {**os.environ, "RANKWATCH_DIR": str(tmp_path)}
        subprocess.run([sys.executable, "-W", "error", program], env=env, check=True)
        assert list(tmp_path.glob("*/0.blackbox"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    """Every relative link of every page."""
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_in_the_documents_exist(page: Path) -> None:
    """`rankwatch X` and `make X`, wherever they are printed."""
    text = page.read_text()
    made = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    for command in re.findall(r"(?:^|`|^\$ )rankwatch ([a-z]+)", text, flags=re.MULTILINE):
        assert command in commands_for(()), f"{page.name} names rankwatch {command}"
    for target in re.findall(r"(?:^|`)make ([a-z0-9-]+)", text, flags=re.MULTILINE):
        assert target in made, f"{page.name} names make {target}"


def test_alerts_are_listed() -> None:
    """docs/alerts.md has a row for every alert: its runbook, its reasons, and whether it can page."""
    page = (ROOT / "docs" / "alerts.md").read_text()
    pages = {rule.alert for rule in alert_rules(RuleConfig()) if rule.severity in (None, "critical")}
    for name in ALERT_NAMES:
        (row,) = re.findall(rf"^\| `{name}` \|.*$", page, flags=re.MULTILINE)
        assert f"[page](../runbooks/{name}.md)" in row
        assert row.split(" | ")[1] == ("yes" if name in pages else "no"), name
        assert [each for each in ALERTS[name] if f"`{each}`" not in row] == []


@pytest.mark.parametrize("name", ["rules", "alerts", "adopting"])
def test_settings_in_the_documents(name: str, tmp_path: Path) -> None:
    """Printed settings of rules are taken as they are, and make rules that are sound."""
    printed = blocks(ROOT / "docs" / f"{name}.md", "toml")
    assert printed
    for text in printed:
        (tmp_path / "rankwatch.toml").write_text(text)
        assert violations(load_config(tmp_path / "rankwatch.toml")) == []


def test_pages_are_listed() -> None:
    """docs/index.md leads to every page of the documentation."""
    index = (ROOT / "docs" / "index.md").read_text()
    for page in (ROOT / "docs").rglob("*.md"):
        name = page.relative_to(ROOT / "docs").as_posix()
        assert name == "index.md" or f"({name})" in index, name


def test_dependencies_have_a_reason() -> None:
    """The README says of every dependency why it is there."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for extra, requirements in project["optional-dependencies"].items():
        for requirement in requirements if extra != "all" else ():
            assert f"`{re.split('[<>=]', requirement)[0]}`" in README, requirement


def test_the_readme_shows_a_command_its_output_and_a_picture_within_thirty_lines() -> None:
    """Whoever opens it sees what it does."""
    head = "\n".join(README.splitlines()[:30])
    assert "make demo" in head
    assert "RankwatchRunSlow" in head
    assert "](docs/images/" in head


@pytest.mark.process
@pytest.mark.parametrize("subject", ["metrics", "slis", "settings", "rules"])
def test_the_references_are_what_the_declarations_say(subject: str) -> None:
    """`make generate` rewrites them."""
    printed = subprocess.run(
        [sys.executable, "-m", "rankwatch_cli", "reference", subject],
        capture_output=True,
        text=True,
        check=True,
    )
    assert printed.stdout == (ROOT / "docs" / f"{subject}.md").read_text()


@pytest.mark.process
def test_no_path_of_a_machine_and_no_registry_is_written_down() -> None:
    """What is committed works elsewhere."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False).stdout
    if not listed:
        pytest.skip("the tree is no git checkout, so its files cannot be listed")
    places = r"/home/[a-z]|/root/|/work/(?:main|shared)"
    registries = r"pypi\.org|files\.pythonhosted|extra-index-url|find-links"
    forbidden = re.compile(f"{places}|{registries}")
    for name in listed.splitlines():
        if name != "tests/test_documents.py":
            found = forbidden.search((ROOT / name).read_text(errors="replace"))
            assert not found, f"{name}: {found}"
