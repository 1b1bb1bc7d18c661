"""A process that imports torch once and then forks ranks, which start in a moment instead of seconds.

Run as a script, with the names of further modules to import. Each line on standard input is a JSON object.
`arguments` are those of `python` (`-m` and a module, `-c` and code, or a script, and further arguments),
`environ` is set on top of this process's environment, and standard output and error are appended to the file
`log`. The reply on standard output is a line with the process id. A line with `status` and a process id asks
for its exit status, null while it runs. When standard input ends, the ranks are killed.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import runpy
import signal
import sys
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import torch._dynamo  # noqa: F401 - DistributedDataParallel imports it, which takes seconds

import rankwatch_trainer.cli  # noqa: F401 - imported before the forks, because all ranks need it


def serve(lines: Iterable[str]) -> None:
    """Fork a rank, or give its status, for each line."""
    ranks: list[int] = []
    statuses: dict[int, int] = {}

    def reap(*_: object) -> None:
        """At once: to an agent, a rank that nobody has waited for would still be there."""
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                statuses[ended[0]] = os.waitstatus_to_exitcode(ended[1])

    signal.signal(signal.SIGCHLD, reap)
    for line in lines:
        request = json.loads(line)
        if "status" in request:
            print(json.dumps(statuses.get(request["status"])), flush=True)
            continue
        ranks.append(_fork(request["arguments"], request["environ"], request["log"]))
        print(ranks[-1], flush=True)
    for rank in set(ranks) - statuses.keys():
        with contextlib.suppress(ProcessLookupError):
            os.kill(rank, signal.SIGKILL)


def _fork(arguments: Sequence[str], environ: Mapping[str, str], log: str) -> int:
    sys.stdout.flush()
    child = os.fork()
    if child:
        return child
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.environ.update(environ)
    if environ.get("PYTHONWARNINGS") == "error":  # Python itself reads it only at its start
        warnings.simplefilter("error")
    _write_to(log)
    _run(arguments)
    raise SystemExit  # a rank ends as Python does, with all that is registered for its end


def _write_to(log: str) -> None:
    nothing = os.open(os.devnull, os.O_RDONLY)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for source, target in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(source, target)


def _run(arguments: Sequence[str]) -> None:
    """Run a module, code or script as the interpreter does."""
    kind, *others = arguments
    if kind == "-m":
        sys.argv = others
        runpy.run_module(others[0], run_name="__main__", alter_sys=True)
    elif kind == "-c":
        sys.argv = [kind, *others[1:]]
        exec(compile(others[0], "<string>", "exec"), {"__name__": "__main__"})
    else:
        sys.argv = [kind, *others]
        sys.path[0] = str(Path(kind).parent)
        runpy.run_path(kind, run_name="__main__")


if __name__ == "__main__":
    for module in sys.argv[1:]:
        importlib.import_module(module)
    gc.freeze()  # else each rank takes a second at its end to visit, and so to copy, all that it shares
    serve(sys.stdin)
