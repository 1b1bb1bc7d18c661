"""`rankwatch diagnose loss` prints the verdict first, or JSON, and one sentence for a mistake."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from rankwatch_cli.main import main
from support.diagnosis.loss_curves import curves


def diagnosed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, *flags: str, name: str = "loss.csv"
) -> str:
    """What the command prints about a file with this text."""
    (tmp_path / name).write_text(text)
    assert main(["diagnose", "loss", str(tmp_path / name), *flags]) == 0
    return capsys.readouterr().out


def curve(kind: str) -> str:
    (found,) = curves(kind, 1, seed=3, steps=2000)
    return found.csv()


def test_healthy_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The first line is the verdict. The second says what counts as a divergence."""
    assert diagnosed(tmp_path, capsys, curve("plain")).splitlines() == [
        "no anomaly in 2,000 steps (0 to 1999)",
        "a divergence stands 5 standard deviations above the trend, at once or in sum, and does not fall "
        "back for 12 steps",
    ]


def test_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A loss that is NaN becomes null, because JSON has no NaN."""
    text = "step,loss\n" + "".join(f"{step},{'nan' if step == 90 else 2}\n" for step in range(99))
    found = json.loads(diagnosed(tmp_path, capsys, text, "--json"), parse_constant=pytest.fail)
    assert found["anomalies"] == [
        {"step": 90, "kind": "non_finite", "value": None, "expected": 2.0, "severity": "warning"}
    ]
    assert (found["evidence"]["steps"], len(found["evidence"]["details"])) == (99, 1)


def test_divergence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The output names the step at which the loss diverges, and the step whose loss is NaN."""
    lines = [f"step {step} | loss {2 if step < 300 else 5}" for step in range(400)]
    text = "\n".join([*lines, "step 400 | loss nan"])
    verdict, divergence, nan, _ = diagnosed(tmp_path, capsys, text, name="train.log").splitlines()
    assert verdict == "2 critical in 401 steps (0 to 400)"
    assert divergence.split(maxsplit=1) == [
        "critical",
        "step 300      the loss diverges: 5 where 2 was expected, up to 5; it does not return",
    ]
    assert "step 400      the loss is nan" in nan


def test_options(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Columns and a pattern select the same values; persistence and a new level change what counts."""
    losses = list(enumerate([2.0] * 200 + [3.0] * 40 + [2.0] * 100))
    table = "n,l\n" + "".join(f"{step},{loss}\n" for step, loss in losses)
    log = "".join(f"n{step}={loss}\n" for step, loss in losses)
    columns = ("--column", "step=n", "--column", "loss=l")
    for text, flags, verdict in (
        (table, columns, "1 warning in 340 steps"),
        (log, ("--pattern", r"n(?P<step>\d+)=(?P<loss>\S+)"), "1 warning in 340 steps"),
        (table, (*columns, "--persistence", "100"), "no divergence; 1 info in 340 steps"),
        (table, (*columns, "--new-level", "200"), "no anomaly in 340 steps"),
    ):
        assert verdict in diagnosed(tmp_path, capsys, text, *flags)


@pytest.mark.parametrize(
    "flags",
    [
        ["--persistence", "0"],
        ["--column", "x=y"],
        ["--column", "loss"],
        ["--pattern", "x", "--column", "loss=y"],
    ],
)
def test_invalid_options(flags: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """They are refused with one sentence before the file is opened. The exit status is 2."""
    assert main(["diagnose", "loss", str(tmp_path / "absent"), *flags]) == 2
    printed = capsys.readouterr().err
    assert printed.count("\n") == 1
    assert flags[0] in printed


def _on_a_terminal(path: Path, **environment: str) -> str:
    leader, follower = pty.openpty()
    plain = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
    try:
        subprocess.run(
            [sys.executable, "-m", "rankwatch_cli", "diagnose", "loss", str(path)],
            stdout=follower,
            env=plain | environment,
            check=True,
        )
        return os.read(leader, 65536).decode()
    finally:
        os.close(leader)
        os.close(follower)


@pytest.mark.process
def test_colours(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Only a terminal gets colours, and only if NO_COLOR is not set."""
    assert "\x1b" not in diagnosed(tmp_path, capsys, curve("NaN"))
    assert "\x1b[31m" in _on_a_terminal(tmp_path / "loss.csv")
    assert "\x1b" not in _on_a_terminal(tmp_path / "loss.csv", NO_COLOR="1")
