"""Adds the files of each rank to a bundle: black box, flight recorder, stacks that it wrote on SIGTERM, its
newest log lines."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from rankwatch import checkpoint_paths
from rankwatch.blackbox import layout
from rankwatch.conventions.states import EvidenceFault
from rankwatch.errors import BlackBoxError
from rankwatch.lifecycle import CRASHED_SUFFIX, KILLED_SUFFIX, TERMINATED_SUFFIX
from rankwatch.logs.lines import PREVIOUS_SUFFIX, read_lines
from rankwatch.logs.lines import SUFFIX as LINES_SUFFIX
from rankwatch.trackers import finding as trackers
from rankwatch.untrusted.folders import look
from rankwatch.untrusted.text import redacted, shown_json
from rankwatch_agent.incidents.bundle import Bundle, EvidenceError
from rankwatch_agent.incidents.untrusted_copy import copy_file, open_untrusted
from rankwatch_agent.training.checkpoints import noted_beside
from rankwatch_agent.training.conditions import RankCondition
from rankwatch_agent.training.flight_recorder.ask import (
    FlightRecorderClient,
    FlightRecorderError,
    Replies,
    SilentRankError,
    find_silent,
    main_recorder,
    socket_beside,
)
from rankwatch_agent.training.tracked_runs import trackers_beside

MAX_BOX_BYTES = layout.RING_OFFSET + layout.MAX_CAPACITY * layout.RECORD_SIZE
"""No readable black box is larger. One usually has 1.2 MB."""
_MOST_KERNEL_LINE_BYTES = 4096
MAX_STACK_BYTES = 4 << 20
ALL_SECONDS = 30.0
"""Time for the flight recorders of all ranks together."""
EACH_SECONDS = 3.0


def add_black_boxes(bundle: Bundle) -> None:
    """Copies the black boxes, and the notes beside them on experiment trackers and paths of checkpoints.
    Living ranks go on writing, so a record may be torn."""
    fault = EvidenceFault.BLACK_BOX
    for rank in bundle.ranks:
        name, owner = f"blackboxes/{bundle.incident.run}/{rank.rank}", rank.owner
        with bundle.part(f"{name}{layout.SUFFIX}") as part:
            copy_file(rank.path, bundle.folder, part, owner=owner, fault=fault, max_bytes=MAX_BOX_BYTES)
        if found := trackers_beside(rank.path, owner):
            with bundle.part(f"{name}{trackers.SUFFIX}") as part:
                bundle.folder.write(part, [trackers.note_text(found).encode()])
        if noted := noted_beside(rank.path, owner):
            with bundle.part(f"{name}{checkpoint_paths.SUFFIX}") as part:
                bundle.folder.write(part, [checkpoint_paths.note_content(noted)])
        line = rank.path.with_suffix(KILLED_SUFFIX)
        if _has_content(line):
            with bundle.part(f"{name}{KILLED_SUFFIX}") as part:
                copy_file(
                    line, bundle.folder, part, owner=owner, fault=fault, max_bytes=_MOST_KERNEL_LINE_BYTES
                )


def add_terminated_stacks(bundle: Bundle) -> None:
    """Copies what faulthandler wrote in ranks that received SIGTERM, or crashed."""
    for rank, suffix in itertools.product(bundle.ranks, (TERMINATED_SUFFIX, CRASHED_SUFFIX)):
        source = rank.path.with_suffix(suffix)
        if not _has_content(source):
            continue
        name = f"stacks/{rank.rank}{suffix}.txt"
        with bundle.part(name):
            copy_file(
                source,
                bundle.folder,
                name,
                owner=rank.owner,
                fault=EvidenceFault.STACKS,
                max_bytes=MAX_STACK_BYTES,
            )


def add_flight_recorders(
    bundle: Bundle,
    *,
    each_seconds: float = EACH_SECONDS,
    all_seconds: float = ALL_SECONDS,
    monotonic: Callable[[], float] = time.monotonic,
) -> None:
    """Asks the flight recorders of living ranks for their dumps, one at a time: only one is in memory.

    First all are asked for something short, side by side, so that silent ranks cost their time once.

    A rank may have two recorders. The main one becomes flight_recorder/RANK.json, the other goes into a
    folder named after its handler.
    """
    end = monotonic() + all_seconds
    clients: dict[int, FlightRecorderClient] = {}
    for rank in bundle.ranks:
        name = _dump_name(rank)
        socket = socket_beside(rank.path)
        facts = bundle.facts.get(rank.rank)
        if rank.ended:
            bundle.add_missing(name, f"the rank is {rank.state.value}")
        elif socket is None:
            bundle.add_missing(name, "the rank serves no flight recorder")
        elif facts is not None and facts.stopped:
            bundle.add_missing(name, f"the process of the rank is stopped (state {facts.state})")
        else:
            clients[rank.rank] = FlightRecorderClient(socket, rank.owner, timeout_seconds=each_seconds)
    silent = find_silent(clients)
    for rank in bundle.ranks:
        if rank.rank in clients:
            with bundle.part(_dump_name(rank)):
                _add_answer(bundle, rank, clients[rank.rank], silent.get(rank.rank), end - monotonic())


def add_log_lines(bundle: Bundle) -> None:
    """Adds the newest lines of each rank, and of the process that had the rank before, as JSON.

    Credentials are taken out here, and not by the rank: it writes each line in the training thread.
    """
    for rank in bundle.ranks:
        for suffix in (LINES_SUFFIX, PREVIOUS_SUFFIX):
            source, name = rank.path.with_suffix(suffix), f"logs/{rank.rank}{suffix}.jsonl"
            if _has_content(source):
                with bundle.part(name):
                    bundle.folder.write(name, _json_lines(source, rank.owner))
            elif suffix == LINES_SUFFIX:
                bundle.add_missing(name, "the rank keeps no log lines")


def _json_lines(source: Path, owner: int) -> Iterator[bytes]:
    with open_untrusted(source, owner, EvidenceFault.LOG_LINES) as file:
        try:
            found = read_lines(file, source)
        except (BlackBoxError, OSError) as error:
            raise EvidenceError(EvidenceFault.LOG_LINES, str(error)) from None
    for line in found:
        entry = line._asdict() | {"source": line.source.name.lower(), "text": redacted(line.text)}
        yield shown_json(msgspec.json.encode(entry).decode() + "\n").encode()


def _dump_name(rank: RankCondition) -> str:
    return f"flight_recorder/{rank.rank}.json"


def _add_answer(
    bundle: Bundle,
    rank: RankCondition,
    client: FlightRecorderClient,
    failure: FlightRecorderError | None,
    seconds: float,
) -> None:
    try:
        if failure is not None:
            raise failure
        if seconds <= 0.0:
            raise EvidenceError(EvidenceFault.FLIGHT_RECORDER, "the ranks before it used up the time")
        replies = client.ask()
    except FlightRecorderError as error:
        if isinstance(error, SilentRankError):
            bundle.silent.add(rank.rank)
        raise EvidenceError(EvidenceFault.FLIGHT_RECORDER, str(error)) from None
    _add_replies(bundle, rank, replies)


def _add_replies(bundle: Bundle, rank: RankCondition, replies: Replies) -> None:
    main = main_recorder(replies)
    for handler, reply in replies.items():
        folder = "flight_recorder" if handler == main else f"flight_recorder_{handler}"
        bundle.folder.write(f"{folder}/{rank.rank}.json", [bytes(reply)])


def _has_content(path: Path) -> bool:
    try:
        return look(path).st_size > 0
    except OSError:
        return False
