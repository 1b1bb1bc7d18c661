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
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from rankwatch.automatic.launching import recording_environment
from support.agent.process import clean_environment
from support.servers.prometheus import poll, reserved_port

SECONDS_TO_END = 300.0
"""Longest wait for the end of a job."""
_SERVER = Path(__file__).with_name("forking_server.py")
_QUIET = {"OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR"}
_SHARDED = ("torch.distributed.fsdp", "torch.distributed.checkpoint")


class ForkedRanks:
    """Starts the ranks of jobs, through the server that forks them. Threads may share it."""

    def __init__(self, server: subprocess.Popen[str], ports: contextlib.ExitStack) -> None:
        self._server = server
        self._ports = ports
        self._lock = threading.Lock()

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
        places = [{"RANK": str(rank), "LOCAL_RANK": str(local)} for local, rank in enumerate(ranks)]
        return [self.fork(arguments, {**environ, **place}, log=log) for place in places]

    def fork(self, arguments: Sequence[str], environ: Mapping[str, str], *, log: Path) -> int:
        """Start one process with all that it needs in `environ`. Returns its id."""
        sys.audit("os.fork")  # the server forks, but a test of this process asked
        pid = self._ask({"arguments": [*arguments], "environ": {**environ}, "log": str(log)})
        assert pid is not None
        return pid

    def run(
        self, arguments: Sequence[str], environ: Mapping[str, str], *, ranks: int, log: Path
    ) -> list[int]:
        """Run a job to its end. Returns the exit status of each rank."""
        pids = self.start(arguments, environ, ranks=ranks, log=log)
        try:
            poll(lambda: None not in map(self.status, pids), SECONDS_TO_END, f"end of {arguments}, see {log}")
        finally:
            self.kill(pids)
        return [status for status in map(self.status, pids) if status is not None]

    def run_alone(self, arguments: Sequence[str], environ: Mapping[str, str], *, log: Path) -> str:
        """Run one process to its end, with all that it needs in `environ`. Returns what it printed."""
        pid = self.fork(arguments, environ, log=log)
        poll(lambda: self.status(pid) is not None, SECONDS_TO_END, f"end of {arguments}, see {log}")
        assert self.status(pid) == 0, log.read_text()
        return log.read_text()

    def status(self, pid: int) -> int | None:
        """The exit status of a process, negative if a signal ended it; None while it runs."""
        return self._ask({"status": pid})

    def kill(self, pids: Iterable[int]) -> None:
        """SIGKILL for those of these ranks that still run."""
        for pid in pids:
            if self.status(pid) is None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def _ask(self, request: Mapping[str, object]) -> int | None:
        assert self._server.stdin is not None and self._server.stdout is not None
        with self._lock:
            self._server.stdin.write(f"{json.dumps(request)}\n")
            self._server.stdin.flush()
            reply = self._server.stdout.readline()
        assert reply, "the process that forks ranks has ended"
        answer: int | None = json.loads(reply)
        return answer


@contextlib.contextmanager
def forked_ranks(
    environ: Mapping[str, str], *, prefix: Sequence[str] = (), modules: Sequence[str] = ()
) -> Iterator[ForkedRanks]:
    """Run the server that forks ranks; its ranks end with it.

    prefix: a command that runs another command. modules: what it imports beside torch.
    """
    command = [*prefix, sys.executable, str(_SERVER), *modules]
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
    environ = recording_environment(clean_environment()) if recorded else clean_environment()
    stack = contextlib.ExitStack()
    atexit.register(stack.close)
    return stack.enter_context(forked_ranks(environ, modules=_SHARDED))
