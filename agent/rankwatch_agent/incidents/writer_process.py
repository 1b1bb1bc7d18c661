"""Which process of this node writes a black box, as the kernel tells it.

The header holds the process id that the trainer sees, which in a container is another one here, and the
file is untrusted anyway. The writer holds a record lock on the file, and the kernel tells who does.
"""

from __future__ import annotations

import fcntl
import os
import struct
from pathlib import Path

from rankwatch.conventions.incidents import EvidenceFault
from rankwatch_agent.incidents.untrusted_copy import open_untrusted

_FLOCK = struct.Struct("hhqqi4x")


def writer_process(black_box: Path) -> int | None:
    """Process id of the living writer, in the agent's own numbering; None where it cannot be told.

    That is so where no process holds the lock, and where it is of a PID namespace that the agent does not
    see into (Linux then says 0 or -1). Raises EvidenceError where the file cannot be opened.
    """
    with open_untrusted(black_box, EvidenceFault.BLACK_BOX) as file:
        query = _FLOCK.pack(fcntl.F_RDLCK, os.SEEK_SET, 0, 0, 0)
        try:
            kind, _, _, _, pid = _FLOCK.unpack(fcntl.fcntl(file, fcntl.F_GETLK, query))
        except OSError:
            return None  # a file system without locks
    return pid if kind != fcntl.F_UNLCK and pid > 0 else None
