"""Jobs whose ranks are forked from one process that has imported torch. They look as if torchrun started
them."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from support.servers.prometheus import reserved_port

_SERVER = Path(__file__).with_name("forking_server.py")
_QUIET = {"OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR"}


class ForkedRanks:
    """Starts the ranks of jobs, through the server that forks them."""

    def __init__(self, server: subprocess.Popen[str], ports: contextlib.ExitStack) -> None:
        self._server = server
        self._ports = ports

    def start(self, arguments: Sequence[str], environ: Mapping[str, str], *, ranks: int, log: Path) -> None:
        """Start all ranks of one job, with these arguments of Python and the environment of torchrun."""
        port = self._ports.enter_context(reserved_port())
        rendezvous = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(ranks)}
        self.start_some(arguments, {**environ, **rendezvous}, ranks=range(ranks), log=log)

    def start_some(
        self, arguments: Sequence[str], environ: Mapping[str, str], *, ranks: range, log: Path
    ) -> list[int]:
        """Start these ranks of a job; `environ` holds its rendezvous. Returns their process ids."""
        return [
            self._fork(
                {
                    "arguments": [*arguments],
                    "environ": {**environ, "RANK": str(rank), "LOCAL_RANK": str(local)},
                    "log": str(log),
                }
            )
            for local, rank in enumerate(ranks)
        ]

    def _fork(self, request: Mapping[str, object]) -> int:
        assert self._server.stdin is not None and self._server.stdout is not None
        self._server.stdin.write(f"{json.dumps(request)}\n")
        self._server.stdin.flush()
        pid = self._server.stdout.readline()
        assert pid, "the process that forks ranks has ended"
        return int(pid)


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
