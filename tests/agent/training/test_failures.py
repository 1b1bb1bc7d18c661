"""What ended a rank: kinds of failures, and what a dead rank has left beside its box."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from rankwatch.conventions import FailureKind
from rankwatch.lifecycle import CRASHED_SUFFIX, ERROR_FILE_SUFFIX
from rankwatch_agent.training.failures import kind_of, left_behind

BOX = "0.blackbox"
US = os.geteuid()


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
    box = point(
        tmp_path, {"message": {"message": "torch.OutOfMemoryError: CUDA\nout of memory", "extraInfo": extra}}
    )
    assert left_behind(box, US) == ("OutOfMemoryError", "gpu_out_of_memory", "CUDA out of memory")
    assert left_behind(point(tmp_path, {"message": "KeyError: 'x'"}), US) == ("KeyError", "exception", "'x'")
    assert left_behind(point(tmp_path, {"message": "some text"}), US) == (
        "exception",
        "exception",
        "some text",
    )


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", "null", '{"message": 3}', '{"message": {"message": null}}', "[" * 100_000, "\x00"],
)
def test_broken_error_file(content: str, tmp_path: Path) -> None:
    assert left_behind(point(tmp_path, content), US) is None


def test_foreign_files(tmp_path: Path) -> None:
    """No rank makes the agent read what its user may not read: links, other owners, devices, other places."""
    secret = {"message": "KeyError: secret"}
    box = point(tmp_path, secret)
    assert left_behind(box, US + 1) is None, "the box belongs to somebody else"
    pointer = tmp_path / f"0{ERROR_FILE_SUFFIX}"
    (tmp_path / "link").symlink_to(tmp_path / "error.json")
    for target in (
        f"{tmp_path}/link",
        "error.json",
        "/dev/zero",
        str(tmp_path),
        "",
        "\x00",
        "/" + "x" * 5000,
    ):
        pointer.write_text(target)
        assert left_behind(box, US) is None, target
    pointer.unlink()
    pointer.symlink_to(tmp_path / "error.json")
    assert left_behind(box, US) is None


def test_crash(tmp_path: Path) -> None:
    """The signal, by the first line of what faulthandler writes."""
    box, crashed = tmp_path / BOX, tmp_path / f"0{CRASHED_SUFFIX}"
    assert left_behind(box, US) is None
    crashed.write_text("")
    assert left_behind(box, US) is None
    crashed.write_text(
        "Fatal Python error: Segmentation fault\n\nCurrent thread 0x00007f (most recent call first):\n"
    )
    assert left_behind(box, US) == ("SIGSEGV", "crash", "Segmentation fault")
    crashed.write_text("Fatal Python error: Something new\n")
    assert left_behind(box, US) == ("signal", "crash", "Something new")
