"""The line at the start and the card at the exit of rank 0, for every way in which a process can end."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from support.processes.python import python

pytestmark = pytest.mark.process

PATIENT = "import rankwatch.lifecycle; rankwatch.lifecycle.DEADLINE_SECONDS = 120.0\n"
START = (
    "import os, signal, sys, rankwatch\n"
    "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a shell lets its background ignore it
    "run = rankwatch.start(run='job', target_steps=4)\n"
)
STEP = "with run.step(), run.phase('forward'): run.work(tokens=64)\n"


def printed(directory: Path, code: str, **variables: str) -> tuple[int, list[str]]:
    """Exit status and the lines of rankwatch, of a process that runs `code` as a rank."""
    done = python(PATIENT + code, directory=directory, **{"RANKWATCH_SUMMARY": "1", **variables})
    assert done.stdout == ""
    ours = ("rankwatch: ", "  ")
    return done.returncode, [line for line in done.stderr.splitlines() if line.startswith(ours)]


@pytest.mark.parametrize(
    ("end", "status", "headline"),
    [
        ("run.finish()", 0, "finished"),
        ("", 0, "exited"),
        ("raise ValueError('bad batch')", 1, "failed by ValueError: bad batch"),
        ("signal.raise_signal(signal.SIGINT)", -signal.SIGINT, "interrupted"),
        (
            "def leave(*_): run.preempted(); sys.exit(7)\n"
            "signal.signal(signal.SIGTERM, leave); signal.raise_signal(signal.SIGTERM)",
            7,
            "preempted",
        ),
    ],
)
def test_card(tmp_path: Path, end: str, status: int, headline: str) -> None:
    """The start names the directory and a command. The exit shows how the run ended and keeps its status."""
    code, lines = printed(tmp_path, START + 3 * STEP + end)
    assert code == status
    first, card, *rest = [line for line in lines if not line.startswith('  File "')]
    assert first == f"rankwatch: records in {tmp_path / 'job'}; look with `rankwatch diagnose run job`"
    assert card.startswith(f"rankwatch: run job {headline}, 3 of 4 steps in ")
    assert len(rest) < 15
    names = [line.split("  ")[1] for line in rest]
    assert {"step", "throughput", "checkpoints", "verdict", "next"} <= set(names)
    assert rest[-1].endswith("rankwatch diagnose run job")


@pytest.mark.parametrize(
    "variables", [{"RANKWATCH_SUMMARY": "0"}, {"RANK": "1", "WORLD_SIZE": "2"}, {"RANKWATCH_DISABLE": "1"}]
)
def test_silence(tmp_path: Path, variables: dict[str, str]) -> None:
    """Nothing is printed where it is turned off, and by other ranks."""
    assert printed(tmp_path, START + STEP, **variables) == (0, [])


def test_no_exit_handlers(tmp_path: Path) -> None:
    """`os._exit` runs no exit handlers, so there is no card. The process ends as it wants to."""
    status, lines = printed(tmp_path, START + STEP + "run.finish()\nos._exit(5)")
    assert (status, len(lines)) == (5, 1)


def test_forked_child(tmp_path: Path) -> None:
    """A forked child that exits is not the rank: there is one card."""
    fork = "if os.fork() == 0: sys.exit(0)\nos.wait()\nrun.finish()"
    _, lines = printed(tmp_path, START + STEP + fork)
    (card,) = [line for line in lines if line.startswith("rankwatch: run job")]
    assert card.startswith("rankwatch: run job finished,")


def test_several_runs(tmp_path: Path) -> None:
    """A process that starts several runs prints the card of the last."""
    again = "run.finish(); run = rankwatch.start(run='again')\n"
    _, lines = printed(tmp_path, START + STEP + again + STEP + "run.finish()")
    assert [line.split()[2] for line in lines if " step in " in line] == ["again"]


@pytest.mark.parametrize(
    "trap",
    [
        "rankwatch.lifecycle.DEADLINE_SECONDS = 0.2; sys.executable = '/nonexistent/python'",
        "rankwatch.lifecycle.DEADLINE_SECONDS = 0.2; sys.executable = os.environ['STUCK']",
        "sys.stderr = None",
        "sys.executable = None",
    ],
)
def test_no_harm(tmp_path: Path, trap: str) -> None:
    """A card that cannot be made, or takes too long, leaves the end of the process as it is."""
    stuck = tmp_path / "stuck"
    stuck.write_text("#!/bin/sh\nexec sleep 600\n")
    stuck.chmod(0o755)
    code = f"import os, sys, rankwatch.lifecycle\n{trap}\n{START}{STEP}run.finish(); sys.exit(3)"
    status, lines = printed(tmp_path / "runs", code, STUCK=str(stuck))
    assert status == 3
    assert sum("run job finished" in line for line in lines) == (trap == "sys.stderr = None")
