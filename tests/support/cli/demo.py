"""A running `rankwatch demo`: its output, the processes it started, and what it leaves behind."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from support.processes.family import ProcessFamily
from support.servers.prometheus import poll

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
