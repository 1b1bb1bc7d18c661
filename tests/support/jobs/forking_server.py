"""A process that imports torch once and then forks ranks, which start in a moment instead of seconds.

Run as a script. Each line on standard input is a JSON object. `arguments` are those of `python` (`-m` and a
module, or a script, and further arguments), `environ` is set on top of this process's environment, and
standard output and error are appended to the file `log`. The reply on standard output is a line with the
process id. When standard input ends, the ranks are killed.
"""

from __future__ import annotations

import json
import os
import runpy
import signal
import sys
import traceback
from collections.abc import Iterable, Mapping, Sequence

import torch._dynamo  # noqa: F401 - DistributedDataParallel imports it, which takes seconds

import rankwatch_trainer.cli  # noqa: F401 - imported before the forks, because all ranks need it


def serve(lines: Iterable[str]) -> None:
    """Fork a rank for each line."""
    ranks = []
    for line in lines:
        request = json.loads(line)
        ranks.append(_fork(request["arguments"], request["environ"], request["log"]))
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
        os._exit(status)  # a rank must not continue with the server's code


def _write_to(log: str) -> None:
    nothing = os.open(os.devnull, os.O_RDONLY)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for source, target in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(source, target)


def _run(arguments: Sequence[str]) -> int:
    """Run a module or script as the interpreter does; its exit status."""
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
    except BaseException:  # noqa: BLE001 - the process ends here and reports it as Python does
        traceback.print_exc()
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    return status if isinstance(status, int) else int(status is not None)


if __name__ == "__main__":
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps the ranks, because nobody waits for them
    serve(sys.stdin)
