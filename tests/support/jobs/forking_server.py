"""A process that has imported torch once and forks ranks: a rank so starts in a moment, not in seconds.

Run as a script. Each line on standard input is a JSON object with `arguments` (as after `python`: `-m`
and a module, or a script, and what follows), `environ` (set on top of this process's own) and `log`
(a file that standard output and error are appended to). The line on standard output that answers it is the
process id. The ranks end with this process's input: on its end they are killed.
"""

from __future__ import annotations

import json
import os
import runpy
import signal
import sys
import traceback
from collections.abc import Iterable, Mapping, Sequence

import torch._dynamo  # noqa: F401 - DistributedDataParallel imports it, and takes seconds for it

import rankwatch_trainer.cli  # noqa: F401 - what the ranks need is imported here, before the forks


def serve(lines: Iterable[str]) -> None:
    """Fork a rank for each line."""
    ranks = []
    for line in lines:
        wanted = json.loads(line)
        ranks.append(_fork(wanted["arguments"], wanted["environ"], wanted["log"]))
        print(ranks[-1], flush=True)
    for rank in ranks:
        try:
            os.kill(rank, signal.SIGKILL)
        except ProcessLookupError:
            continue


def _fork(arguments: Sequence[str], environ: Mapping[str, str], log: str) -> int:
    sys.stdout.flush()
    child = os.fork()
    if child:
        return child
    status = 70
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.environ.update(environ)
        _write_to(log)
        status = _run(arguments)
    finally:
        os._exit(status)  # nothing of the server may run on in a rank


def _write_to(log: str) -> None:
    nothing = os.open(os.devnull, os.O_RDONLY)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for source, target in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(source, target)


def _run(arguments: Sequence[str]) -> int:
    """As the interpreter does it; exit status."""
    status: object = None
    try:
        if arguments[0] == "-m":
            sys.argv = list(arguments[1:])
            runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        else:
            sys.argv = list(arguments)
            runpy.run_path(arguments[0], run_name="__main__")
    except SystemExit as end:
        status = end.code
    except BaseException:  # noqa: BLE001 - this is the end of the process, which tells it as Python does
        traceback.print_exc()
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    return status if isinstance(status, int) else int(status is not None)


if __name__ == "__main__":
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel takes away what ends: nobody waits for it
    serve(sys.stdin)
