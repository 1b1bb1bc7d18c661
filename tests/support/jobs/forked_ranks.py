"""Jobs whose ranks are forked from one process that has imported torch, as torchrun would start them."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from support.servers.ports import reserved_port

_SERVER = Path(__file__).with_name("forking_server.py")
_QUIET = {"OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR"}


class ForkedRanks:
    """Starts the ranks of jobs."""

    def __init__(self, server: subprocess.Popen[str], ports: contextlib.ExitStack) -> None:
        self._server = server
        self._ports = ports

    def start(self, arguments: Sequence[str], environ: Mapping[str, str], *, ranks: int, log: Path) -> None:
        """All ranks of one job, with these arguments of Python and with what torchrun tells them."""
        port = self._ports.enter_context(reserved_port())
        meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(ranks)}
        for rank in range(ranks):
            place = {"RANK": str(rank), "LOCAL_RANK": str(rank), **meeting}
            wanted = {"arguments": [*arguments], "environ": {**environ, **place}, "log": str(log)}
            self._ask(wanted)

    def _ask(self, wanted: Mapping[str, object]) -> int:
        assert self._server.stdin is not None and self._server.stdout is not None
        self._server.stdin.write(f"{json.dumps(wanted)}\n")
        self._server.stdin.flush()
        answer = self._server.stdout.readline()
        assert answer, "the process that forks ranks has ended"
        return int(answer)


@contextlib.contextmanager
def forked_ranks(environ: Mapping[str, str], *, prefix: Sequence[str] = ()) -> Iterator[ForkedRanks]:
    """The process that forks; all its ranks end with it. `prefix`: a command that runs the one behind it."""
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
