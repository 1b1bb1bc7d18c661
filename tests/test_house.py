"""The structure: imports run one way, importing does nothing, names come from one place."""

from __future__ import annotations

import ast
import graphlib
import re
import subprocess
import sys
from collections.abc import Iterator, Set
from functools import cache
from pathlib import Path

import pytest

from rankwatch.conventions.metrics import METRICS
from support.paths import ROOT

FOLDERS = {
    "rankwatch": "instrumentation",
    "rankwatch_alerts": "alerts",
    "rankwatch_dashboards": "dashboards",
    "rankwatch_agent": "agent",
    "rankwatch_diagnosis": "diagnosis",
    "rankwatch_cli": "cli",
    "rankwatch_checkpoints": "optional",
    "rankwatch_profiler_traces": "optional",
    "rankwatch_spans": "optional",
    "rankwatch_trainer": "reference_trainer",
}
ALLOWED = {
    "rankwatch": set(),
    "rankwatch_alerts": {"rankwatch"},
    "rankwatch_dashboards": {"rankwatch", "rankwatch_alerts"},
    "rankwatch_agent": {"rankwatch"},
    "rankwatch_diagnosis": {"rankwatch", "rankwatch_agent"},
    "rankwatch_cli": {
        "rankwatch",
        "rankwatch_alerts",
        "rankwatch_dashboards",
        "rankwatch_agent",
        "rankwatch_diagnosis",
    },
    "rankwatch_checkpoints": {"rankwatch", "rankwatch_agent", "rankwatch_cli"},
    "rankwatch_profiler_traces": {"rankwatch", "rankwatch_agent", "rankwatch_diagnosis", "rankwatch_cli"},
    "rankwatch_spans": {"rankwatch", "rankwatch_agent"},
    "rankwatch_trainer": {"rankwatch", "rankwatch_checkpoints"},
}
"""What each floor may import. Of the core, the command line stands on top, and nothing of it imports what is
optional: that is found by entry points."""


AGENT_FLOORS = {
    "runtime": set(),
    "sources": {"runtime"},
    "training": {"runtime"},
    "incidents": {"runtime", "sources", "training"},
    "collectors": {"runtime", "sources", "training", "incidents"},
}
"""What each folder of the agent may import of the others. `agent` stands on all of them."""
DOOR = "agent/rankwatch_agent/incidents/diagnosis.py"
"""The one place in the agent that names the diagnosis: it runs it in a process of its own."""
HEAVY = {"torch", "numpy", "pyarrow"}
MAY_LOAD = {
    "rankwatch_diagnosis": {"numpy", "pyarrow"},
    "rankwatch_cli": {"numpy", "pyarrow"},
    "rankwatch_profiler_traces": {"numpy", "pyarrow"},
    "rankwatch_trainer": {"torch", "numpy"},
}
"""Heavy libraries that importing a package may load. The instrumentation finds torch in its process."""


def modules(package: str) -> Iterator[Path]:
    yield from sorted((ROOT / FOLDERS[package] / package).rglob("*.py"))


def names(package: str) -> list[str]:
    """Dotted names of the modules of a package, without those that run when they are imported, and without
    those that import a framework, which may be absent."""
    return [
        ".".join(path.relative_to(ROOT / FOLDERS[package]).with_suffix("").parts).removesuffix(".__init__")
        for path in modules(package)
        if path.name != "__main__.py"
        and (path.parent.name != "integrations" or path.name in ("__init__.py", "frameworks.py"))
    ]


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def imported(path: Path) -> set[str]:
    """Dotted names that a module imports, anywhere in it."""
    found = set()
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            found |= {each.name for each in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found |= {node.module, *(f"{node.module}.{each.name}" for each in node.names)}
    return found


def tops(path: Path) -> set[str]:
    return {name.partition(".")[0] for name in imported(path)}


def loaded_by(package: str, directory: Path) -> set[str]:
    """Top-level modules that a process has loaded once it has imported every module of a package."""
    code = (
        "import importlib, sys, threading\n"
        f"for name in {names(package)!r}: importlib.import_module(name)\n"
        "assert threading.active_count() == 1, threading.enumerate()\n"
        "print(*{name.partition('.')[0] for name in sys.modules})\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=directory, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("\n") == 1, "importing a module prints nothing"
    assert list(directory.iterdir()) == [], "importing a module writes nothing"
    return set(done.stdout.split())


@pytest.mark.parametrize("package", sorted(FOLDERS))
def test_floors(package: str) -> None:
    """A package imports only what lies below it, at the top of a module or later."""
    for path in modules(package):
        ours = tops(path) & set(FOLDERS) - {package}
        assert ours <= ALLOWED[package], f"{path} imports {ours - ALLOWED[package]}"


@pytest.mark.process
@pytest.mark.parametrize("package", sorted(FOLDERS))
def test_loaded_modules(package: str, tmp_path: Path) -> None:
    """Importing a package loads only what lies below it, starts no thread and touches no file."""
    loaded = loaded_by(package, tmp_path)
    assert loaded & set(FOLDERS) - {package} <= ALLOWED[package]
    assert loaded & HEAVY <= MAY_LOAD.get(package, set())


def test_agent_floors() -> None:
    """Sources and training know nothing of each other; nothing below knows what stands above."""
    for floor, allowed in AGENT_FLOORS.items():
        for path in (ROOT / "agent" / "rankwatch_agent" / floor).rglob("*.py"):
            parts = {name.split(".")[1] for name in imported(path) if name.startswith("rankwatch_agent.")}
            assert parts - {floor} <= allowed, f"{path} imports {parts - {floor} - allowed}"


def test_agent_needs_no_heavy_library() -> None:
    """It runs on nodes without torch, NumPy or pyarrow, in 80 MiB, and imports them nowhere."""
    for path in modules("rankwatch_agent"):
        assert not tops(path) & HEAVY, path


def test_door_to_the_diagnosis() -> None:
    """The agent names the diagnosis in one module, and the command line in none."""
    for path in modules("rankwatch_agent"):
        text = path.read_text()
        assert "rankwatch_cli" not in text, path
        assert "rankwatch_diagnosis" not in text or path == ROOT / DOOR, path


NAMES_PYTHON = {
    "instrumentation/rankwatch/processes.py": "builds every command line",
    "instrumentation/rankwatch/lifecycle.py": "takes that of the command instead, where there is one",
    "instrumentation/rankwatch/automatic/launching.py": "tells ranks which Python has the command",
    "instrumentation/rankwatch/automatic/site/sitecustomize.py": "names it in a message",
}


def test_one_command_line_of_children() -> None:
    """Children in this Python are started by one function: without -P they run modules of the directory in
    which an operator stands."""
    found = {
        str(path.relative_to(ROOT))
        for package in FOLDERS
        for path in modules(package)
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.Attribute) and node.attr == "executable"
    }
    assert found == NAMES_PYTHON.keys()


def test_no_cycles() -> None:
    """No two modules import each other at their top, directly or by way of others."""
    known = {name for package in FOLDERS for name in names(package)}
    graph = {
        name: {each for each in _imported_at_top(name) if each in known and each != name} for name in known
    }
    graphlib.TopologicalSorter(graph).prepare()  # raises CycleError, which names the cycle


def _imported_at_top(name: str) -> set[str]:
    """Modules whose import is needed to import this one; a package is not needed by what lies in it."""
    folder = ROOT / FOLDERS[name.partition(".")[0]]
    base = folder.joinpath(*name.split("."))
    package = base / "__init__.py"
    path = package if package.exists() else base.with_suffix(".py")
    found = set()
    for node in parsed(path).body:
        if isinstance(node, ast.Import):
            found |= {each.name for each in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{each.name}" for each in node.names)}
    return {each for each in found if not name.startswith(f"{each}.")}


@pytest.mark.process
def test_metric_names() -> None:
    """Code, rules, dashboards, runbooks and documents speak only names of rankwatch.conventions."""
    declared = {each.name for each in METRICS}
    derived = declared | {name for each in METRICS for name in each.series}
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


@pytest.mark.process
def test_each_metric_has_a_reader() -> None:
    """A rule, a board, a runbook, a page of documents or a command reads it. References list all of them, so
    they are no readers."""
    text = "\n".join(path.read_text() for path in _readers())
    read = set(re.findall(r"\brankwatch_\w+", text))
    assert _unread(read) == set()
    assert _unread(read - {"rankwatch_blackboxes"}) == {"rankwatch_blackboxes"}, "one board reads it"


def _readers() -> Iterator[Path]:
    kinds = {
        "alerts/rules": ".yaml",
        "dashboards/rankwatch_dashboards/boards": ".yaml",
        "runbooks": ".md",
        "docs": ".md",
        **dict.fromkeys(("alerts", "diagnosis", "cli"), ".py"),
    }
    references = {ROOT / "docs" / "metrics.md", ROOT / "docs" / "cardinality.md"}
    for path in {*_texts()} - references:
        if any(path.is_relative_to(ROOT / folder) and path.suffix == kinds[folder] for folder in kinds):
            yield path


def _unread(read: Set[str]) -> set[str]:
    return {each.name for each in METRICS if not read & {each.name, *each.series}}


def test_length_of_files() -> None:
    """A file is one concept; one that needs a table of contents is two."""
    for package in FOLDERS:
        for path in modules(package):
            assert len(path.read_text().splitlines()) <= 400, path


def test_small_modules_have_several_users() -> None:
    """A module under 70 lines that one other imports belongs in it. One that is imported by its name in a
    text, as patches are, counts as one with several users."""
    paths = {name: path for package in FOLDERS for name, path in _by_name(package)}
    users: dict[str, set[str]] = {name: set() for name in paths}
    for name, path in paths.items():
        for each in imported(path) & paths.keys() - {name}:
            users[each].add(name)
    texts = "".join(path.read_text() for path in paths.values())
    small = {
        name
        for name, path in paths.items()
        if len(users[name]) == 1
        and path.name not in ("__init__.py", "__main__.py")
        and len(path.read_text().splitlines()) < 70
        and f'"{name.partition(".")[2]}"' not in texts
    }
    assert small == set()


def _by_name(package: str) -> Iterator[tuple[str, Path]]:
    for path in modules(package):
        parts = path.relative_to(ROOT / FOLDERS[package]).with_suffix("").parts
        yield ".".join(parts).removesuffix(".__init__"), path


def test_unmarked_tests_start_no_process() -> None:
    """They are refused at once: `make test-fast` runs them."""
    with pytest.raises(RuntimeError, match="test_unmarked_tests_start_no_process starts a process: mark it"):
        subprocess.run([sys.executable, "-c", ""], check=True)
