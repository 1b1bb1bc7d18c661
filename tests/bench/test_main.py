"""The command line of the benchmarks, run as `make bench` runs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

_ROOT = Path(__file__).parents[2]


def bench(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run it from the root of the repository."""
    return subprocess.run(
        [sys.executable, "-m", "tests.bench", *arguments],
        cwd=_ROOT,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_part(tmp_path: Path) -> None:
    """A part prints its table and writes its samples. Its targets are left to `make bench`."""
    done = bench("hot-path", "--quick", "--output", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "| phase / Histogram.observe" in done.stdout
    written = json.loads((tmp_path / "hot-path.json").read_text())
    assert written["machine"]["cpu_count"] == os.cpu_count()
    samples = written["samples"]["nanoseconds_per_call"]
    assert len(samples["rankwatch phase"]) == len(samples["OpenTelemetry span"]) > 0
    assert all(each > 0 for values in samples.values() for each in values)


def test_no_samples(tmp_path: Path) -> None:
    """With rankwatch disabled there is nothing to measure: status 1, one sentence, no table."""
    done = bench("hot-path", "--quick", "--output", str(tmp_path), RANKWATCH_DISABLE="1")
    assert done.returncode == 1
    assert done.stderr == "bench hot-path: could not measure the hot path: rankwatch records nothing here\n"
    assert list(tmp_path.iterdir()) == []


def test_unknown_part(tmp_path: Path) -> None:
    """Status 2, and the names of all parts."""
    done = bench("cold-path", "--output", str(tmp_path))
    assert done.returncode == 2
    assert "part is 'cold-path', expected one of hot-path, training, agent" in done.stderr
