"""The folder of a checkpoint, held by a descriptor from which everything in it is opened."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import PurePosixPath

from rankwatch.untrusted.folders import Folder, NotOwnedError, NotRegularError
from rankwatch_checkpoints.reading import MissingFileError, OpenFile, Pace, ReadError, file_state
from rankwatch_checkpoints.result import CheckpointError

MOST_FILES = 1_000_000
"""Files and folders in a checkpoint."""
_MOST_NAME_CHARACTERS = 256 << 20
"""Of all paths together, which are kept in memory."""
_DEEPEST = 32
"""Folders in folders that are looked into. Each file is looked up from the top."""


class Tree:
    """The files below an open folder. Closes the folder.

    Everything must belong to `owner`, if there is one. Symbolic links to files are followed if they stay in
    the folder.
    """

    def __init__(self, folder: Folder, pace: Pace, owner: int | None = None) -> None:
        self._folder = folder
        self.path = folder.path
        self.pace = pace
        self.owner = owner
        found = folder.owner
        if owner is not None and found != owner:
            folder.close()
            raise NotOwnedError(found, owner)

    def __enter__(self) -> Tree:
        return self

    def __exit__(self, *_: object) -> None:
        self._folder.close()

    def names(self) -> Iterator[str]:
        """Return the names in the folder itself. Raises OSError."""
        return self._folder.names()

    def mode(self, name: str) -> int:
        """Return the mode of what has this name, which may be a link; 0 if there is nothing."""
        try:
            return self._folder.status_of(name).st_mode
        except OSError:
            return 0

    def inner(self, name: str) -> Tree:
        """Open a folder in this one, as a tree. A link is followed only without an owner. Raises OSError."""
        if self.owner is None:
            return Tree(Folder.open(self.path / name, follow=True), self.pace)
        return Tree(self._folder.folder(name), self.pace, self.owner)

    def file(self, path: str) -> OpenFile:
        """Open a regular file below the folder. Raises ReadError; FIFOs, sockets and devices block
        nothing."""
        try:
            return OpenFile(self._descriptor(path), self.pace)
        except FileNotFoundError:
            raise MissingFileError("it is not there") from None
        except NotRegularError:
            raise ReadError("it is no regular file") from None
        except ValueError:  # a zero byte, or a character that no name can have
            raise MissingFileError("no file can have such a name") from None
        except OSError as error:
            if error.errno == errno.EXDEV:
                reason = "it is a symbolic link that leads out of the checkpoint, which is not followed"
                raise ReadError(reason) from None
            raise ReadError(f"it could not be opened: {error.strerror}") from None

    def _descriptor(self, path: str) -> int:
        try:
            return self._folder.open_beneath(path, owner=self.owner)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            target = self._target(path)
            if target is None:
                raise
            return self._folder.open_beneath(target, owner=self.owner)

    def _target(self, path: str) -> str | None:
        """Return where a link leads that names the folder by its whole path; None for another."""
        parent, _, name = path.rpartition("/")
        try:
            with self._below(parent) as folder:
                target = PurePosixPath(os.readlink(name, dir_fd=folder.fileno()))
        except OSError:
            return None
        return str(target.relative_to(self.path)) if target.is_relative_to(self.path) else None

    def _below(self, path: str) -> AbstractContextManager[Folder]:
        return self._folder.folder_beneath(path) if path else nullcontext(self._folder)

    def files(self, leave: Callable[[str, str], None]) -> Iterator[tuple[str, os.stat_result]]:
        """Yield each file with its path and status; for a link, that of the link.

        Calls `leave` with each folder that is not looked into, and why. Raises CheckpointError if there are
        too many.
        """
        pending, count, characters = [""], 0, 0
        while pending:
            at = pending.pop()
            for path, status in self._list(at, leave):
                count, characters = count + 1, characters + len(path)
                if count > MOST_FILES or characters > _MOST_NAME_CHARACTERS:
                    raise CheckpointError(
                        f"could not verify {self.path}: it holds more than {MOST_FILES} files"
                    )
                if not stat.S_ISDIR(status.st_mode):
                    yield path, status
                elif path.count("/") < _DEEPEST:
                    pending.append(path)
                else:
                    leave(path, f"it lies more than {_DEEPEST} folders deep")

    def _list(self, at: str, leave: Callable[[str, str], None]) -> Iterator[tuple[str, os.stat_result]]:
        try:
            with self._below(at) as folder:
                if self.owner is not None and folder.owner != self.owner:
                    raise NotOwnedError(folder.owner, self.owner)
                for name in folder.names():
                    path = f"{at}/{name}" if at else name
                    try:
                        status = folder.status_of(name)
                    except OSError:
                        continue  # gone meanwhile
                    if stat.S_ISLNK(status.st_mode) and self.is_folder(path):
                        leave(path, "it is a symbolic link to a folder, which is not followed")
                    else:
                        yield path, status
        except FileNotFoundError:
            return  # gone meanwhile
        except OSError as error:
            leave(at or ".", f"it could not be listed: {error.strerror}")

    def is_folder(self, path: str) -> bool:
        """Return True for a folder below this one, and for a link to one."""
        try:
            self._folder.folder_beneath(path).close()
        except OSError:
            return False
        return True

    def fingerprint(self) -> int:
        """Return a number that differs once a file was written to, added or removed; in any order of them."""
        return sum(hash((path, *file_state(status))) for path, status in self.files(lambda *_: None))


def parent_of(tree: Tree) -> Tree | None:
    """Return the folder in which a tree lies, whoever owns it; None if it cannot be opened."""
    try:
        parent = Tree(Folder.open(tree.path.parent), tree.pace)
    except OSError:
        return None
    parent.owner = tree.owner
    return parent
