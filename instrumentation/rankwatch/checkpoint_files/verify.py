"""`verify`: is this checkpoint what was written?"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

from rankwatch.checkpoint_files.folder import MOST_FILES, verify_folder
from rankwatch.checkpoint_files.layouts import TRACKER, read_text
from rankwatch.checkpoint_files.names import is_temporary, step_of
from rankwatch.checkpoint_files.reading import MissingFileError, OpenFile, Pace, ReadError
from rankwatch.checkpoint_files.result import CheckpointError, CheckpointGoneError, Damage, Verification
from rankwatch.checkpoint_files.single_file import verify_file


def verify(
    path: Path | str,
    *,
    bytes_per_second: float | None = None,
    progress: Callable[[int], None] | None = None,
    keep_cached: bool = True,
) -> Verification:
    """Verify a checkpoint, a file or a folder, of any format that rankwatch knows.

    Reads at most `bytes_per_second`, and calls `progress` with the bytes read so far. Executes no pickle,
    follows no link out of the checkpoint, and blocks on no FIFO or device. With `keep_cached=False` it reads
    what the disk holds, as far as the system can forget what it has in memory, and leaves nothing there.

    Raises CheckpointGoneError if there is none, or no more, and CheckpointError for what can be none.
    """
    given = Path(os.path.realpath(path))
    found = Verification(given)
    pace = Pace(bytes_per_second, progress, keep_cached=keep_cached)
    try:
        mode = given.stat().st_mode
        if stat.S_ISDIR(mode):
            one = _pointed(given, pace)
            found.path = one
            before = _state_of(one)
            verify_folder(one, found, pace)
        elif stat.S_ISREG(mode):
            before = _state_of(given)
            _verify_single(given, found, pace)
        else:
            raise CheckpointError(f"could not verify {given}: it is neither a file nor a folder")
    except (FileNotFoundError, NotADirectoryError, MissingFileError):
        raise CheckpointGoneError(f"could not verify {given}: it is not there") from None
    except (OSError, ReadError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise CheckpointError(f"could not verify {given}: {reason}") from None
    if not found.path.exists():
        raise CheckpointGoneError(f"could not verify {given}: it was deleted while it was read")
    if found.problems and _state_of(found.path) != before:
        # Half of it is of another moment than the rest: what does not fit says nothing.
        found.problems.clear()
        found.more_problems = 0
        found.problem(".", Damage.UNFINISHED, "it was written to, or is being deleted, while it was read")
    return found


def _state_of(path: Path) -> dict[str, tuple[int, int, int]]:
    """Inode, size and time of each file of a checkpoint."""
    files = (
        [path] if path.is_file() else [Path(top, name) for top, _, names in os.walk(path) for name in names]
    )
    found = {}
    for each in files[:MOST_FILES]:
        try:
            status = each.lstat()
        except OSError:
            continue  # deleted meanwhile, which the other look shows
        found[str(each)] = (status.st_ino, status.st_size, status.st_mtime_ns)
    return found


def _verify_single(path: Path, found: Verification, pace: Pace) -> None:
    found.files, found.step = 1, step_of(path.name)
    with OpenFile(path, path.parent, pace) as file:
        found.bytes = file.size
        verify_file(file, path.name, found)
    if is_temporary(path.name):
        found.problem(
            path.name, Damage.UNFINISHED, "its name is one that its writer gives until it has finished"
        )


def _pointed(folder: Path, pace: Pace) -> Path:
    """The checkpoint that a folder's pointer names: Megatron's tracker file, DeepSpeed's `latest`.

    Raises CheckpointError for a folder that holds several checkpoints and no pointer.
    """
    names = [each.name for each in folder.iterdir()]
    tracked = read_text(folder, TRACKER, pace).strip() if TRACKER in names else ""
    if tracked and (tracked.isdigit() or tracked == "release"):
        name = f"iter_{int(tracked[:18]):07d}" if tracked.isdigit() else tracked
        return _existing(folder, name, TRACKER)
    if "latest" in names and (folder / "latest").is_file():
        name = read_text(folder, "latest", pace).strip()
        if name and "/" not in name and name not in (".", ".."):
            return _existing(folder, name, "latest")
    steps = [name for name in names if (folder / name).is_dir() and step_of(name) is not None]
    files = [name for name in names if (folder / name).is_file()]
    if len(steps) > 1 and not files:
        count = len(steps)
        raise CheckpointError(
            f"could not verify {folder}: it holds {count} checkpoints; `newest` finds the newest"
        )
    return folder


def _existing(folder: Path, name: str, pointer: str) -> Path:
    if not (folder / name).is_dir():
        raise CheckpointError(f"could not verify {folder}: {pointer} names {name}, which is not there")
    return folder / name
