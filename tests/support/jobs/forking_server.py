"""A process that imports torch once and then forks ranks, which start in a moment instead of seconds.

Run as a script. Each line on standard input is a JSON object. `arguments` are those of `python` (`-m` and a
module, `-c` and code, or a script, and further arguments), `environ` is set on top of this process's
environment, and standard output and error are appended to the file `log`. The reply on standard output is a
line with the process id. A line with `ended`, a process id, is answered with its exit code, or null before
its end. When standard input ends, the ranks are killed.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import runpy
import signal
import sys
import threading
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import torch._dynamo
import torch.distributed.checkpoint
import torch.distributed.fsdp  # noqa: F401 - imported before the forks, because each takes seconds

import rankwatch_trainer.cli  # noqa: F401 - imported before the forks, because all ranks need it

_codes: dict[int, int] = {}
"""Exit codes of the ranks that have ended."""


def serve(lines: Iterable[str]) -> None:
    """Fork a rank for each line, or answer with the exit code of one."""
    ranks = []
    for line in lines:
        request = json.loads(line)
        if "ended" in request:
            print(json.dumps(_codes.get(request["ended"])), flush=True)
        else:
            ranks.append(_fork(request["arguments"], request["environ"], request["log"]))
            print(ranks[-1], flush=True)
    for rank in ranks:
        if rank not in _codes:
            with contextlib.suppress(ProcessLookupError):
                os.kill(rank, signal.SIGKILL)


def _reap(*_: object) -> None:
    """Collect the ranks that have ended, so that none looks alive."""
    try:
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            _codes[ended[0]] = os.waitstatus_to_exitcode(ended[1])
    except ChildProcessError:
        return


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
    """Run a module, code or script as the interpreter does, also at its end; its exit status."""
    kind, *others = arguments
    status: object = None
    try:
        if kind == "-m":
            sys.argv = others
            runpy.run_module(others[0], run_name="__main__", alter_sys=True)
        elif kind == "-c":
            sys.argv = [kind, *others[1:]]
            exec(compile(others[0], "<string>", "exec"), {"__name__": "__main__"})
        else:
            sys.argv = list(arguments)
            sys.path[0] = str(Path(kind).parent)
            runpy.run_path(kind, run_name="__main__")
    except SystemExit as end:
        status = end.code
    except BaseException as error:  # noqa: BLE001 - the process ends here and reports it as Python does
        sys.last_value = error
        sys.excepthook(type(error), error, error.__traceback__)
        status = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    return status if isinstance(status, int) else int(status is not None)


if __name__ == "__main__":
    signal.signal(signal.SIGCHLD, _reap)
    serve(sys.stdin)
