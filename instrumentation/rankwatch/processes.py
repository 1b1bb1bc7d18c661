"""What this process is: the user's program, or a child of multiprocessing; and names for what it runs."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_MULTIPROCESSING = ("multiprocessing.process", "multiprocess.process", "billiard.process")
"""The standard library's, that of Hugging Face's data sets, and Celery's. joblib builds on the first."""
_LONGEST_WORD = 40
_LAST_STANDARD_STREAM = 2


def is_helper() -> bool:
    """Return True in a process that works for a rank and is none itself.

    A child of multiprocessing first imports the script again, unless it is forked. A call of `start` from
    there has no `if __name__ == "__main__"` around it, and is not meant for the child. multiprocessing marks
    this time, because no process may be started in it either.
    """
    for name in _MULTIPROCESSING:
        module: Any = sys.modules.get(name)
        if module is not None and getattr(module.current_process(), "_inheriting", False):
            return True
    data: Any = sys.modules.get("torch.utils.data")
    return data is not None and data.get_worker_info() is not None


def is_child() -> bool:
    """Return True in a child of multiprocessing, which has loaded it."""
    module: Any = sys.modules.get("multiprocessing.process")
    return module is not None and module.parent_process() is not None


def is_child_without_rank(env: Mapping[str, str]) -> bool:
    """Return True in a child of multiprocessing whose variables are those of its parent.

    It may still be a rank, as under `torch.multiprocessing.spawn`, but its variables do not say which.
    """
    if not is_child():
        return False
    try:
        inherited = Path("/proc/self/environ").read_bytes().split(b"\0")
    except OSError:
        return True
    return f"RANK={env.get('RANK')}".encode() in inherited or "RANK" not in env


def number_of_child() -> int | None:
    """Return the position of this child among those of its parent; None in any other process."""
    module: Any = sys.modules.get("multiprocessing.process")
    identity = () if module is None else getattr(module.current_process(), "_identity", ())
    return identity[-1] - 1 if identity else None


def script_name() -> str:
    """Name of the program: the module of `python -m`, else the file."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    name = str(spec.name).removesuffix(".__main__") if spec is not None else ""
    name = name or Path(sys.argv[0] if sys.argv else "").stem
    return name if name and not name.startswith("-") else "python"


def run_of_one() -> str:
    """Return a run id for a process that is alone in its job."""
    return f"{_word(script_name())}-{_word(os.uname().nodename)}-{os.getpid()}-{_text(time.time())}"


def run_of_job(address: str | None, port: str | None) -> str:
    """Return a run id that all ranks of the job derive by themselves. The next run may have it too."""
    if not address or address in ("localhost", "::1") or address.startswith("127."):
        address = os.uname().nodename
    name = f"{_word(script_name())}-{_word(address)}"
    return f"{name}-{port}" if port else name


def started_text(*, by_launcher: bool) -> str:
    """Return when the job started: its launcher, or else this process, now.

    All processes of a launcher get the same text, also those that torchrun starts again.
    """
    started = _started(os.getppid()) if by_launcher else None
    return _text(time.time() if started is None else started)


def own_start() -> float | None:
    """Return the Unix time of this process's start, to 10 ms; None where /proc is of no use."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - _ticks(os.getpid()) / os.sysconf("SC_CLK_TCK")
        return time.time() - age
    return None


def python(*arguments: str) -> list[str]:
    """Return the command line of a child in this Python. It imports no module from its working directory."""
    return [sys.executable, "-P", *arguments]


def umask() -> int:
    """Return the umask of this process. To ask the system call would change it; where /proc does not tell it,
    it is that which hides everything."""
    with contextlib.suppress(OSError, ValueError):
        for line in Path("/proc/self/status").read_bytes().splitlines():
            if line.startswith(b"Umask:"):
                return int(line.split()[1], 8)
    return 0o777


def fill_standard_streams() -> None:
    """Open /dev/null in the place of standard streams that are closed, for the life of this process.

    Else files of ours would take their numbers: what libraries of C write as errors would go into a box, and
    closing it would close the file that the program has put there since.
    """
    with contextlib.suppress(OSError):  # no /dev/null, or no descriptor
        while (file := os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)) <= _LAST_STANDARD_STREAM:
            pass
        os.close(file)


def _ticks(pid: int) -> int:
    """Return when a process started, in ticks since the boot. Raises OSError, ValueError or IndexError."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])


def _word(text: str) -> str:
    return text[:_LONGEST_WORD]


def _text(moment: float) -> str:
    return time.strftime("%Y%m%dT%H%M%S", time.gmtime(moment))


def _started(pid: int) -> int | None:
    """Return the Unix time of a process's start, in whole numbers, so that it is the same everywhere."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        ticks = _ticks(pid)
        for line in Path("/proc/stat").read_text().splitlines():
            if line.startswith("btime "):
                return int(line.split()[1]) + ticks // os.sysconf("SC_CLK_TCK")
    return None
