"""A checkpoint is opened once, and all that is in it from there: links, owners, exchanged folders."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from rankwatch_checkpoints import CheckpointError, Outcome, Verification, tree, verify
from support.checkpoints import state
from support.hostile_checkpoints import sparse

ALICE, BOB = 64001, 64002
"""User ids that no user of the machine has."""
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to give files to other users")


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    folder = tmp_path / "step-3"
    folder.mkdir()
    torch.save(state(5), folder / "a.pt")
    return folder


def give(path: Path, user: int) -> None:
    """A folder and all that is in it, and what lies beside it, become this user's."""
    for each in (path, *path.rglob("*")):
        os.chown(each, user, user, follow_symlinks=False)


def unchecked(found: Verification) -> dict[str, str]:
    return {each.file: each.reason for each in found.unchecked}


def test_links_in_the_folder(saved: Path, tmp_path: Path) -> None:
    """A link to a file of the checkpoint is followed, wherever it names it from; one out of it is not."""
    torch.save(state(5), tmp_path / "outside.pt")
    (saved / "inner").mkdir()
    (saved / "inner" / "relative.pt").symlink_to("../a.pt")
    (saved / "absolute.pt").symlink_to(saved / "a.pt")
    (saved / "folder").symlink_to("inner")
    (saved / "out.pt").symlink_to("../outside.pt")
    (saved / "far.pt").symlink_to(saved / ".." / "outside.pt")
    (saved / "loop.pt").symlink_to("loop.pt")
    (saved / "nowhere.pt").symlink_to("nothing")
    found = verify(saved)
    out = "it is a symbolic link that leads out of the checkpoint, which is not followed"
    assert unchecked(found) == {
        "folder": "it is a symbolic link to a folder, which is not followed",
        "out.pt": out,
        "far.pt": out,
        "loop.pt": "it could not be opened: Too many levels of symbolic links",
    }
    assert found.tensors == 3 * 4
    assert [each.file for each in found.problems] == ["nowhere.pt"]


def test_folder_that_is_exchanged_for_a_link(saved: Path, tmp_path: Path) -> None:
    """Whoever can rename the checkpoint while it is read cannot lead the reading elsewhere."""
    private = tmp_path / "private"
    private.mkdir()
    torch.save({f"secret{each}": torch.ones(3) for each in range(9)}, private / "z.pt")
    torch.save({"w": torch.ones(8_000_000)}, saved / "a.pt")
    torch.save({"w": torch.ones(3)}, saved / "z.pt")

    def exchange(_: int) -> None:
        if not saved.is_symlink():
            saved.rename(tmp_path / "aside")
            saved.symlink_to(private)

    found = verify(saved, progress=exchange)
    assert saved.is_symlink()
    assert (found.outcome, found.tensors) == (Outcome.GOOD, 2)


@needs_root
def test_everything_belongs_to_the_owner(saved: Path, tmp_path: Path) -> None:
    """What others own is not read, whatever name it has in the checkpoint: links cannot lend rights."""
    torch.save(state(5), tmp_path / "private.pt")
    (saved / "inner").mkdir()
    torch.save(state(5), saved / "inner" / "b.pt")
    torch.save(state(5), saved / "c.pt")
    give(saved, ALICE)
    give(saved / "inner", BOB)
    os.chown(saved / "c.pt", BOB, BOB)
    (saved / "hard.pt").hardlink_to(tmp_path / "private.pt")
    found = verify(saved, owner=ALICE)
    assert (found.outcome, found.tensors, found.problems) == (Outcome.GOOD, 4, [])
    of_bob = f"it belongs to user {BOB}, not to user {ALICE}"
    assert unchecked(found) == {
        "inner": f"it could not be listed: {of_bob}",
        "c.pt": f"it could not be opened: {of_bob}",
        "hard.pt": f"it could not be opened: it belongs to user 0, not to user {ALICE}",
    }
    for path in (saved, saved / "a.pt"):
        with pytest.raises(CheckpointError, match=f"it belongs to user {ALICE}, not to user {BOB}"):
            verify(path, owner=BOB)


def point_by_a_link(run: Path, private: Path) -> None:
    (run / "latest_checkpointed_iteration.txt").symlink_to(private / "number")


def point_by_a_link_within(run: Path, _: Path) -> None:
    (run / "number").write_text("7")
    (run / "latest_checkpointed_iteration.txt").symlink_to("number")


def point_to_a_link(run: Path, private: Path) -> None:
    (run / "latest_checkpointed_iteration.txt").write_text("7")
    (run / "iter_0000007").symlink_to(private)


def point_to_a_link_by_latest(run: Path, private: Path) -> None:
    (run / "latest").write_text("global_step7")
    (run / "global_step7").symlink_to(private)


@needs_root
@pytest.mark.parametrize(
    ("point", "reason"),
    [
        (point_by_a_link, "latest_checkpointed_iteration.txt is a symbolic link, which is not followed"),
        (
            point_by_a_link_within,
            "latest_checkpointed_iteration.txt is a symbolic link, which is not followed",
        ),
        (point_to_a_link, "names iter_0000007, which is a symbolic link, and is not followed"),
        (
            point_to_a_link_by_latest,
            "latest names global_step7, which is a symbolic link, and is not followed",
        ),
    ],
)
def test_pointers_that_are_links(tmp_path: Path, point: Callable[[Path, Path], None], reason: str) -> None:
    """The agent verifies what a user's pointer names, and publishes names of tensors: a link would have it
    read the folder of somebody else."""
    run, private = tmp_path / "run", tmp_path / "private"
    for each in (run, private):
        each.mkdir()
    (private / "number").write_text("7")
    torch.save(state(5), private / "secret.pt")
    private.chmod(0o700)
    point(run, private)
    give(run, ALICE)
    with pytest.raises(CheckpointError, match=reason):
        verify(run, owner=ALICE)


@needs_root
def test_pointer_to_a_folder_of_another_user(tmp_path: Path) -> None:
    (tmp_path / "iter_0000007").mkdir()
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("7")
    give(tmp_path, ALICE)
    os.chown(tmp_path / "iter_0000007", BOB, BOB)
    with pytest.raises(CheckpointError, match=f"which could not be opened: it belongs to user {BOB}"):
        verify(tmp_path, owner=ALICE)


def test_pointer_to_a_link_of_an_operator(tmp_path: Path) -> None:
    """Who verifies by hand has the rights to look, and a checkpoint can lie on another disk."""
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    torch.save(state(5), folder / "a.pt")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "latest").write_text("global_step7")
    (tmp_path / "run" / "global_step7").symlink_to(folder)
    assert verify(tmp_path / "run").outcome is Outcome.GOOD


def test_too_many_files(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Folders count as well, and the list of names is left as soon as it is too long."""
    monkeypatch.setattr(tree, "MOST_FILES", 10)
    for each in range(10):
        (saved / f"{each}").mkdir()
    with pytest.raises(CheckpointError, match="it holds more than 10 files"):
        verify(saved)


def test_deep_folders(saved: Path) -> None:
    """What lies deeper than any checkpoint is not looked at, which is said."""
    deep = saved.joinpath(*"d" * 40)
    deep.mkdir(parents=True)
    torch.save(state(5), deep / "b.pt")
    found = verify(saved)
    assert found.outcome is Outcome.GOOD
    assert unchecked(found) == {"/".join("d" * 33): "it lies more than 32 folders deep"}


@pytest.mark.parametrize("path", ["a\0b", "\ud800", "x" * 5000, "/dev/full"])
def test_paths_that_cannot_be(path: str) -> None:
    with pytest.raises(CheckpointError, match="could not verify"):
        verify(path)


def test_holes_are_not_hashed(saved: Path) -> None:
    """A digest of 2 GiB of zeros that nobody has written takes seconds, of 15 TB half a day."""
    sparse(saved / "b.bin", 2 << 30)
    digest = '{"algorithm": "sha256", "files": {"b.bin": "00"}}'
    (saved / "integrity.json").write_text(digest)
    reason = unchecked(verify(saved))["b.bin"]
    assert reason.startswith("its size is 2147483648 bytes, but only ")
    assert reason.endswith(" of them are written")
