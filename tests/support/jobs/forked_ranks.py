"""Jobs whose ranks are forked from one process that has imported torch. They look as if torchrun started
them."""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rankwatch.automatic.launching import recording_environment
from support.servers.prometheus import reserved_port

_SERVER = Path(__file__).with_name("forking_server.py")
_QUIET = {"OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR"}


class ForkedRanks:
    """Starts the ranks of jobs, through the server that forks them."""

    def __init__(self, server: subprocess.Popen[str], ports: contextlib.ExitStack) -> None:
        self._server = server
        self._ports = ports

    def start(
        self, arguments: Sequence[str], environ: Mapping[str, str], *, ranks: int, log: Path
    ) -> list[int]:
        """Start all ranks of one job, with these arguments of Python and the environment of torchrun. Returns
        their process ids."""
        port = self._ports.enter_context(reserved_port())
        rendezvous = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(ranks)}
        return self.start_some(arguments, {**environ, **rendezvous}, ranks=range(ranks), log=log)

    def start_some(
        self, arguments: Sequence[str], environ: Mapping[str, str], *, ranks: range, log: Path
    ) -> list[int]:
        """Start these ranks of a job; `environ` holds its rendezvous. Returns their process ids."""
        return [
            self._ask(
                {
                    "arguments": [*arguments],
                    "environ": {**environ, "RANK": str(rank), "LOCAL_RANK": str(local)},
                    "log": str(log),
                }
            )
            for local, rank in enumerate(ranks)
        ]

    def run(
        self,
        arguments: Sequence[str],
        environ: Mapping[str, str],
        *,
        ranks: int,
        log: Path,
        seconds: float = 150.0,
    ) -> list[int]:
        """Run a job to its end, which it must reach in time. Returns the exit code of each rank."""
        pids = self.start(arguments, environ, ranks=ranks, log=log)
        deadline = time.monotonic() + seconds
        try:
            while None in (codes := [self.ended(pid) for pid in pids]):
                assert time.monotonic() < deadline, f"{codes} after {seconds} s: {log.read_text()}"
                time.sleep(0.02)
        finally:
            self.kill(pids)
        return [code for code in codes if code is not None]

    def ended(self, pid: int) -> int | None:
        """Exit code of a rank; None before its end."""
        code: int | None = self._ask({"ended": pid})
        return code

    def kill(self, pids: Sequence[int]) -> None:
        """Kill those of these ranks that still run."""
        for pid in pids:
            if self.ended(pid) is None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def _ask(self, request: Mapping[str, object]) -> Any:
        assert self._server.stdin is not None and self._server.stdout is not None
        self._server.stdin.write(f"{json.dumps(request)}\n")
        self._server.stdin.flush()
        reply = self._server.stdout.readline()
        assert reply, "the process that forks ranks has ended"
        return json.loads(reply)


@contextlib.contextmanager
def forked_ranks(environ: Mapping[str, str], *, prefix: Sequence[str] = ()) -> Iterator[ForkedRanks]:
    """Run the server that forks ranks; its ranks end with it. `prefix`: a command that runs another
    command."""
    command = [*prefix, sys.executable, str(_SERVER)]
    server = subprocess.Popen(
        command, env={**environ, **_QUIET}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with contextlib.ExitStack() as ports:
        try:
            yield ForkedRanks(server, ports)
        finally:
            with contextlib.suppress(BrokenPipeError):
                server.communicate()


@functools.cache
def shared_ranks(*, recorded: bool = False) -> ForkedRanks:
    """A server for all tests of this process. recorded: it imports torch below zero-code recording.

    It has none of the variables by which a test sets rankwatch, because all ranks would inherit them.
    """
    environ = {name: value for name, value in os.environ.items() if not name.startswith("RANKWATCH_")}
    stack = contextlib.ExitStack()
    atexit.register(stack.close)
    return stack.enter_context(forked_ranks(recording_environment(environ) if recorded else environ))
