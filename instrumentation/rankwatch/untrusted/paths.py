"""Paths of several names: of what a checkpoint holds, which must not lead out of its folder, and of what a
person has a command write, perhaps in a folder of somebody else."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path, PurePosixPath

from rankwatch.untrusted.folders import LOOK, Folder

_OPENAT2 = 437
_RESOLVE_NO_MAGICLINKS = 0x02
_RESOLVE_BENEATH = 0x08
_OPENAT2_TRIES = 8
"""Linux answers EAGAIN if a folder is renamed during the look-up."""
_WRITE = os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


def look_beneath(folder: int, path: PurePosixPath) -> int:
    """Return a descriptor of what is at a path of several names below an open folder, without opening it.

    Links are followed if they stay below the folder, on Linux 5.6 and newer; else they are an error. Raises
    OSError.
    """
    if path.is_absolute() or not path.parts or ".." in path.parts:
        raise OSError(errno.EXDEV, "it leads out of the folder")
    try:
        return _openat2(folder, os.fspath(path))
    except NotImplementedError:
        return _by_names(folder, path)


def create_output(path: Path) -> int:
    """Open the file to write at a path, created or emptied; its descriptor. Raises OSError.

    Links and pipes of root and of this user are taken, such as /dev/stdout. Those of others are not: a link
    would lead root into any file of the node, and a pipe may have nobody who reads it.
    """
    try:
        file = os.open(path, _WRITE | os.O_NOFOLLOW, 0o666)
    except OSError as error:
        if error.errno != errno.ELOOP or not _is_trusted(path.lstat()):
            raise
        file = os.open(path, _WRITE, 0o666)
    try:
        status = os.fstat(file)
        if stat.S_ISREG(status.st_mode):
            os.ftruncate(file, 0)
        elif not _is_trusted(status):
            raise OSError(errno.EINVAL, f"it is no regular file, and belongs to user {status.st_uid}")
        os.set_blocking(file, True)
    except BaseException:
        os.close(file)
        raise
    return file


def write_at_once(path: Path, content: bytes, *, lasting: bool = False) -> None:
    """Write a file as `Folder.write`, with the mode that the umask leaves; its folder may be a link."""
    with Folder.open(path.parent, follow=True) as folder:
        folder.write(path.name, content, mode=0o666, lasting=lasting)


def _by_names(folder: int, path: PurePosixPath) -> int:
    """Name by name, without links. It is what kernels before 5.6 and some sandboxes leave."""
    at = os.dup(folder)
    try:
        for name in path.parts:
            inner = os.open(name, LOOK, dir_fd=at)
            os.close(at)
            at = inner
            if stat.S_ISLNK(os.fstat(at).st_mode):
                raise OSError(errno.ELOOP, "it is a link, which this system cannot follow safely")
    except BaseException:
        os.close(at)
        raise
    return at


def _openat2(folder: int, path: str) -> int:
    """Call openat2(2) of Linux 5.6. Raises NotImplementedError where there is none."""
    import ctypes  # 10 ms that only who verifies checkpoints pays

    flags = os.O_PATH | os.O_CLOEXEC
    how = (ctypes.c_uint64 * 3)(flags, 0, _RESOLVE_BENEATH | _RESOLVE_NO_MAGICLINKS)
    syscall = ctypes.CDLL(None, use_errno=True).syscall
    for _ in range(_OPENAT2_TRIES):
        found = int(syscall(_OPENAT2, folder, os.fsencode(path), ctypes.byref(how), ctypes.sizeof(how)))
        if found >= 0:
            return found
        failure = ctypes.get_errno()
        if failure in (errno.ENOSYS, errno.EPERM):  # EPERM: a sandbox that does not know the call
            raise NotImplementedError
        if failure == errno.EXDEV:
            raise OSError(failure, "it is a link that leads out of the folder, or to nowhere")
        if failure != errno.EAGAIN:
            raise OSError(failure, os.strerror(failure))
    raise OSError(errno.EAGAIN, "its folder is renamed all the time")


def _is_trusted(status: os.stat_result) -> bool:
    return status.st_uid in (0, os.geteuid())
