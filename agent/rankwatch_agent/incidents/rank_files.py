"""The files that ranks leave beside their black boxes, and those themselves."""

from __future__ import annotations

import os
from pathlib import Path

from rankwatch.blackbox import layout
from rankwatch.conventions.incidents import EvidenceFault
from rankwatch.lifecycle import TERMINATED_SUFFIX
from rankwatch_agent.incidents.draft import Draft
from rankwatch_agent.incidents.untrusted_copy import copy_file

MOST_BOX_BYTES = layout.RING_OFFSET + layout.MAX_CAPACITY * layout.RECORD_SIZE
"""No black box that can be read is larger; one usually has 1.2 MB."""
MOST_STACK_BYTES = 4 << 20


def keep_black_boxes(draft: Draft) -> None:
    """Copies, made while the ranks may go on writing: a record may be torn, as in a live one."""
    run = draft.incident.run
    for rank in draft.ranks:
        name = f"blackboxes/{run}/{rank.rank}{layout.SUFFIX}"
        with draft.attempt(name):
            copy_file(rank.path, draft.folder, name, fault=EvidenceFault.BLACK_BOX, most_bytes=MOST_BOX_BYTES)


def keep_terminated_stacks(draft: Draft) -> None:
    """What faulthandler wrote in ranks that SIGTERM reached."""
    for rank in draft.ranks:
        source = rank.path.with_suffix(TERMINATED_SUFFIX)
        if not _says_something(source):
            continue
        name = f"stacks/{rank.rank}{TERMINATED_SUFFIX}.txt"
        with draft.attempt(name):
            copy_file(source, draft.folder, name, fault=EvidenceFault.STACKS, most_bytes=MOST_STACK_BYTES)


def _says_something(path: Path) -> bool:
    try:
        return os.lstat(path).st_size > 0
    except OSError:
        return False
