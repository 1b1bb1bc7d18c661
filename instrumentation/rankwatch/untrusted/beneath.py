"""Look-ups of paths that must not lead out of a folder."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import PurePosixPath

_LOOK = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_OPENAT2 = 437
_RESOLVE_NO_MAGICLINKS = 0x02
_RESOLVE_BENEATH = 0x08
_OPENAT2_TRIES = 8
"""Linux answers EAGAIN if a folder is renamed during the look-up."""


def look_beneath(folder: int, path: PurePosixPath) -> int:
    """A descriptor of what is at a path of several names below an open folder; nothing is opened by it.

    Links are followed if they stay below the folder, on Linux 5.6 and newer; else they are an error. Raises
    OSError.
    """
    if path.is_absolute() or not path.parts or ".." in path.parts:
        raise OSError(errno.EXDEV, "it leads out of the folder")
    try:
        return _openat2(folder, os.fspath(path))
    except NotImplementedError:
        return _by_names(folder, path)


def _by_names(folder: int, path: PurePosixPath) -> int:
    """Name by name, without links. It is what kernels before 5.6 and some sandboxes leave."""
    at = os.dup(folder)
    try:
        for name in path.parts:
            inner = os.open(name, _LOOK, dir_fd=at)
            os.close(at)
            at = inner
            if stat.S_ISLNK(os.fstat(at).st_mode):
                raise OSError(errno.ELOOP, "it is a link, which this system cannot follow safely")
    except BaseException:
        os.close(at)
        raise
    return at


def _openat2(folder: int, path: str) -> int:
    """openat2(2) of Linux 5.6. Raises NotImplementedError where there is none."""
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
