"""Folders that other users can write to, or exchange for links, each held by a descriptor.

A path is looked up anew each time it is used, so its owner can put a link in its way between two uses. A
descriptor stays what it is. Everything in a folder is named by one name without `/`, and a link is never
followed, but for `open_beneath`, which follows those that stay in the folder.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path, PurePosixPath

LOOK = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_CREATE = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_DESCRIPTORS = Path("/proc/self/fd")
_NEW = ".new"
"""Suffix of a file that is written before it takes the place of another. A leading dot hides it."""
_ASIDE = ".removed"
"""Suffix of a file that is checked before it is removed. A leading dot hides it, too."""
_DEEPEST = 8
"""Folders in folders that are removed. Ours are two deep."""
_MOST_REMOVED = 4096
"""Files of a folder that are removed with it; a user can make millions."""
_CHUNK_BYTES = 1 << 20
_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH
_LAST_SYSTEM_USER = 999
"""SYS_UID_MAX of login.defs(5): users up to it are services of the node."""


class NotRegularError(OSError):
    """What is opened is a device, FIFO, socket, folder or link, and not a regular file."""

    def __init__(self) -> None:
        super().__init__(errno.EINVAL, "it is not a regular file")


class NotOwnedError(PermissionError):
    """What is opened belongs to another user than it must."""

    def __init__(self, found: int, wanted: int) -> None:
        super().__init__(errno.EPERM, f"it belongs to user {found}, not to user {wanted}")


class Folder:
    """An open folder. Close it, or use it in a `with`. All methods raise OSError."""

    def __init__(self, descriptor: int, path: Path) -> None:
        self._descriptor = descriptor
        self.path = path
        """Where it was when it was opened, for messages."""

    @classmethod
    def open(cls, path: Path, *, follow: bool = False) -> Folder:
        """Return the folder at a path whose parent only root or this user can change.

        follow: a link at the path is followed; else it is an error.
        """
        return cls(os.open(path, _OPEN_FOLDER | (0 if follow else os.O_NOFOLLOW)), path)

    def folder(self, name: str) -> Folder:
        """Return a folder in this one."""
        flags = _OPEN_FOLDER | os.O_NOFOLLOW
        return Folder(os.open(_one(name), flags, dir_fd=self._descriptor), self.path / name)

    def close(self) -> None:
        """Release the descriptor. Closing twice is allowed."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        if self._descriptor >= 0:  # globals may be gone while the interpreter ends
            close(self._descriptor)

    def __enter__(self) -> Folder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def fileno(self) -> int:
        """Return the descriptor, for `dir_fd` of functions that take one."""
        return self._descriptor

    def status(self) -> os.stat_result:
        """Return the status of the folder itself."""
        return os.fstat(self._descriptor)

    @property
    def owner(self) -> int:
        """User id of its owner."""
        return self.status().st_uid

    def names(self) -> Iterator[str]:
        """Yield the names in it. The list is read as it is used: there may be millions."""
        with os.scandir(self._descriptor) as entries:
            for entry in entries:
                yield entry.name

    def status_of(self, name: str) -> os.stat_result:
        """Return the status of what has this name, which may be a link."""
        return os.stat(_one(name), dir_fd=self._descriptor, follow_symlinks=False)

    def path_of(self, name: str) -> str:
        """Return a path of what has this name, for a library that takes no descriptor. It is short, and leads
        here whatever this folder is called by now, except where /proc is not mounted."""
        folder = f"{_DESCRIPTORS}/{self._descriptor}" if _DESCRIPTORS.is_dir() else self.path
        return f"{folder}/{_one(name)}"

    def open_file(self, name: str, *, owner: int | None = None) -> int:
        """Open a regular file for reading, without waiting; its descriptor.

        owner: user id that the file must have. Raises NotRegularError and NotOwnedError besides.
        """
        try:
            return _open_regular(os.open(_one(name), LOOK, dir_fd=self._descriptor), owner)
        except FileNotFoundError:
            if _DESCRIPTORS.is_dir():
                raise
        file = os.open(name, _READ | os.O_NOFOLLOW, dir_fd=self._descriptor)  # without /proc
        try:
            _check(file, owner)
        except BaseException:
            os.close(file)
            raise
        return file

    def open_beneath(self, path: str | PurePosixPath, *, owner: int | None = None) -> int:
        """Open a path of several names below this folder, as `open_file` does.

        Links are followed if they stay below it, on Linux 5.6 and newer; else they are an error.
        """
        from rankwatch.untrusted.paths import look_beneath  # only who verifies checkpoints needs it

        return _open_regular(look_beneath(self._descriptor, PurePosixPath(path)), owner)

    def folder_beneath(self, path: str | PurePosixPath) -> Folder:
        """Return the folder at a path of several names below this one; links as in `open_beneath`."""
        from rankwatch.untrusted.paths import look_beneath

        looked = look_beneath(self._descriptor, PurePosixPath(path))
        try:
            return Folder(os.open(".", _OPEN_FOLDER, dir_fd=looked), self.path / path)
        finally:
            os.close(looked)

    def read(self, name: str, *, most_bytes: int, owner: int | None = None) -> bytes:
        """Read a regular file. Raises OSError with EFBIG if it is longer, and as `open_file`."""
        file = self.open_file(name, owner=owner)
        try:
            return read_all(file, most_bytes)
        finally:
            os.close(file)

    def create(self, name: str, *, mode: int = 0o644) -> int:
        """Create a file for reading and writing; its descriptor. Whatever has the name is an error."""
        return os.open(_one(name), _CREATE, mode, dir_fd=self._descriptor)

    def write(
        self,
        name: str,
        content: bytes,
        *,
        mode: int = 0o644,
        owner: int | None = None,
        lasting: bool = False,
    ) -> None:
        """Write a file at once: whoever opens the name sees the old content or all of the new.

        mode: less the umask. owner: user id that the file gets.
        lasting: also after the machine has lost power.
        """
        new = f".{name}{_NEW}"
        self.remove(new)
        file = self.create(new, mode=mode)
        try:
            for at in range(0, len(content), _CHUNK_BYTES):
                _write_all(file, content[at : at + _CHUNK_BYTES])
            if owner is not None and owner != os.geteuid():
                os.fchown(file, owner, -1)
            if lasting:
                os.fsync(file)
            self.rename(new, name)
        except BaseException:
            with contextlib.suppress(OSError):
                self.remove(new)
            raise
        finally:
            os.close(file)
        if lasting:
            os.fsync(self._descriptor)

    def make(self, name: str, *, mode: int = 0o755) -> Folder:
        """Return the folder of this name, created if it is not there, with this mode whatever the umask."""
        with contextlib.suppress(FileExistsError):
            os.mkdir(_one(name), mode, dir_fd=self._descriptor)
            with self.folder(name) as made:
                os.fchmod(made.fileno(), mode)
        return self.folder(name)

    def rename(self, name: str, new: str, *, to: Folder | None = None) -> None:
        """Rename a file here, or move it to another folder of this file system."""
        target = self if to is None else to
        os.rename(_one(name), _one(new), src_dir_fd=self._descriptor, dst_dir_fd=target.fileno())

    def link(self, name: str, new: str, *, to: Folder | None = None) -> None:
        """Give a file another name, which must be free."""
        target = self if to is None else to
        os.link(
            _one(name),
            _one(new),
            src_dir_fd=self._descriptor,
            dst_dir_fd=target.fileno(),
            follow_symlinks=False,
        )

    def remove(self, name: str) -> bool:
        """Remove a file; False if there was none."""
        try:
            os.unlink(_one(name), dir_fd=self._descriptor)
        except FileNotFoundError:
            return False
        return True

    def remove_if(self, name: str, inode: int) -> bool:
        """Remove a file if it has this inode; True if it had.

        Another process may replace it at any moment. So it is first renamed, then checked, and put back if it
        is another one.
        """
        aside = f".{name}.{os.getpid()}{_ASIDE}"
        self.rename(name, aside)
        ours = self.status_of(aside).st_ino == inode
        if not ours:
            with contextlib.suppress(FileExistsError):  # an even newer file has taken the name meanwhile
                self.link(aside, name)
        self.remove(aside)
        return ours

    def remove_asides(self) -> None:
        """Remove what a process has left that was killed within `remove_if`."""
        for name in islice(self.names(), _MOST_REMOVED):
            if name.startswith(".") and name.endswith(_ASIDE):
                self.remove(name)

    def remove_with_new(self, name: str) -> None:
        """Remove a file that `write` writes, and what it has left of it where its process was killed."""
        for each in (name, f".{name}{_NEW}"):
            self.remove(each)

    def remove_empty(self, name: str) -> None:
        """Remove a folder; an error if it is not empty."""
        os.rmdir(_one(name), dir_fd=self._descriptor)

    def remove_tree(self, name: str) -> None:
        """Remove a folder with all that is in it, as far as its folders belong to the owner of this one.

        What cannot be removed stays, and what is beyond 4,096 files and folders.
        """
        with contextlib.suppress(OSError):
            self._remove_tree(name, self.owner, _DEEPEST, iter(range(_MOST_REMOVED)))

    def _remove_tree(self, name: str, owner: int, deeper: int, left: Iterator[int]) -> None:
        with self.folder(name) as inner:
            if inner.owner != owner or not deeper:
                return
            for each in [each for each, _ in zip(inner.names(), left)]:  # noqa: B905 - the shorter one ends it
                with contextlib.suppress(OSError):
                    if stat.S_ISDIR(inner.status_of(each).st_mode):
                        inner._remove_tree(each, owner, deeper - 1, left)
                    else:
                        inner.remove(each)
        self.remove_empty(name)

    def distrust(self) -> str:
        """Return why an ordinary user could exchange what others have in this folder; empty if none can.

        Root, this user and services of the node are trusted. Where others may write, too, the sticky bit
        keeps them from what is not theirs.
        """
        status = self.status()
        if status.st_uid > _LAST_SYSTEM_USER and status.st_uid not in (os.geteuid(), _unmapped_user()):
            return f"it belongs to user {status.st_uid}"
        if status.st_mode & _WRITABLE_BY_OTHERS and not status.st_mode & stat.S_ISVTX:
            return f"others may write to it, and it has no sticky bit (mode {stat.S_IMODE(status.st_mode):o})"
        return ""


def look(path: Path, *, follow_folder: bool = False) -> os.stat_result:
    """Return the status of what is at a path, which may be a link. Raises OSError.

    Its folder must be none: a link may lead to a file server that never answers.

    follow_folder: its folder may be one.
    """
    flags = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC | (0 if follow_folder else os.O_NOFOLLOW)
    with Folder(os.open(path.parent, flags), path.parent) as folder:
        return folder.status_of(path.name)


def open_regular(path: Path, *, owner: int | None = None, follow_folder: bool = False) -> int:
    """Open a regular file for reading, as `Folder.open_file`. It must be no link.

    follow_folder: its folder may be one.
    """
    with Folder.open(path.parent, follow=follow_folder) as folder:
        return folder.open_file(path.name, owner=owner)


def read_owned(path: Path, owner: int, most_bytes: int) -> bytes:
    """Return the content of a regular file of this user; its folder is no link either.

    Raises OSError, also if it is longer, or belongs to somebody else.
    """
    with Folder.open(path.parent) as folder:
        return folder.read(path.name, most_bytes=most_bytes, owner=owner)


def read_regular(path: Path, most_bytes: int) -> bytes:
    """Return the content of a regular file that is no link, in a folder that somebody has named.

    Raises OSError, also if it is longer.
    """
    file = open_regular(path, follow_folder=True)
    try:
        return read_all(file, most_bytes)
    finally:
        os.close(file)


def read_all(file: int, most_bytes: int) -> bytes:
    """Read an open regular file. Raises OSError, with EFBIG if it has more than `most_bytes`."""
    if os.fstat(file).st_size > most_bytes:
        raise OSError(errno.EFBIG, f"it has more than {most_bytes} bytes")
    parts, at = [], 0
    while at < most_bytes:
        part = os.pread(file, min(_CHUNK_BYTES, most_bytes - at), at)
        if not part:
            break
        parts.append(part)
        at += len(part)
    return b"".join(parts)


def open_path(path: str, *, owner: int | None = None) -> int:
    """Open a regular file at a path that a user chose. Raises as `Folder.open_file`.

    It follows links, and may wait for a file server for ever: only for a child with the rights of that user.
    """
    return _open_regular(os.open(path, os.O_PATH | os.O_CLOEXEC), owner)


def _open_regular(looked: int, owner: int | None) -> int:
    """Open what was looked at. Opening a device can have effects, so it is looked at first."""
    try:
        _check(looked, owner)
        return os.open(f"{_DESCRIPTORS}/{looked}", _READ)
    finally:
        os.close(looked)


def _check(file: int, owner: int | None) -> None:
    status = os.fstat(file)
    if not stat.S_ISREG(status.st_mode):
        raise NotRegularError
    if owner is not None and status.st_uid != owner:
        raise NotOwnedError(status.st_uid, owner)


def _write_all(file: int, content: bytes) -> None:
    while content:
        content = content[os.write(file, content) :]


def _one(name: str) -> str:
    """Return the name, if it is one. Raises OSError."""
    if not name or "/" in name or "\0" in name or name in (".", ".."):
        raise OSError(errno.EINVAL, f"{name!r:.100} is not the name of a file")
    return name


def _unmapped_user() -> int:
    """Return the id that stands for every user who has none in this user namespace; -1 outside of one.

    In a rootless container, root of the node is one of them.
    """
    try:
        if Path("/proc/self/uid_map").read_bytes().split() == [b"0", b"0", b"%d" % ((1 << 32) - 1)]:
            return -1
        return int(Path("/proc/sys/kernel/overflowuid").read_bytes())
    except (OSError, ValueError):
        return -1
