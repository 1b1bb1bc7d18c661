"""What ended a rank: kinds of failures, and what a dead rank has left beside its box."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from rankwatch.conventions.states import FailureKind
from rankwatch.lifecycle import CRASHED_SUFFIX, ERROR_FILE_SUFFIX
from rankwatch_agent.training.life import failures
from rankwatch_agent.training.life.failures import (
    Failure,
    TorchrunFiles,
    find_now,
    kind_of,
    told_by_error_file,
    torchrun_paths,
)

BOX = "0.blackbox"
US = os.geteuid()


def files(box: Path, owner: int) -> TorchrunFiles:
    """What torchrun has kept for the rank of a box."""
    return TorchrunFiles(*find_now(box, owner, torchrun_paths(box, owner)))


def left_behind(box: Path, owner: int) -> Failure | None:
    """What a dead rank has left, in all of its files."""
    return failures.left_behind(box, owner, files(box, owner))


@pytest.mark.parametrize(
    ("exception", "message", "kind"),
    [
        ("OutOfMemoryError", "CUDA out of memory. Tried to allocate 20.00 GiB.", "gpu_out_of_memory"),
        ("RuntimeError", "CUDA error: out of memory", "gpu_out_of_memory"),
        ("RuntimeError", "HIP out of memory. Tried to allocate", "gpu_out_of_memory"),
        ("RuntimeError", "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling", "gpu_out_of_memory"),
        ("MemoryError", "", "host_out_of_memory"),
        (
            "RuntimeError",
            "[enforce fail at alloc_cpu.cpp:124] err == 0. DefaultCPUAllocator: can't allocate memory: you",
            "host_out_of_memory",
        ),
        ("OSError", "[Errno 12] Cannot allocate memory", "host_out_of_memory"),
        ("RuntimeError", "mat1 and mat2 shapes cannot be multiplied", "exception"),
        ("SystemExit", "3", "exit_status"),
        ("ValueError", "", "exception"),
        ("FloatingPointError", "", "non_finite"),
        ("RuntimeError", "Function 'MulBackward0' returned nan values in its 0th output.", "non_finite"),
        ("RuntimeError", "The total norm of order 2.0 for gradients is non-finite", "non_finite"),
        ("ValueError", "cannot convert float NaN to integer", "non_finite"),
        ("RuntimeError", "loss is inf at step 7", "non_finite"),
        ("KeyError", "'nan'", "exception"),
        ("RuntimeError", "Cannot allocate more information: norman", "exception"),
        ("DistBackendError", "NCCL communicator was aborted on rank 1.", "collective"),
        (
            "RuntimeError",
            "[../gloo/transport/tcp/pair.cc:525] Connection closed by peer [1.2.3.4]",
            "collective",
        ),
        (
            "DistBackendError",
            "[Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9, OpType=ALLREDUCE)",
            "watchdog_abort",
        ),
    ],
)
def test_kinds(exception: str, message: str, kind: str) -> None:
    assert kind_of(exception, message) is FailureKind(kind)


def point(directory: Path, content: object) -> Path:
    """A box whose rank has torchrun's error file with this content."""
    (directory / "error.json").write_text(content if isinstance(content, str) else json.dumps(content))
    (directory / f"0{ERROR_FILE_SUFFIX}").write_text(str(directory / "error.json"))
    return directory / BOX


def test_error_of_torchrun(tmp_path: Path) -> None:
    """The exception that torchrun's `record` has written, in both of its forms."""
    extra = {"py_callstack": "Traceback ...", "timestamp": "1763840000"}
    message = {"message": "torch.OutOfMemoryError: CUDA\nout of memory", "extraInfo": extra}
    found = left_behind(point(tmp_path, {"message": message}), US)
    assert found == ("OutOfMemoryError", "gpu_out_of_memory", "CUDA out of memory", "", 1763840000.0)
    stack = '  File "/job/train.py", line 3, in <module>\n  File "/job/model.py", line 42, in forward\n'
    told = {"message": "KeyError: 'x'", "timestamp": 1763840001, "py_callstack": stack}
    found = left_behind(point(tmp_path, told), US)
    assert found == ("KeyError", "exception", "'x'", "model.py:42 in forward", 1763840001.0)
    for odd in ("inf", 10**400, [], "1e999"):
        told = {"message": "some text", "timestamp": odd, "py_callstack": 3}
        assert left_behind(point(tmp_path, told), US) == ("exception", "exception", "some text", "", None)


def test_hidden_by_the_umask(tmp_path: Path) -> None:
    """No text has credentials; where the umask hides what a rank writes, there is type and kind alone."""
    extra = {"py_callstack": '  File "a.py", line 7, in step\n', "timestamp": "1763840000"}
    text = "OSError: nan at s3://k:pw@bucket/ck?sig=x"
    box = point(tmp_path, {"message": {"message": text, "extraInfo": extra}})
    told = ("nan at s3://bucket/ck", "a.py:7 in step", 1763840000.0)
    assert left_behind(box, US) == ("OSError", "non_finite", *told)
    box.with_suffix(".error_file").chmod(0o600)
    assert left_behind(box, US) == ("OSError", "non_finite", "", "", 1763840000.0)
    known = Failure("OSError", FailureKind.EXCEPTION, "")
    assert told_by_error_file(box, files(box, US), known)[3:] == ("", 1763840000.0)


def test_line_of_an_exception(tmp_path: Path) -> None:
    """An exception that the box names gets line and time from the error file, if that is about the same."""
    extra = {"py_callstack": '  File "a.py", line 7, in step\n', "timestamp": "1763840000"}
    box = point(tmp_path, {"message": {"message": "ValueError: no", "extraInfo": extra}})
    known = Failure("ValueError", FailureKind.EXCEPTION, "no")
    assert told_by_error_file(box, files(box, US), known)[3:] == ("a.py:7 in step", 1763840000.0)
    other = Failure("KeyError", FailureKind.EXCEPTION, "no")
    assert told_by_error_file(box, files(box, US), other) == other


ABORTED = """Fatal Python error: Aborted

Thread 0x00007fb5ddcb6b80 (most recent call first):
  File "train.py", line 7 in <module>
"""


def died(directory: Path, *, crashed: str | None = None, stderr: str | None = None) -> Failure | None:
    """What a rank leaves whose faulthandler and standard error, as torchrun keeps it, wrote this."""
    if crashed is not None:
        (directory / f"0{CRASHED_SUFFIX}").write_text(crashed)
    if stderr is not None:
        (directory / f"0{ERROR_FILE_SUFFIX}").write_text(str(directory / "error.json"))
        (directory / "stderr.log").write_text(stderr)
    return left_behind(directory / BOX, US)


def test_abort_of_the_watchdog(tmp_path: Path) -> None:
    """The watchdog of NCCL aborts in its own thread; its message is in the output that torchrun keeps."""
    alone = died(tmp_path, crashed=ABORTED)
    assert alone is not None and alone.by_watchdog_or_library
    told = died(
        tmp_path,
        crashed=ABORTED,
        stderr="x" * 300_000 + "\n[rank0]:[E1123 03:00:00 ProcessGroupNCCL.cpp:685] [Rank 0] Watchdog caught "
        "collective operation timeout: WorkNCCL(SeqNum=42, OpType=ALLREDUCE, NumelIn=8) ran for 600012 "
        "milliseconds before timing out.\nterminate called after throwing an instance of 'c10::Error'\n",
    )
    assert told is not None and told.kind is FailureKind.WATCHDOG_ABORT
    assert "SeqNum=42" in told.message


SEGFAULT = "Fatal Python error: Segmentation fault\n\nCurrent thread 0x00007f (most recent call first):\n"
ILLEGAL, OUT_OF_MEMORY = "CUDA error: an illegal memory access was encountered", "CUDA out of memory"


@pytest.mark.parametrize(
    ("crashed", "stderr", "found"),
    [
        (SEGFAULT, None, ("SIGSEGV", "crash", "Segmentation fault")),
        ("Fatal Python error: Something new\n", None, ("signal", "crash", "Something new")),
        (None, f"hello\n{SEGFAULT}", ("SIGSEGV", "crash", "Segmentation fault")),
        (ABORTED, f"terminate called\n  what():  {ILLEGAL}\nmore\n", ("SIGABRT", "crash", ILLEGAL)),
        (
            ABORTED,
            f"terminate called\n  what():  {OUT_OF_MEMORY}\nmore\n",
            ("SIGABRT", "gpu_out_of_memory", OUT_OF_MEMORY),
        ),
    ],
    ids=[
        "the signal, by the first line of what faulthandler writes",
        "one that nobody knows",
        "below torchrun's `record` on standard error, in the middle of other output",
        "what a C++ exception says",
        "and what kind of failure that is",
    ],
)
def test_crash(tmp_path: Path, crashed: str | None, stderr: str | None, found: tuple[str, str, str]) -> None:
    failure = died(tmp_path, crashed=crashed, stderr=stderr)
    assert failure is not None
    assert (failure[:3], failure.wall is not None) == (found, True)


def test_no_crash(tmp_path: Path) -> None:
    assert died(tmp_path) is None
    assert died(tmp_path, crashed="") is None


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", "null", '{"message": 3}', '{"message": {"message": null}}', "[" * 100_000, "\x00"],
)
def test_broken_error_file(content: str, tmp_path: Path) -> None:
    assert left_behind(point(tmp_path, content), US) is None


def test_foreign_files(tmp_path: Path) -> None:
    """No rank makes the agent read what its user may not: other owners, devices, FIFOs, relative paths."""
    box = point(tmp_path, {"message": "KeyError: secret"})
    assert left_behind(box, US + 1) is None, "the box belongs to somebody else"
    pointer, fifo = tmp_path / f"0{ERROR_FILE_SUFFIX}", tmp_path / "fifo"
    os.mkfifo(fifo)
    for target in (fifo, "error.json", "/dev/zero", tmp_path, "", "\x00", "/" + "x" * 5000):
        pointer.write_text(f"{target}")
        assert left_behind(box, US) is None, target
    pointer.unlink()
    pointer.symlink_to(tmp_path / "error.json")
    assert left_behind(box, US) is None
