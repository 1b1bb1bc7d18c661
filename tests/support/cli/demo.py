"""A running `rankwatch demo`: what it says, which parts it has started, and what it leaves behind."""

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
"""The demo's own, for a machine busy with other tests."""
SECONDS_TO_SPEAK = DEADLINE_SECONDS + 30.0
"""Longest wait for a line of the demo, and for its end."""
SECONDS_TO_END = 120.0
"""Longest wait until all is gone; parts have 5 s to end in order before they are killed."""


class RunningDemo:
    """The process of a demo, with its output in a file."""

    def __init__(self, process: subprocess.Popen[bytes], family: ProcessFamily, output: Path) -> None:
        self.process = process
        self._family = family
        self._output = output
        cleanup = self.part("rankwatch_cli.demo.cleanup")
        self.directory = Path(family.members()[cleanup][-1])
        """Where the demo keeps its files."""

    @property
    def said(self) -> str:
        """Everything it has printed, errors too."""
        return self._output.read_text()

    def wait_for(self, text: str) -> None:
        """Wait until it has said this."""
        poll(lambda: text in self.said, SECONDS_TO_SPEAK, f"{text!r} from the demo")

    def part(self, *words: str) -> int:
        """Process id of the first part whose command line has these words, once there is one."""

        def find() -> int | None:
            members = self._family.members().items()
            return next((pid for pid, command in members if set(words) <= set(command)), None)

        return poll(find, SECONDS_TO_SPEAK, f"process with {words} in its command line")

    def ended(self) -> int:
        """Exit status; returns once no process and no file is left, and fails where some stay."""
        status = self.process.wait(SECONDS_TO_SPEAK)
        poll(lambda: not self._left(), SECONDS_TO_END, "end of all parts of the demo")
        return status

    def _left(self) -> bool:
        return bool(self._family.members()) or self.directory.exists()


@contextmanager
def demo(tmp_path: Path, *flags: str, environ: Mapping[str, str] | None = None) -> Iterator[RunningDemo]:
    """A demo that has just begun; whatever is left of it at the end is killed."""
    family = ProcessFamily()
    output = tmp_path / "demo.output"
    command = [sys.executable, "-m", "rankwatch_cli", "demo", "--deadline", str(DEADLINE_SECONDS), *flags]
    with output.open("wb") as stream:
        process = subprocess.Popen(
            command,
            env={**family.environ, **(environ or {})},
            stdout=stream,
            stderr=stream,
            preexec_fn=_hear_interrupts,
        )
    try:
        yield RunningDemo(process, family, output)
    finally:
        process.kill()
        process.wait()
        try:  # the demo cleans up; only what that leaves is killed
            poll(lambda: not family.members(), SECONDS_TO_END, "end of the demo's cleanup")
        finally:
            family.kill()


def _hear_interrupts() -> None:
    """A job that a script starts with `&` ignores SIGINT, and its children inherit that."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
