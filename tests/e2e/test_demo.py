"""The demo as a person runs it: it names the slow rank, and leaves nothing behind however it ends."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.processes.family import ProcessFamily
from support.servers.prometheus import poll, require

pytestmark = pytest.mark.process

FEWEST_RANKS = ("--ranks", "3")
SERVERS = ("prometheus", "prometheus-alertmanager")


def _starting(_: RunningDemo) -> None:
    """Its directory has just been made."""


def _importing(running: RunningDemo) -> None:
    """All servers run, and the ranks import torch."""
    running.wait_for("waiting for the first steps")
    _rank(running)


def _rank(running: RunningDemo) -> int:
    return running.process_of(sys.executable, "-u", "rankwatch_trainer")


def test_right_rank(tmp_path: Path) -> None:
    """Only the demo knows the slowed rank, which the alert names after Prometheus and Alertmanager."""
    require(*SERVERS)
    result = tmp_path / "result.json"
    with demo(tmp_path, "--result", str(result)) as running:
        running.wait_for("injected: ")
        status = running.wait()
        printed = running.printed
    assert status == 0, printed
    outcome = json.loads(result.read_text())
    rank = outcome["injected_rank"]
    assert (outcome["right"], outcome["named_rank"]) == (True, rank)
    shown = dict(re.findall(r"^  (\w+) +(\S.*)$", printed, re.MULTILINE))  # labels and annotations
    of_rank = {"alertname": "RankwatchRunSlow", "run": "demo", "rank": str(rank)}
    assert shown.items() >= {**of_rank, "cause": "slow_rank", "phase": "compute"}.items()
    assert shown["node"]
    assert float(shown["slowdown"]) > 1.2
    assert "What to do: rankwatch runbook RankwatchRunSlow\n" in printed
    assert re.search(rf"RIGHT: rank {rank} was slowed down and named \d+ s later", printed)


@pytest.mark.parametrize("moment", [_starting, _importing])
@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -signal.SIGKILL)]
)
def test_signal(
    number: signal.Signals, status: int, moment: Callable[[RunningDemo], None], tmp_path: Path
) -> None:
    """None at any moment of the start, SIGKILL included, leaves a process, a file or a traceback."""
    require(*SERVERS)
    with demo(tmp_path, *FEWEST_RANKS) as running:
        moment(running)
        running.process.send_signal(number)
        assert running.wait() == status, running.printed
        assert "Traceback" not in running.printed


@pytest.mark.parametrize(
    ("part", "words"),
    [("agent", ("rankwatch_cli", "agent")), ("prometheus", ("--storage.tsdb.path={directory}/prometheus",))],
)
def test_killed_server(part: str, words: tuple[str, ...], tmp_path: Path) -> None:
    """The demo ends with status 1 and names the server, the signal and the end of its log."""
    require(*SERVERS)
    with demo(tmp_path, *FEWEST_RANKS) as running:
        running.wait_for("waiting for the first steps")
        victim = running.process_of(*(word.format(directory=running.directory) for word in words))
        os.kill(victim, signal.SIGKILL)
        assert running.wait() == 1, running.printed
        assert f"rankwatch demo: {part} ended with status -9; the end of its log:" in running.printed
        assert "Traceback" not in running.printed


def test_killed_rank(tmp_path: Path) -> None:
    """The demo ends with the log of torchrun, which names the signal."""
    require(*SERVERS)
    with demo(tmp_path, *FEWEST_RANKS) as running:
        _importing(running)
        os.kill(_rank(running), signal.SIGKILL)
        assert running.wait() == 1, running.printed
        assert "rankwatch demo: trainer ended with status 1; the end of its log:" in running.printed
        assert "SIGKILL" in running.printed


def test_without_prometheus(tmp_path: Path) -> None:
    """Without servers it says so, and the engine names the rank; what is kept ends with Ctrl-C."""
    with demo(tmp_path, *FEWEST_RANKS, "--keep", environ={"PATH": str(tmp_path)}) as running:
        running.wait_for("Prometheus or Alertmanager is not installed")
        running.wait_for("injected: ")
        running.wait_for("kept running; Ctrl-C ends everything")
        running.process.send_signal(signal.SIGINT)
        assert running.wait() == 130, running.printed
        assert "Traceback" not in running.printed
        assert "as `rankwatch diagnose run` names it (no Prometheus, no alert)" in running.printed
        assert re.search(r"slowdown      1\.\d\d", running.printed)
        assert "RIGHT: rank " in running.printed


DEADLINE_SECONDS = 300
"""The demo's own deadline, long enough for a machine that is busy with other tests."""
OUTPUT_SECONDS = DEADLINE_SECONDS + 30.0
"""Longest wait for a line of the demo, and for its end."""
CLEANUP_SECONDS = 120.0
"""Longest wait until nothing is left. Each process has 5 s to end before it is killed."""


class RunningDemo:
    """The process of a demo, with its output in a file."""

    def __init__(self, process: subprocess.Popen[bytes], family: ProcessFamily, output: Path) -> None:
        self.process = process
        self._family = family
        self._output = output
        cleanup = self.process_of("rankwatch_cli.demo.workspace")
        self.directory = Path(family.members()[cleanup][-1])
        """Where the demo keeps its files."""

    @property
    def printed(self) -> str:
        """Everything on stdout and stderr so far."""
        return self._output.read_text()

    def wait_for(self, text: str) -> None:
        """Wait until it has printed this."""
        poll(lambda: text in self.printed, OUTPUT_SECONDS, f"{text!r} from the demo")

    def process_of(self, *words: str) -> int:
        """Process id of the first member whose command line has these words, once there is one."""

        def find() -> int | None:
            members = self._family.members().items()
            return next((pid for pid, command in members if set(words) <= set(command)), None)

        return poll(find, OUTPUT_SECONDS, f"process with {words} in its command line")

    def wait(self) -> int:
        """Wait until no process and no file is left; returns the exit status."""
        status = self.process.wait(OUTPUT_SECONDS)
        poll(lambda: not self._left(), CLEANUP_SECONDS, "end of all parts of the demo")
        return status

    def _left(self) -> bool:
        return bool(self._family.members()) or self.directory.exists()


@contextmanager
def demo(tmp_path: Path, *flags: str, environ: Mapping[str, str] | None = None) -> Iterator[RunningDemo]:
    """A demo that has just begun. Processes left at the end are killed."""
    family = ProcessFamily()
    output = tmp_path / "demo.output"
    command = [sys.executable, "-m", "rankwatch_cli", "demo", "--deadline", str(DEADLINE_SECONDS), *flags]
    with output.open("wb") as stream:
        process = subprocess.Popen(
            command,
            env={**family.environ, **(environ or {})},
            stdout=stream,
            stderr=stream,
            preexec_fn=_accept_interrupts,
        )
    try:
        yield RunningDemo(process, family, output)
    finally:
        process.kill()
        process.wait()
        try:  # the demo cleans up; only what that leaves is killed
            poll(lambda: not family.members(), CLEANUP_SECONDS, "end of the demo's cleanup")
        finally:
            family.kill()


def _accept_interrupts() -> None:
    """Undo that a script which starts the tests with `&` lets them, and their children, ignore SIGINT."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
