"""The files that ranks leave beside their black boxes, and those themselves."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from rankwatch.blackbox import layout
from rankwatch.conventions.incidents import EvidenceFault
from rankwatch.lifecycle import TERMINATED_SUFFIX
from rankwatch_agent.incidents.bundle import Draft, EvidenceError
from rankwatch_agent.incidents.untrusted_copy import copy_file
from rankwatch_agent.training.conditions import RankCondition
from rankwatch_agent.training.flight_recorder.ask import (
    FlightRecorderClient,
    FlightRecorderError,
    Replies,
    main_recorder,
    socket_beside,
)

MOST_BOX_BYTES = layout.RING_OFFSET + layout.MAX_CAPACITY * layout.RECORD_SIZE
"""No black box that can be read is larger; one usually has 1.2 MB."""
MOST_STACK_BYTES = 4 << 20
ALL_SECONDS = 30.0
"""For the recorders of all ranks together: of eight that are stopped each takes its whole time."""
EACH_SECONDS = 3.0


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


def keep_flight_recorders(
    draft: Draft,
    *,
    each_seconds: float = EACH_SECONDS,
    all_seconds: float = ALL_SECONDS,
    monotonic: Callable[[], float] = time.monotonic,
) -> None:
    """Add the recorders of the living ranks to a bundle; a rank that does not answer is missing in it.

    The ranks are asked one after another, so that one reply at a time is in memory. A rank may have two
    recorders: its main one becomes flight_recorder/RANK.json, the other lies in a folder called after its
    handler.
    """
    end = monotonic() + all_seconds
    for rank in draft.ranks:
        name = f"flight_recorder/{rank.rank}.json"
        socket = socket_beside(rank.path)
        if rank.ended:
            draft.lacks(name, f"the rank is {rank.state.value}")
        elif socket is None:
            draft.lacks(name, "the rank serves no flight recorder")
        else:
            with draft.attempt(name):
                _keep(draft, rank, _pull(socket, min(each_seconds, end - monotonic())))


def _pull(socket: Path, seconds: float) -> Replies:
    if seconds <= 0.0:
        raise EvidenceError(EvidenceFault.FLIGHT_RECORDER, "the ranks before it took all the time there was")
    try:
        return FlightRecorderClient(socket, timeout_seconds=seconds).ask()
    except FlightRecorderError as error:
        raise EvidenceError(EvidenceFault.FLIGHT_RECORDER, str(error)) from None


def _keep(draft: Draft, rank: RankCondition, replies: Replies) -> None:
    main = main_recorder(replies)
    for handler, reply in replies.items():
        folder = "flight_recorder" if handler == main else f"flight_recorder_{handler}"
        draft.folder.write(f"{folder}/{rank.rank}.json", [bytes(reply)])
