"""Files that a command writes where a person says, perhaps in a folder of somebody else."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

_WRITE = os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


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


def _is_trusted(status: os.stat_result) -> bool:
    return status.st_uid in (0, os.geteuid())
