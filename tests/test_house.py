"""The plan of the house: imports run one way, importing does nothing, names come from one place."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rankwatch.conventions import METRICS

ROOT = Path(__file__).parents[1]
FOLDERS = {
    "rankwatch": "instrumentation",
    "rankwatch_alerts": "alerts",
    "rankwatch_dashboards": "dashboards",
    "rankwatch_agent": "agent",
    "rankwatch_diagnosis": "diagnosis",
    "rankwatch_trainer": "reference_trainer",
    "rankwatch_cli": "cli",
}
ALLOWED = {
    "rankwatch": set(),
    "rankwatch_alerts": {"rankwatch"},
    "rankwatch_dashboards": {"rankwatch", "rankwatch_alerts"},
    "rankwatch_agent": {"rankwatch"},
    "rankwatch_diagnosis": {"rankwatch", "rankwatch_agent"},
    "rankwatch_trainer": {"rankwatch"},
    "rankwatch_cli": {
        "rankwatch",
        "rankwatch_alerts",
        "rankwatch_dashboards",
        "rankwatch_agent",
        "rankwatch_diagnosis",
    },
}
"""What each floor may import. The command line stands on top of everything, and nothing imports it."""


def modules(package: str) -> Iterator[Path]:
    yield from sorted((ROOT / FOLDERS[package] / package).rglob("*.py"))


def imported(path: Path) -> set[str]:
    """Top-level packages a module imports, anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {each.name.partition(".")[0] for each in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.partition(".")[0])
    return found


@pytest.mark.parametrize("package", sorted(FOLDERS))
def test_imports_run_one_way(package: str) -> None:
    """A floor imports only what lies below it."""
    for path in modules(package):
        ours = imported(path) & set(FOLDERS) - {package}
        assert ours <= ALLOWED[package], f"{path} imports {ours - ALLOWED[package]}"


def test_the_agent_never_imports_torch() -> None:
    """It runs on nodes without torch, NumPy or pyarrow, and in 80 MiB."""
    for path in modules("rankwatch_agent"):
        assert not imported(path) & {"torch", "numpy", "pyarrow"}, path


def test_importing_a_module_does_nothing(tmp_path: Path) -> None:
    """No file, no thread, no output, for any module of ours."""
    names = [
        ".".join(path.relative_to(ROOT / FOLDERS[package]).with_suffix("").parts).removesuffix(".__init__")
        for package in FOLDERS
        for path in modules(package)
        if path.name != "__main__.py"
    ]
    code = (
        "import importlib, sys, threading\n"
        f"for name in {names!r}: importlib.import_module(name)\n"
        "assert threading.active_count() == 1, threading.enumerate()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert list(tmp_path.iterdir()) == []


def test_every_metric_name_in_the_tree_is_declared() -> None:
    """Code, rules, dashboards, runbooks and documents speak only names of rankwatch.conventions."""
    declared = {each.name for each in METRICS}
    derived = declared | {f"{name}{suffix}" for name in declared for suffix in ("_bucket", "_sum", "_count")}
    derived |= {name.removesuffix("_total") for name in declared}
    modules_and_words = {*FOLDERS, "rankwatch_exporter"}
    name = re.compile(r"(?<![:\w])rankwatch_[a-z0-9_]+\b(?!:)")
    for path in _texts():
        for found in set(name.findall(path.read_text(errors="replace"))) - derived - modules_and_words:
            assert any(each.startswith(found) for each in declared if found.endswith("_")), f"{path}: {found}"


def _texts() -> Iterator[Path]:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False).stdout
    if not listed:
        pytest.skip("the tree is no git checkout, so its files cannot be listed")
    for name in listed.splitlines():
        path = ROOT / name
        if path.suffix in {".py", ".md", ".yml", ".yaml", ".json"} and not name.startswith("tests/"):
            yield path


def test_every_python_file_fits_on_a_few_screens() -> None:
    """A file is one concept; one that needs a table of contents is two."""
    for package in FOLDERS:
        for path in modules(package):
            assert len(path.read_text().splitlines()) <= 400, path
