"""`verify`: is this checkpoint what was written?"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from rankwatch.checkpoint_files.folder import verify_folder
from rankwatch.checkpoint_files.layouts import TRACKER, iteration_of, read_pointer
from rankwatch.checkpoint_files.names import is_temporary, step_of
from rankwatch.checkpoint_files.reading import MissingFileError, OpenFile, Pace, ReadError
from rankwatch.checkpoint_files.result import (
    CheckpointError,
    CheckpointGoneError,
    Damage,
    Problem,
    Verification,
)
from rankwatch.checkpoint_files.single_file import verify_file
from rankwatch.checkpoint_files.tree import Tree, parent_of
from rankwatch.untrusted.folders import Folder, NotRegularError, open_path

_LATEST = "latest"
"""The pointer of DeepSpeed."""


def verify(
    path: Path | str,
    *,
    bytes_per_second: float | Callable[[], float] | None = None,
    progress: Callable[[int], None] | None = None,
    keep_cached: bool = True,
    owner: int | None = None,
) -> Verification:
    """Verify a checkpoint, a file or a folder, of any format that rankwatch knows.

    Reads at most `bytes_per_second`, and calls `progress` with the bytes read so far. Executes no pickle,
    follows no link out of the checkpoint, and blocks on no FIFO or device. With `keep_cached=False` it reads
    what the disk holds, as far as the system can forget what it has in memory, and leaves nothing there.

    With the user id of an `owner` everything in it must belong to that user, and no pointer of Megatron or
    DeepSpeed may be a symbolic link or name one.

    Raises CheckpointGoneError if there is none, or no more, and CheckpointError for what can be none.
    """
    given = Path(path)
    try:
        given = Path(os.path.realpath(path))
        return _verify(given, Pace(bytes_per_second, progress, keep_cached=keep_cached), owner)
    except (FileNotFoundError, NotADirectoryError, MissingFileError):
        raise CheckpointGoneError(f"could not verify {given}: it is not there") from None
    except (ReadError, OSError, ValueError) as error:  # ValueError: a zero byte in the path
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise CheckpointError(f"could not verify {given}: {reason}") from None


def _verify(given: Path, pace: Pace, owner: int | None) -> Verification:
    found = Verification(given)
    try:
        folder = Folder.open(given)
    except NotADirectoryError:
        changed = _verify_single(given, found, pace, owner)
    else:
        changed = _verify_folder(folder, found, pace, owner)
    if not found.path.exists():
        raise CheckpointGoneError(f"could not verify {given}: it was deleted while it was read")
    if found.problems and changed:
        # Half of it is of another moment than the rest: what does not fit says nothing.
        detail = "it was written to, or is being deleted, while it was read"
        found.problems, found.more_problems = [Problem(".", Damage.UNFINISHED, detail)], 0
    return found


def _verify_single(path: Path, found: Verification, pace: Pace, owner: int | None) -> bool:
    """Verify a checkpoint that is one file; returns if it was written to meanwhile."""
    try:
        descriptor = open_path(os.fspath(path), owner=owner)
    except NotRegularError:
        raise CheckpointError(f"could not verify {path}: it is neither a file nor a folder") from None
    found.files, found.step = 1, step_of(path.name)
    with OpenFile(descriptor, pace) as file:
        found.bytes = file.size
        verify_file(file, path.name, found)
        if is_temporary(path.name):
            detail = "its name is one that its writer gives until it has finished"
            found.problem(path.name, Damage.UNFINISHED, detail)
        return file.changed()


def _verify_folder(folder: Folder, found: Verification, pace: Pace, owner: int | None) -> bool:
    """Verify a checkpoint that is a folder; returns if something in it was written to meanwhile."""
    with ExitStack() as stack:
        tree: Tree = stack.enter_context(Tree(folder, pace, owner))
        pointed = _pointed(tree)
        above: Tree | None = tree
        if pointed is not None:
            tree = stack.enter_context(pointed)
        else:
            above = parent_of(tree)
            if above is not None:
                stack.enter_context(above)
        found.path = tree.path
        before = tree.fingerprint()
        verify_folder(tree, above, found)
        return bool(found.problems) and tree.fingerprint() != before


def _pointed(tree: Tree) -> Tree | None:
    """The checkpoint that a folder's pointer names: Megatron's tracker file, DeepSpeed's `latest`.

    Raises CheckpointError for a folder that holds several checkpoints and no pointer.
    """
    tracked = read_pointer(tree, TRACKER)
    iteration = iteration_of(tracked)
    if iteration is not None or tracked == "release":
        return _existing(tree, tracked if iteration is None else f"iter_{iteration:07d}", TRACKER)
    name = read_pointer(tree, _LATEST)
    if name and "/" not in name and name not in (".", ".."):
        return _existing(tree, name, _LATEST)
    count = 0
    for each in tree.names():
        mode = tree.mode(each)
        if stat.S_ISREG(mode):
            return None
        count += step_of(each) is not None and (stat.S_ISDIR(mode) or stat.S_ISLNK(mode))
    if count > 1:
        raise CheckpointError(
            f"could not verify {tree.path}: it holds {count} checkpoints; `newest` finds the newest"
        )
    return None


def _existing(tree: Tree, name: str, pointer: str) -> Tree:
    said = f"could not verify {tree.path}: {pointer} names {name:.200}, which"
    if tree.owner is not None and stat.S_ISLNK(tree.mode(name)):
        raise CheckpointError(f"{said} is a symbolic link, and is not followed")
    try:
        return tree.inner(name)
    except (FileNotFoundError, NotADirectoryError, ValueError):  # ValueError: a zero byte
        raise CheckpointError(f"{said} is not there") from None
    except OSError as error:
        raise CheckpointError(f"{said} could not be opened: {error.strerror}") from None
