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
        size, step, stage, failed = each.payload
        found.append((each.name, reader.name(int(stage)), int(step), int(size), bool(failed)))
    reader.close()
    return found


def test_a_save_is_recorded_with_stages_and_size(run: rankwatch.Run, tmp_path: Path) -> None:
    """Stages first, then the whole, and all of it is phase `checkpoint`."""
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


def test_plain_calls_record_the_same(run: rankwatch.Run, tmp_path: Path) -> None:
    """begin and end instead of `with`."""
    operation = run.checkpoint("load", step=3).begin()
    stage = operation.stage("read").begin()
    stage.end()
    operation.end()
    assert operations(box(tmp_path)) == [("load", "read", 3, 0, False), ("load", "", 3, 0, False)]


def test_an_exception_marks_the_operation_failed_and_goes_on(run: rankwatch.Run, tmp_path: Path) -> None:
    """The stage in which it happened is marked too."""
    with pytest.raises(OSError), run.checkpoint("save") as operation, operation.stage("write"):
        raise OSError(28, "No space left on device")
    assert [(stage, failed) for _, stage, _, _, failed in operations(box(tmp_path))] == [
        ("write", True),
        ("", True),
    ]


def test_a_failure_can_be_said_without_an_exception(run: rankwatch.Run, tmp_path: Path) -> None:
    """A verification that finds a wrong checksum."""
    with run.checkpoint("verify") as operation:
        operation.failed("checksum differs")
    assert operations(box(tmp_path)) == [("verify", "", -1, 0, True)]


def test_a_save_on_another_thread_leaves_the_phases_of_the_step_alone(
    run: rankwatch.Run, tmp_path: Path
) -> None:
    """Asynchronous checkpoints overlap with training."""

    def save() -> None:
        with run.checkpoint("save", step=1):
            pass

    thread = threading.Thread(target=save)
    with run.step():
        thread.start()
        thread.join()
    assert operations(box(tmp_path)) == [("save", "", 1, 0, False)]
    assert _phases(box(tmp_path)) == []


def test_an_unknown_operation_is_told(run: rankwatch.Run) -> None:
    """The message says which there are."""
    with pytest.raises(rankwatch.UsageError, match="save, verify, load"):
        run.checkpoint("export")


def _phases(path: Path) -> list[Read]:
    return [each for each in read(path) if each.kind == RecordKind.PHASE]
