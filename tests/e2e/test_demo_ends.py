"""The demo leaves nothing behind, however it ends, and says what ended it."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from support.agent.process import rankwatch
from support.cli.demo import RunningDemo, demo
from support.servers.prometheus import require

pytestmark = pytest.mark.e2e

FEWEST_RANKS = ("--ranks", "3")
SERVERS = ("prometheus", "prometheus-alertmanager")


def _starting(_: RunningDemo) -> None:
    """Its directory has just been made."""


def _importing(running: RunningDemo) -> None:
    """All servers run, and the ranks import torch."""
    running.wait_for("waiting for the first steps")
    _rank(running)


def _stepping(running: RunningDemo) -> None:
    """The ranks train."""
    running.wait_for("healthy")


def _rank(running: RunningDemo) -> int:
    return running.part(sys.executable, "-u", "rankwatch_trainer")


@pytest.mark.parametrize(
    ("number", "status", "moment"),
    [
        (signal.SIGINT, 130, _starting),
        (signal.SIGTERM, 143, _starting),
        (signal.SIGKILL, -signal.SIGKILL, _starting),
        (signal.SIGINT, 130, _importing),
        (signal.SIGTERM, 143, _importing),
        (signal.SIGKILL, -signal.SIGKILL, _importing),
        (signal.SIGINT, 130, _stepping),
        (signal.SIGKILL, -signal.SIGKILL, _stepping),
    ],
)
def test_a_signal_at_any_moment_leaves_no_process_and_no_file(
    number: signal.Signals, status: int, moment: Callable[[RunningDemo], None], tmp_path: Path
) -> None:
    """SIGKILL too: what cleans up is a process of its own. No signal prints a traceback."""
    require(*SERVERS)
    with demo(tmp_path, *FEWEST_RANKS) as running:
        moment(running)
        running.process.send_signal(number)
        assert running.ended() == status, running.said
        assert "Traceback" not in running.said


@pytest.mark.parametrize(
    ("part", "words"),
    [
        ("agent", ("rankwatch_cli", "agent")),
        ("prometheus", ("--storage.tsdb.path={directory}/prometheus",)),
        ("alertmanager", ("--storage.path={directory}/alertmanager",)),
    ],
)
def test_a_killed_server_ends_the_demo_with_its_name(
    part: str, words: tuple[str, ...], tmp_path: Path
) -> None:
    """Exit status 1, the name of the part, the signal that ended it, and its last words."""
    require(*SERVERS)
    with demo(tmp_path, *FEWEST_RANKS) as running:
        running.wait_for("waiting for the first steps")
        victim = running.part(*(word.format(directory=running.directory) for word in words))
        os.kill(victim, signal.SIGKILL)
        assert running.ended() == 1, running.said
        assert f"rankwatch demo: {part} ended with status -9; the end of its log:" in running.said
        assert "Traceback" not in running.said


def test_a_killed_rank_ends_the_demo_with_the_last_words_of_the_trainer(tmp_path: Path) -> None:
    """torchrun ends the other ranks and says which signal came to which rank."""
    require(*SERVERS)
    with demo(tmp_path, *FEWEST_RANKS) as running:
        _importing(running)
        os.kill(_rank(running), signal.SIGKILL)
        assert running.ended() == 1, running.said
        assert "rankwatch demo: trainer ended with status 1; the end of its log:" in running.said
        assert "SIGKILL" in running.said


def test_without_prometheus_the_engine_names_the_straggler(tmp_path: Path) -> None:
    """With neither server on PATH the demo says so, and still finds the rank it injected."""
    with demo(tmp_path, *FEWEST_RANKS, environ={"PATH": str(tmp_path)}) as running:
        running.wait_for("Prometheus or Alertmanager is not installed")
        running.wait_for("injected: ")
        assert running.ended() == 0, running.said
        assert "as `rankwatch diagnose run` names it (no Prometheus, no alert)" in running.said
        assert re.search(r"slowdown      1\.\d\d", running.said)
        assert "RIGHT: rank " in running.said


@pytest.mark.parametrize(
    "flags", [("--ranks", "2"), ("--ranks", "x"), ("--no-such-flag",), ("--deadline", "soon"), ("stray",)]
)
def test_what_the_demo_cannot_do_is_told_in_one_sentence(flags: tuple[str, ...]) -> None:
    """Exit status 2 before anything is started."""
    ended = rankwatch("demo", *flags)
    assert ended.returncode == 2
    assert ended.stdout == ""
    assert ended.stderr.startswith("rankwatch demo: ")
    assert ended.stderr.count("\n") == 1
