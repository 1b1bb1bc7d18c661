"""The wheel contains what is in the tree."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import rankwatch

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[1]
PACKAGES = {
    "rankwatch": ROOT / "instrumentation",
    "rankwatch_agent": ROOT / "agent",
    "rankwatch_diagnosis": ROOT / "diagnosis",
    "rankwatch_cli": ROOT / "cli",
    "rankwatch_alerts": ROOT / "alerts",
    "rankwatch_dashboards": ROOT / "dashboards",
    "rankwatch_checkpoints": ROOT / "optional",
    "rankwatch_profiler_traces": ROOT / "optional",
    "rankwatch_spans": ROOT / "optional",
    "rankwatch_trainer": ROOT / "reference_trainer",
}
SHARED = {
    "alerts": ROOT / "alerts" / "generated",
    "dashboards": ROOT / "dashboards" / "generated",
    "runbooks": ROOT / "runbooks",
}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from the unpacked source distribution."""
    target = tmp_path_factory.mktemp("dist")
    _build(ROOT, target, "--sdist")
    (archive,) = target.glob("*.tar.gz")
    with tarfile.open(archive) as packed:
        packed.extractall(target, filter="data")
    _build(target / archive.name.removesuffix(".tar.gz"), target, "--wheel")
    return next(target.glob("*.whl"))


def _build(source: Path, target: Path, what: str) -> None:
    command = [sys.executable, "-m", "build", "--no-isolation", what, "--outdir", str(target), str(source)]
    subprocess.run(command, check=True, capture_output=True)


def _files(directory: Path) -> set[str]:
    found = (path for path in directory.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {str(path.relative_to(directory)) for path in found}


def test_wheel_is_complete(wheel: Path) -> None:
    """The wheel built from the sdist holds every module and every generated file."""
    with zipfile.ZipFile(wheel) as archive:
        inside = set(archive.namelist())
    for package, folder in PACKAGES.items():
        assert {f"{package}/{name}" for name in _files(folder / package)} <= inside
        assert f"{package}/py.typed" in inside
    (data,) = {name.partition("/")[0] for name in inside if ".data/" in name}
    for folder, source in SHARED.items():
        expected = {f"{data}/data/share/rankwatch/{folder}/{name}" for name in _files(source)}
        assert expected, f"nothing to ship in {source}"
        assert expected <= inside


def test_version(wheel: Path) -> None:
    """The package has the version of the distribution, so `--version` and metrics name what is installed."""
    assert wheel.name.startswith(f"rankwatch-{rankwatch.__version__}-")


def test_without_extras(wheel: Path, tmp_path: Path) -> None:
    """The instrumentation records a step with nothing else installed, as in a training image."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path / 'site')!r})\n"
        "import rankwatch\n"
        f"run = rankwatch.start(directory={str(tmp_path / 'boxes')!r}, run='r')\n"
        "with run, run.step(): pass\n"
        f"assert rankwatch.__file__.startswith({str(tmp_path)!r})\n"
    )
    subprocess.run([sys.executable, "-S", "-W", "error", "-c", code], check=True)
    assert (tmp_path / "boxes" / "r" / "0.blackbox").is_file()


def test_runbooks(wheel: Path, tmp_path: Path) -> None:
    """An installation prints them, without an extra."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "from rankwatch_cli.main import main; sys.exit(main(['runbook', 'runslow']))"
    )
    done = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("RankwatchRunSlow\n")


def test_missing_extra(wheel: Path, tmp_path: Path) -> None:
    """The command without its extra ends with status 2 and one sentence that names it."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "from rankwatch_cli.main import main; sys.exit(main(['agent']))"
    )
    done = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "in a clone of rankwatch, pip install '.[agent]' brings it" in done.stderr
    assert "Traceback" not in done.stderr
