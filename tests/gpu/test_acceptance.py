"""The acceptance for a GPU: what it writes, its limits, and a rehearsal on CPUs."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from gpu.acceptance import Acceptance, RawFiles, Result, run_part, table
from gpu.node import samples
from gpu.parts import PARTS
from support.paths import ROOT

BY_NAME = {each.name: each for each in PARTS}


def test_table() -> None:
    """A person sees the counts first, and then what was expected and found of each part."""
    text = table(
        [Result("ddp", "passed", "rank 2", "rank 2 " * 30, 4.0), Result("host", "not run", "x", "y", 0.0)]
    )
    assert text.startswith("1 passed, 0 failed, 0 skipped, 1 not run\n")
    assert "ddp          passed      4.0 s" in text
    assert max(map(len, text.splitlines())) <= 114


def test_raw_files(tmp_path: Path) -> None:
    """The archive can be read after each part, holds the small files first, and stays below its limit."""
    folder = tmp_path / "part"
    (folder / "deep").mkdir(parents=True)
    (folder / "deep" / "small").write_text("kept")
    (folder / "large").write_bytes(bytes(range(256)) * 4000)
    archive = RawFiles(tmp_path / "raw.tar.gz", limit=6000)
    assert archive.add(folder, "raw/one", limit=5000) == []
    (folder / "noise").write_bytes(random.Random(1).randbytes(5000))
    left_out = archive.add(folder, "raw/two", limit=1 << 20)
    assert [each.partition(" ")[0] for each in left_out] == ["raw/two/noise", "raw/two/large"]
    with tarfile.open(tmp_path / "raw.tar.gz") as kept:
        names = kept.getnames()
        small = kept.extractfile("raw/one/deep/small")
        assert small is not None and small.read() == b"kept"
    assert names[:2] == ["raw/one/deep/small", "raw/one/large"]
    assert (tmp_path / "raw.tar.gz").stat().st_size <= 6000


def test_no_time_left(tmp_path: Path) -> None:
    """What does not fit into the budget is reported as not run."""
    (result,) = Acceptance(tmp_path, rehearse=True, budget=5.0).run([BY_NAME["ddp"]])
    assert result.outcome == "not run"
    assert json.loads((tmp_path / "results.json").read_text())[0]["outcome"] == "not run"


def test_samples() -> None:
    """Series of a page by their exact name."""
    page = '# HELP a_total x\na_total{rank="1",text="a \\"b\\""} 2.5\na_total_more 1\na_total 3\n'
    assert list(samples(page, "a_total")) == [({"rank": "1", "text": 'a \\"b\\"'}, 2.5), ({}, 3.0)]


@pytest.mark.process
def test_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A part is killed at its limit with all that it has started, and its result says so."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "tests"))
    result = run_part(BY_NAME["versions"], 1.0, tmp_path / "part", ["--rehearse"])
    assert (result.outcome, result.found) == ("failed", "cut off after 1 s")
    commands = [each for path in Path("/proc").glob("[0-9]*/cmdline") for each in [_read(path)] if each]
    assert not [each for each in commands if str(tmp_path).encode() in each]


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


@pytest.mark.process
def test_rehearsal(tmp_path: Path) -> None:
    """Without a GPU, the parts that can run do, and the others say why not."""
    parts = ("versions", "memory", "profile")
    script = [str(ROOT / "tests/gpu/acceptance.sh"), str(tmp_path), "--rehearse", *parts]
    ended = subprocess.run(
        script, env={**os.environ, "PYTHON": sys.executable}, capture_output=True,
        text=True, timeout=280, check=False,
    )  # fmt: skip
    found = {each["part"]: each for each in json.loads((tmp_path / "results.json").read_text())}
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert {name: each["outcome"] for name, each in found.items()} == {
        "versions": "passed",
        "memory": "skipped",
        "profile": "passed",
    }
    assert "slow_rank compute ranks [2]" in found["profile"]["found"]
    with tarfile.open(tmp_path / "raw.tar.gz") as kept:
        assert sum(name.endswith(".pt.trace.json.gz") for name in kept.getnames()) == 4
    assert {each.name for each in tmp_path.iterdir()} == {
        "log.txt",
        "raw.tar.gz",
        "results.json",
        "results.txt",
    }
