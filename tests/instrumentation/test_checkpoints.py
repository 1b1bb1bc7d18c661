"""Checkpoint operations, their stages, and the note with their paths beside the black box."""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest.mock import MagicMock

import pytest

import rankwatch
from rankwatch.blackbox.layout import RecordKind
from rankwatch.checkpoint_paths import (
    MOST_BYTES,
    SUFFIX,
    NotedCheckpoint,
    common_place,
    parse_checkpoints,
    place_of,
    read_checkpoints,
)
from rankwatch.failures import LONGEST_ERROR
from rankwatch.sweep import SUFFIXES_BESIDE
from support.automatic.programs import errors, saved
from support.training.blackbox import Read, box, of_kind, read


def noted(directory: Path) -> tuple[NotedCheckpoint, ...]:
    return read_checkpoints(box(directory).with_suffix(SUFFIX))


def test_operations(run: rankwatch.Run, tmp_path: Path) -> None:
    """The newest comes first; a failed one is noted, too. One without a path is not."""
    with run.checkpoint("save", step=10, path="/data/step-10"):
        pass
    with run.checkpoint("verify", step=10, path=Path("/data/step-10")) as verify:
        verify.failed("a bit has flipped")
    with run.checkpoint("save", step=20):
        pass
    with run.checkpoint("load", step=7) as load:
        load.path = b"/data/step-7"
    assert [each[:3] + each[4:] for each in noted(tmp_path)] == [
        ("load", 7, "/data/step-7", False, ""),
        ("verify", 10, "/data/step-10", True, "a bit has flipped"),
        ("save", 10, "/data/step-10", False, ""),
    ]
    ended = [each.ended for each in noted(tmp_path)]
    assert ended == sorted(ended, reverse=True)
    assert abs(ended[0] - box(tmp_path).stat().st_mtime) < 300


def test_errors(run: rankwatch.Run, tmp_path: Path) -> None:
    """Why an operation failed is noted in one line that is short and printable, also without a path."""
    for path, error in (
        ("/data/step-10", OSError(28, "No space left on device")),
        (None, RuntimeError("the store\nis \x1b[31m" + 1000 * "gone")),
        ("/data/step-30", KeyboardInterrupt()),
    ):
        with pytest.raises(type(error)), run.checkpoint("save", step=10, path=path):
            raise error
    with run.checkpoint("verify", step=10):
        pass
    interrupted, long, full = noted(tmp_path)
    assert full.error == "OSError: [Errno 28] No space left on device"
    assert long.error == f"RuntimeError: the store is ?[31m{1000 * 'gone'}"[:LONGEST_ERROR]
    assert (long.path, interrupted.error) == ("", "KeyboardInterrupt")


def test_next_process(tmp_path: Path) -> None:
    """A process that resumes keeps what was noted before it, up to a bound."""
    for attempt in range(3):
        with rankwatch.start(run="job", rank=0, world_size=1, directory=tmp_path) as run:
            for number in range(7):
                with run.checkpoint("save", step=10 * attempt + number, path=f"/data/{number}"):
                    pass
    steps = [each.step for each in noted(tmp_path)]
    assert steps == [26, 25, 24, 23, 22, 21, 20, 16, 15, 14, 13, 12, 11, 10, 6, 5]


def test_threads(run: rankwatch.Run, tmp_path: Path) -> None:
    """Threads that end saves at the same time lose no entry, and wait for nobody."""

    def save(step: int) -> None:
        with run.checkpoint("save", step=step, path="/data"):
            pass

    with ThreadPoolExecutor(16) as threads:
        list(threads.map(save, range(16)))
    assert {each.step for each in noted(tmp_path)} == set(range(16))
    assert errors(box(tmp_path)) == 0


def test_unusable_path(run: rankwatch.Run, tmp_path: Path) -> None:
    """A path that cannot be asked for costs its entry, not the training."""
    hostile = MagicMock(**{"__fspath__.side_effect": RuntimeError("no")})
    for path in (hostile, 3, "", "x" * 5000, object()):
        with run.checkpoint("save", step=1, path=path):
            pass
    assert noted(tmp_path) == ()
    assert errors(box(tmp_path)) == 1


def test_unwritable_note(run: rankwatch.Run, tmp_path: Path) -> None:
    """A note that cannot be written is counted, and training goes on."""
    box(tmp_path).with_suffix(SUFFIX).mkdir()
    with run.checkpoint("save", step=1, path="/data"):
        pass
    assert errors(box(tmp_path)) == 1


@pytest.mark.process
def test_forked_child(run: rankwatch.Run, tmp_path: Path) -> None:
    """A forked child is not the rank: it writes no note."""
    child = os.fork()
    if child == 0:
        with run.checkpoint("save", step=1, path="/data"):
            pass
        os._exit(0)
    os.waitpid(child, 0)
    assert noted(tmp_path) == ()


def test_before_the_rank_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is loaded before the box has its place is noted once it has it."""
    monkeypatch.setattr("rankwatch.starting.identify", lambda given, env, *, last, ask: None)
    run = rankwatch.start(run="job", directory=tmp_path)
    with run.checkpoint("load", step=5, path="/data/step-5"):
        pass
    monkeypatch.undo()
    run.begin_step()
    run.end_step()
    run.finish()
    assert [each.step for each in noted(tmp_path)] == [5]


def test_removal() -> None:
    """The note goes when its box goes."""
    assert SUFFIX in SUFFIXES_BESIDE


def test_places() -> None:
    """A path becomes absolute, a URL stays as it is; the place of several files is their folder."""
    assert place_of("a.pt") == str(Path("a.pt").absolute())
    assert place_of("s3://bucket/step-3") == "s3://bucket/step-3"
    assert place_of(None) == place_of(3) == ""
    assert common_place(["/d/a.pt"]) == "/d/a.pt"
    assert common_place(["/d/a.pt", "/d/b/c.pt", ""]) == "/d"
    assert common_place(["/a.pt", "/d/b.pt"]) == ""
    assert common_place(["s3://a", "s3://b"]) == common_place([]) == ""


GOOD = {"operation": "save", "step": 3, "path": "/data", "ended": 1.0e9, "failed": False}


@pytest.mark.parametrize(
    "wrong",
    [
        *({"operation": each} for each in ("remove", [])),
        *({"step": each} for each in ("3", True, 2**70)),
        *({"path": each} for each in ("relative", "/data\0", "/\ud800", "/" + "x" * 5000, None)),
        *({"ended": each} for each in (float("nan"), 10**400)),
        {"failed": 1},
        *({"error": each} for each in (28, "two\nlines", "x" * (LONGEST_ERROR + 1))),
        {"path": "", "error": ""},
    ],
)
def test_wrong_entries(wrong: dict[str, object]) -> None:
    """An entry that makes no sense is left out, and the others stay."""
    raw = json.dumps({"checkpoints": [{**GOOD, **wrong}, GOOD]}).encode()
    assert parse_checkpoints(raw) == (NotedCheckpoint("save", 3, "/data", 1.0e9, failed=False),)


@pytest.mark.parametrize("raw", [b"", b"[", b"[]", b'{"checkpoints": 3}', b"\xff", b"[" * 100_000])
def test_no_note(raw: bytes) -> None:
    """What is no note has no entries."""
    assert parse_checkpoints(raw) == ()


def test_no_file(tmp_path: Path) -> None:
    """Neither has a folder, a link, a pipe or a file that is too large."""
    good = tmp_path / "good"
    good.write_text(json.dumps({"checkpoints": [GOOD]}))
    assert read_checkpoints(good)
    (tmp_path / "link").symlink_to(good)
    os.mkfifo(tmp_path / "pipe")
    large = tmp_path / "large"
    large.write_text(good.read_text() + " " * MOST_BYTES)
    for name in ("", "link", "pipe", "large", "missing"):
        assert read_checkpoints(tmp_path / name) == ()


def recorded(path: Path) -> list[tuple[str, str, int, int, bool]]:
    """(operation, stage, step, bytes, failed) of each checkpoint record."""
    return [each[:5] for each in saved(path)]


def test_save(run: rankwatch.Run, tmp_path: Path) -> None:
    """The stages are recorded, then the operation with its size. All of it is phase `checkpoint`."""
    with run.checkpoint("save", step=40) as operation:
        with operation.stage("serialize"):
            pass
        with operation.stage("write"):
            operation.bytes = 1000
    assert recorded(box(tmp_path)) == [
        ("save", "serialize", 40, 0, False),
        ("save", "write", 40, 1000, False),
        ("save", "", 40, 1000, False),
    ]
    assert _phases(box(tmp_path))[-1].name == "checkpoint"


def test_plain_calls(run: rankwatch.Run, tmp_path: Path) -> None:
    """`begin` and `end` record the same as `with`. The caller can mark a failure, as a wrong checksum."""
    operation = run.checkpoint("load", step=3).begin()
    operation.stage("read").begin().end()
    operation.failed("checksum differs")
    operation.end()
    assert recorded(box(tmp_path)) == [("load", "read", 3, 0, False), ("load", "", 3, 0, True)]


def test_exception_in_a_stage(run: rankwatch.Run, tmp_path: Path) -> None:
    """An exception marks the operation and its stage as failed, and propagates."""
    with pytest.raises(OSError), run.checkpoint("save") as operation, operation.stage("write"):
        raise OSError(28, "No space left on device")
    found = [(stage, failed) for _, stage, _, _, failed in recorded(box(tmp_path))]
    assert found == [("write", True), ("", True)]


def test_save_on_another_thread(run: rankwatch.Run, tmp_path: Path) -> None:
    """It does not affect the phases of the step, because asynchronous checkpoints overlap with training, and
    blocks training for no time. One on the training thread blocks all of its time."""

    def save() -> None:
        with run.checkpoint("save", step=1):
            pass

    with run.step(), ThreadPoolExecutor(1) as other:
        other.submit(save).result()
    assert _phases(box(tmp_path)) == []
    save()
    elsewhere, here = of_kind(box(tmp_path), RecordKind.CHECKPOINT)
    assert elsewhere.payload[-1] == 0.0
    assert here.payload[-1] == here.end - here.start > 0.0
    assert recorded(box(tmp_path)) == [("save", "", 1, 0, False)] * 2


def test_unknown_operation(run: rankwatch.Run) -> None:
    """The error lists the known recorded."""
    with pytest.raises(rankwatch.UsageError, match="save, verify, load"):
        run.checkpoint("export")


def _phases(path: Path) -> list[Read]:
    return [each for each in read(path) if each.kind == RecordKind.PHASE]
