"""The demo's directory, the processes that live in it, and the end of both, however the demo itself ended.

The cleanup is a process of its own that waits for the end of its standard input. The demo holds the other
end of that pipe, so the end comes when the demo closes it, crashes, or is killed. A variable in the
environment marks the processes of a demo: they inherit it even after they have left their parent, as the
ranks of torchrun do.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

from rankwatch.processes import python
from rankwatch_agent.runtime.errors import AgentError

_MEMORY = Path("/dev/shm")
_TAIL_BYTES = 4000


class DemoError(AgentError):
    """A part of the demo did not start, or ended before it should."""


class Workspace:
    """A temporary directory with processes; both are gone when the `with` block or this process ends.

    check_signals: called at each `check`; raises if the demo has to end.
    """

    def __init__(self, check_signals: Callable[[], None]) -> None:
        self._check_signals = check_signals
        base = _MEMORY if os.access(_MEMORY, os.W_OK) else Path(tempfile.gettempdir())
        self.directory = base / f"rankwatch-demo-{secrets.token_hex(4)}"
        self._cleanup = Cleanup(self.directory)  # before the directory exists: a signal may come between
        self.directory.mkdir(mode=0o700)
        self._parts: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, command: Sequence[str], variables: Mapping[str, str] | None = None) -> None:
        """Start a part of the demo; its output goes to `<name>.log`. Raises DemoError."""
        env = {**os.environ, **(variables or {}), MARK: str(self.directory)}
        with self.log(name).open("wb") as log:
            try:
                self._parts[name] = subprocess.Popen(
                    command,
                    env=env,
                    cwd=self.directory,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,  # Ctrl-C on the terminal is for the demo alone
                )
            except OSError as error:
                raise DemoError(f"could not start {name}: {error.strerror}") from error

    def check(self) -> None:
        """Raise DemoError with the end of its log if a part has ended; or what `check_signals` raises."""
        self._check_signals()
        for name, process in self._parts.items():
            if process.poll() is not None:
                raise DemoError(
                    f"{name} ended with status {process.returncode}; the end of its log:\n{self.tail(name)}"
                )

    def log(self, name: str) -> Path:
        """Return the file that holds the output of a part."""
        return self.directory / f"{name}.log"

    def tail(self, name: str) -> str:
        """Return the end of the output of a part."""
        return self.log(name).read_bytes()[-_TAIL_BYTES:].decode(errors="replace")

    def __enter__(self) -> Workspace:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._cleanup.close()
        for process in self._parts.values():
            process.wait()


@contextmanager
def reserved_address() -> Iterator[str]:
    """Yield HOST:PORT on the loopback interface that the kernel gives to no other socket within the block.

    A server that sets SO_REUSEADDR, as Prometheus and Alertmanager do, can still listen there.
    """
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{held.getsockname()[1]}"


MARK = "RANKWATCH_DEMO"
"""Environment variable of every process of a demo; its value is the demo's directory."""
GRACE_SECONDS = 5.0
"""Time between SIGTERM and SIGKILL."""


class Cleanup:
    """Cleans up after the demo in `directory`, at `close` or when this process dies."""

    def __init__(self, directory: Path) -> None:
        command = python("-m", __name__, str(directory))
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)

    def close(self) -> None:
        """Clean up now and wait until that is done."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def clean(directory: Path, *, grace_seconds: float = GRACE_SECONDS) -> None:
    """End every process that carries the mark of this demo, then remove its directory."""
    deadline = time.monotonic() + grace_seconds
    terminated: set[int] = set()
    while found := list(_marked(directory)):
        overdue = time.monotonic() > deadline
        for pid in found:
            if overdue or pid not in terminated:
                terminated.add(pid)
                _signal(pid, signal.SIGKILL if overdue else signal.SIGTERM)
        time.sleep(0.05)
    shutil.rmtree(directory, ignore_errors=True)


def _marked(directory: Path) -> Iterator[int]:
    mark = f"{MARK}={directory}".encode()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal() or int(entry.name) == os.getpid():
            continue
        try:
            variables = (entry / "environ").read_bytes()
        except OSError:
            continue  # gone meanwhile, or another user's
        if mark in variables.split(b"\0"):
            yield int(entry.name)


def _signal(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


if __name__ == "__main__":
    sys.stdin.buffer.read()
    clean(Path(sys.argv[1]))
