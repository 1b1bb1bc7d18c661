"""Checkpoints by torch.save and safetensors, in programs that know nothing of rankwatch."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from rankwatch.checkpoint_paths import SUFFIX, read_checkpoints
from support.automatic.programs import Saved, errors, operations, run_program, saved

pytestmark = pytest.mark.process

pytest.importorskip("torch")

LOADED, FILE, PAUSE, NONE, FAILURE, THREAD, SAFE, LATE = -1, 10, 20, 30, 40, 50, 60, 70
"""Steps after which the program does what is named."""
PROGRAM = f"""
import io, threading
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.AdamW(model.parameters())
state = {{"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": 3}}

with open(HERE + "/early.pt", "wb") as file:
    torch.save(state, file)
torch.save(optimizer.state_dict(), HERE + "/optimizer.pt")
torch.load(HERE + "/early.pt")
torch.load(HERE + "/optimizer.pt")

step({FILE})
torch.save(obj=state, f=HERE + "/ckpt.pt")

step({PAUSE})
torch.save(model.state_dict(), HERE + "/model.pt")
torch.save(model, HERE + "/old.pt", _use_new_zipfile_serialization=False)
torch.save({{"python": (3, 1), "torch": torch.get_rng_state()}}, HERE + "/random.pt")

step({NONE})
torch.save(torch.zeros(1000), HERE + "/data.pt")
torch.save({{"logits": torch.zeros(10), "labels": torch.zeros(10)}}, HERE + "/predictions.pt")
torch.save({{"torch": torch.get_rng_state()}}, HERE + "/random_alone.pt")
torch.save(state, io.BytesIO())
torch.load(HERE + "/data.pt")

step({FAILURE})
try:
    torch.save(state, HERE + "/missing/ckpt.pt")
except RuntimeError as error:
    assert "missing" in str(error)
else:
    raise AssertionError("no exception")
torch.save(state, HERE + "/ckpt.pt")

step({THREAD})
thread = threading.Thread(target=torch.save, args=(state, HERE + "/thread.pt"))
thread.start()
thread.join()

step({SAFE})
import pathlib, shutil
os.mkdir(HERE + "/new.partial")
with open(HERE + "/new.partial/ckpt.pt", "wb") as file:
    torch.save(state, file)
    file.flush()
    os.fsync(file.fileno())
pathlib.Path(HERE + "/new.partial").rename(HERE + "/new")
os.mkdir(HERE + "/older")
shutil.rmtree(HERE + "/older")

step({LATE})
os.rename(HERE + "/thread.pt", HERE + "/renamed.pt")
os.rename(HERE + "/data.pt", HERE + "/no_checkpoint.pt")
step()
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the program has run."""
    path = tmp_path_factory.mktemp("saving")
    (box,) = run_program(PROGRAM, path)
    assert errors(box) == 0
    return path


def _of(folder: Path, step: int) -> list[Saved]:
    return [each for each in saved(folder / "boxes" / "program" / "0.blackbox") if each.step == step]


def _sizes(folder: Path, *names: str) -> int:
    return sum((folder / each).stat().st_size for each in names)


@pytest.mark.process
def test_one_file(folder: Path) -> None:
    """A saved file is one save of the last step, with its size; all of its time blocks training."""
    stage, operation = _of(folder, FILE)
    size = _sizes(folder, "ckpt.pt")
    assert stage[:2] == ("save", "write")
    assert operation[:5] == ("save", "", FILE, size, False)
    assert operation.blocked_seconds == operation.end - operation.start > 0.0


def test_files_of_one_pause(folder: Path) -> None:
    """All files between two steps are one save with a stage each."""
    found = _of(folder, PAUSE)
    assert [each.stage for each in found] == ["write", "write", "write", ""]
    assert found[-1].bytes == _sizes(folder, "model.pt", "old.pt", "random.pt")
    assert 0.0 < found[-1].blocked_seconds < found[-1].end - found[-1].start


def test_not_a_checkpoint(folder: Path) -> None:
    """Predictions, tensors, random states alone and what goes into memory are no checkpoints."""
    assert _of(folder, NONE) == []


def test_failure(folder: Path) -> None:
    """A save that fails is an operation of its own, and its exception reaches the program."""
    assert [each.failed for each in _of(folder, FAILURE) if not each.stage] == [True, False]


def test_save_in_a_thread(folder: Path) -> None:
    """A save in another thread is an operation that blocks training for no time."""
    stage, operation = _of(folder, THREAD)
    assert (operation.operation, operation.blocked_seconds) == ("save", 0.0)
    assert operation.bytes == stage.bytes == _sizes(folder, "renamed.pt")


def test_around_the_file(folder: Path) -> None:
    """The fsync of the file, its rename to the final name and the removal of an older one are stages."""
    found = _of(folder, SAFE)
    assert [each.stage for each in found] == ["write", "fsync", "publish", "delete", ""]
    assert all(first.end <= second.start for first, second in pairwise(found[:-1]))
    assert found[-1].blocked_seconds >= sum(each.end - each.start for each in found[:-1])
    assert _of(folder, LATE) == []


def test_before_the_first_step(folder: Path) -> None:
    """What happens before there is a black box is recorded once training begins; files that are loaded
    together are one load."""
    found = [(each.operation, each.failed, each.bytes) for each in _of(folder, LOADED) if not each.stage]
    size = _sizes(folder, "early.pt", "optimizer.pt")
    assert found == [("save", False, size), ("load", False, size)]


@pytest.mark.process
def test_same_bytes(folder: Path, tmp_path: Path) -> None:
    """The files have the same bytes with and without recording. The old format holds addresses of memory."""
    run_program(PROGRAM, tmp_path, recorded=False)
    for name in ("early.pt", "ckpt.pt", "model.pt", "random.pt", "renamed.pt", "new/ckpt.pt"):
        assert (tmp_path / name).read_bytes() == (folder / name).read_bytes()


def test_paths(folder: Path) -> None:
    """The path of each operation is noted: its file, or the common folder of its files."""
    noted = read_checkpoints((folder / "boxes" / "program" / "0.blackbox").with_suffix(SUFFIX))
    assert {(each.operation, each.step, each.path, each.failed) for each in noted} == {
        ("save", LOADED, str(folder), False),
        ("load", LOADED, str(folder), False),
        ("save", FILE, str(folder / "ckpt.pt"), False),
        ("save", PAUSE, str(folder), False),
        ("save", FAILURE, str(folder / "missing" / "ckpt.pt"), True),
        ("save", FAILURE, str(folder / "ckpt.pt"), False),
        ("save", THREAD, str(folder / "renamed.pt"), False),
        ("save", SAFE, str(folder / "new" / "ckpt.pt"), False),
    }
    (error,) = (each.error for each in noted if each.error)
    assert error.startswith("RuntimeError: Parent directory ")


SAFETENSORS = """
from safetensors.torch import load_file, load_model, save_file, save_model
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.AdamW(model.parameters())
step(10)
save_file(model.state_dict(), HERE + "/model.safetensors", metadata={"format": "pt"})
torch.save(optimizer.state_dict(), HERE + "/optimizer.pt")
step(20)
save_model(model, HERE + "/whole.safetensors")
step(30)
save_file({"image": torch.zeros(3)}, HERE + "/image.safetensors")
load_model(model, HERE + "/whole.safetensors")
step(40)
"""


@pytest.mark.frameworks
def test_files_of_safetensors(tmp_path: Path) -> None:
    """A file is one write, also by `save_model`, and joins files of torch.save; its bytes stay the same."""
    pytest.importorskip("safetensors")
    (box,) = run_program(SAFETENSORS, tmp_path / "with")
    size = {each.name: each.stat().st_size for each in (tmp_path / "with").glob("*.*")}
    assert [(each.operation, each.step, each.bytes) for each in operations(box)] == [
        ("save", 10, size["model.safetensors"] + size["optimizer.pt"]),
        ("save", 20, size["whole.safetensors"]),
        ("load", 30, size["whole.safetensors"]),
    ]
    assert [each.stage for each in saved(box) if each.stage] == ["write", "write", "write", "read"]
    assert errors(box) == 0
    run_program(SAFETENSORS, tmp_path / "without", recorded=False)
    for name in ("model.safetensors", "whole.safetensors"):
        assert (tmp_path / "with" / name).read_bytes() == (tmp_path / "without" / name).read_bytes()
