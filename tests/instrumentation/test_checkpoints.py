"""Checkpoint operations and their stages."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

import rankwatch
from rankwatch.blackbox.layout import RecordKind
from rankwatch.blackbox.reader import Reader
from support.training.blackbox import Read, box, of_kind, read


def operations(path: Path) -> list[tuple[str, str, int, int, bool]]:
    """(operation, stage, step, bytes, failed) of each checkpoint record."""
    reader = Reader(path)
    found = []
    for each in of_kind(path, RecordKind.CHECKPOINT):
        size, step, stage, failed, _ = each.payload
        found.append((each.name, reader.name(int(stage)), int(step), int(size), bool(failed)))
    reader.close()
    return found


def test_save(run: rankwatch.Run, tmp_path: Path) -> None:
    """The stages are recorded, then the operation with its size. All of it is phase `checkpoint`."""
    with run.checkpoint("save", step=40) as operation:
        with operation.stage("serialize"):
            pass
        with operation.stage("write"):
            operation.bytes = 1000
    assert operations(box(tmp_path)) == [
        ("save", "serialize", 40, 0, False),
        ("save", "write", 40, 1000, False),
        ("save", "", 40, 1000, False),
    ]
    assert _phases(box(tmp_path))[-1].name == "checkpoint"


def test_plain_calls(run: rankwatch.Run, tmp_path: Path) -> None:
    """`begin` and `end` record the same as `with`."""
    operation = run.checkpoint("load", step=3).begin()
    stage = operation.stage("read").begin()
    stage.end()
    operation.end()
    assert operations(box(tmp_path)) == [("load", "read", 3, 0, False), ("load", "", 3, 0, False)]


def test_exception(run: rankwatch.Run, tmp_path: Path) -> None:
    """An exception marks the operation and its stage as failed, and propagates."""
    with pytest.raises(OSError), run.checkpoint("save") as operation, operation.stage("write"):
        raise OSError(28, "No space left on device")
    assert [(stage, failed) for _, stage, _, _, failed in operations(box(tmp_path))] == [
        ("write", True),
        ("", True),
    ]


def test_failure_without_exception(run: rankwatch.Run, tmp_path: Path) -> None:
    """The caller can mark a failure, such as a wrong checksum."""
    with run.checkpoint("verify") as operation:
        operation.failed("checksum differs")
    assert operations(box(tmp_path)) == [("verify", "", -1, 0, True)]


def test_save_on_another_thread(run: rankwatch.Run, tmp_path: Path) -> None:
    """It does not affect the phases of the step, because asynchronous checkpoints overlap with training."""

    def save() -> None:
        with run.checkpoint("save", step=1):
            pass

    thread = threading.Thread(target=save)
    with run.step():
        thread.start()
        thread.join()
    assert operations(box(tmp_path)) == [("save", "", 1, 0, False)]
    assert _phases(box(tmp_path)) == []


def test_unknown_operation(run: rankwatch.Run) -> None:
    """The error lists the known operations."""
    with pytest.raises(rankwatch.UsageError, match="save, verify, load"):
        run.checkpoint("export")


def test_blocking_time(run: rankwatch.Run, tmp_path: Path) -> None:
    """An operation on the training thread blocks all of its time, one on another thread none of it."""

    def save() -> None:
        with run.checkpoint("save"):
            pass

    save()
    thread = threading.Thread(target=save)
    thread.start()
    thread.join()
    here, elsewhere = of_kind(box(tmp_path), RecordKind.CHECKPOINT)
    assert here.payload[-1] == here.end - here.start > 0.0
    assert elsewhere.payload[-1] == 0.0


def _phases(path: Path) -> list[Read]:
    return [each for each in read(path) if each.kind == RecordKind.PHASE]
