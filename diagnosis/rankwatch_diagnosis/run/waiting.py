"""Whom the run waits for: by the final state of its boxes, and by flight recorders where there are any."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Set
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path

from rankwatch.conventions.states import RankState
from rankwatch_agent.training.flight_recorder.ask import (
    FlightRecorderClient,
    FlightRecorderError,
    SilentRankError,
    ask_all,
    main_recorder,
    socket_beside,
)
from rankwatch_agent.training.steps.timeouts import SECTIONS
from rankwatch_diagnosis.hang.engine import STALL_SECONDS, diagnose
from rankwatch_diagnosis.hang.from_dump import snapshot_of
from rankwatch_diagnosis.hang.verdict import HangVerdict, State
from rankwatch_diagnosis.hang.worker import Reading, read_dumps
from rankwatch_diagnosis.run.boxes import Box, Boxes
from rankwatch_diagnosis.run.folder import RunFolder
from rankwatch_diagnosis.run.snapshots import box_snapshots

LEAST_STALL_SECONDS = 5.0
"""However fast the steps are: boxes are read one after another, while the run goes on."""
MOST_STALL_SECONDS = 1800.0
"""Seconds that the stall alert waits where nothing is learnt (`stall_fallback_seconds`)."""
_MOST_SHOWN = 64
ANSWER_SECONDS = 3.0
"""For a rank to answer: a stopped process never does. All ranks are asked side by side."""
DUMP_SECONDS = 10.0
_AT_ONCE = 16
_MOST_ASKED = 64
"""More ranks than a node has; boxes of other nodes have no living ranks."""


@dataclass
class Recorders(Reading):
    """What the flight recorders gave."""

    live: int = 0
    """How many ranks answered themselves."""
    silent: set[int] = field(default_factory=set)
    """Ranks that took the question and gave no answer."""


def living_paths(folder: RunFolder, boxes: Boxes) -> dict[int, Path]:
    """Return the boxes of living ranks, where they are no copies."""
    paths = {path.stem: path for path in folder.boxes}
    living = () if boxes.copied else boxes.living
    return {each.rank: paths[str(each.rank)] for each in living if str(each.rank) in paths}


def gather_recorders(folder: RunFolder, boxes: Boxes, *, stopped: Set[int] = frozenset()) -> Recorders:
    """Return the flight recorders of living ranks as they answer, and those of other ranks from files.

    stopped: ranks that are not asked, because their processes do not run.
    """
    living = living_paths(folder, boxes)
    asked = ask_living({rank: path for rank, path in living.items() if rank not in stopped})
    asked.broken.update(dict.fromkeys(sorted(stopped & living.keys()), "its process is stopped"))
    answered = {each.rank for each in asked.snapshots}
    left = {
        rank: path
        for rank, path in folder.dumps.items()
        if rank not in answered
        and (boxes.copied or rank not in boxes.by_rank or not boxes.by_rank[rank].alive)
    }
    # Pickles or JSON; nothing in them is executed.
    files = read_dumps(left, deadline_seconds=DUMP_SECONDS) if left else Reading()
    silent = {rank: why for rank, why in (files.broken | asked.broken).items() if rank not in answered}
    return Recorders(
        [*asked.snapshots, *files.snapshots], silent, live=asked.live, silent=asked.silent - answered
    )


def _client(box: Path) -> FlightRecorderClient | None:
    """Make a client for the socket beside a box, which must be its owner's; None where there is none."""
    try:
        owner, socket = box.lstat().st_uid, socket_beside(box)
    except OSError:
        return None
    return None if socket is None else FlightRecorderClient(socket, owner, timeout_seconds=ANSWER_SECONDS)


def ask_living(boxes: Mapping[int, Path]) -> Recorders:
    """Ask ranks over the sockets beside their boxes; those without a socket are left out."""
    clients = {rank: client for rank, path in boxes.items() if (client := _client(path)) is not None}
    clients = dict(islice(clients.items(), _MOST_ASKED))
    found = Recorders()
    for rank, answer in ask_all(clients, at_once=_AT_ONCE):
        client = clients[rank]
        try:
            if isinstance(answer, FlightRecorderError):
                raise answer
            dump = client.parse(answer[main_recorder(answer)])
        except FlightRecorderError as error:
            found.broken[rank] = str(error)
            if isinstance(error, SilentRankError):
                found.silent.add(rank)
            continue
        dump.time_seconds = client.asked_at
        found.snapshots.append(snapshot_of(dump, rank))
    found.live = len(found.snapshots)
    return found


def stall_seconds(boxes: Boxes) -> float:
    """Return from which age a wait is a stall: what the ranks have learnt of themselves, at least 5 seconds.

    30 seconds where one of them has learnt nothing. Half an hour where that one is in its first checkpoint or
    evaluation, because nothing distinguishes that from a hang.
    """
    found = [_limit(each) for each in boxes.living]
    return min(MOST_STALL_SECONDS, max(LEAST_STALL_SECONDS, *found)) if found else STALL_SECONDS


def _limit(box: Box) -> float:
    if box.timeout is not None:
        return box.timeout
    in_section = box.open_phase is not None and box.open_phase[0] in SECTIONS
    return MOST_STALL_SECONDS if in_section else STALL_SECONDS


def judge_waiting(
    boxes: Boxes, recorders: Recorders, *, stall: float, complete: bool, given: bool = False
) -> HangVerdict:
    """Reach one verdict from both sources.

    stall: age in seconds from which a wait is a stall; it counts only in boxes that are no copies and while
        a rank lives. A bundle is written at a stall.
    complete: boxes that are not there are missing, and not on other nodes.
    given: a person asked for that age. Else a run of which nothing is learnt yet may take long to start.
    """
    timed = boxes.moment is not None and not boxes.copied
    by_boxes = diagnose(box_snapshots(boxes, timed=timed), stall_seconds=stall)
    found = by_boxes
    evidence: dict[str, object] = {"source": "black boxes", **by_boxes.evidence}
    if recorders.snapshots:
        by_recorders = diagnose(recorders.snapshots, stall_seconds=stall)
        if _recorders_count(by_recorders, by_boxes):
            found = by_recorders
            evidence = {"source": "flight recorders", **by_recorders.evidence}
        if by_recorders.state is not by_boxes.state or by_recorders.ranks != by_boxes.ranks:
            other = by_boxes if found is by_recorders else by_recorders
            evidence["other_source"] = {"state": other.state.value, "ranks": list(other.ranks)}
    if recorders.broken:
        shown = list(recorders.broken.items())[:_MOST_SHOWN]
        evidence["flight_recorders_silent"] = {str(rank): reason for rank, reason in shown}
    found = replace(found, evidence=evidence)
    if found.state in (State.OK, State.SLOW):
        found = _stands_outside(boxes, found, stall, given=given)
    found = _keep_origins(boxes, found)
    found = _without_other_nodes(boxes, found, complete=complete)
    return with_places(boxes, found)


def _recorders_count(by_recorders: HangVerdict, by_boxes: HangVerdict) -> bool:
    """Return True for the recorders, which know sizes, types and order; boxes know sends over gloo."""
    if by_recorders.state is State.DESYNC:
        return not (by_boxes.state is State.DESYNC and by_boxes.ranks and not by_recorders.ranks)
    if by_boxes.state.is_stall and by_boxes.ranks:
        return False
    return by_recorders.state.is_stall and bool(by_recorders.ranks or not by_boxes.state.is_stall)


def _stands_outside(boxes: Boxes, found: HangVerdict, stall: float, *, given: bool) -> HangVerdict:
    """Call it a hang where nobody waits in a collective for long, and yet no living rank makes progress."""
    living = boxes.living
    if not living or boxes.moment is None:
        return found
    if not given and any(each.timeout is None for each in living):
        return found
    limits = {each.rank: max(stall, each.timeout or STALL_SECONDS) for each in living}
    moments = {each.rank: boxes.moment if boxes.copied else each.seen_wall for each in living}
    idle = {each.rank: moments[each.rank] - each.wall(_last_move(each)) for each in living}
    if any(idle[rank] <= limits[rank] for rank in idle):
        return found
    places: dict[str, list[int]] = defaultdict(list)
    for each in living:
        places[each.open_phase[0] if each.open_phase else "no phase"].append(each.rank)
    fewest = min(places.values(), key=len)
    alone = boxes.world_size == 1 or (len(places) > 1 and 2 * len(fewest) < len(living))
    evidence = {
        **found.evidence,
        "idle_seconds": round(min(idle.values()), 3),
        "phases": {phase: ranks[:_MOST_SHOWN] for phase, ranks in places.items()},
    }
    if boxes.world_size == 1:
        return replace(found, state=State.HANG, ranks=tuple(fewest), evidence=evidence)
    if alone:
        evidence["suspects"] = fewest[:_MOST_SHOWN]
    return replace(found, state=State.HANG, ranks=(), evidence=evidence)


def _last_move(box: Box) -> float:
    """Return when the rank last did anything: a step that began before a stall may go on after it."""
    return max(box.last_progress, box.last_sign, *(each.oldest for each in box.now.groups))


def _keep_origins(boxes: Boxes, found: HangVerdict) -> HangVerdict:
    """Leave out victims: ranks that failed after a process was lost or failed by itself.

    A rank that failed in a collective is a victim, too: it had come to the collective, and a peer was gone.
    """
    origins = boxes.lost or failed_first(boxes)
    named = [boxes.by_rank[rank] for rank in found.ranks if rank in boxes.by_rank and rank not in origins]
    failed = [each for each in named if each.state is RankState.FAILED]
    victims = [each.rank for each in failed if origins or each.failed_in_collective]
    if not victims:
        return found
    kept = sorted({*found.ranks, *origins} - set(victims))
    evidence = {**found.evidence, "failed_after_it": victims}
    reasons = evidence.pop("reasons", None)
    if isinstance(reasons, Mapping):
        # An ended process runs no code, whatever its box shows it to have skipped.
        evidence["reasons"] = {
            str(rank): "is gone" if rank in boxes.lost else reasons[str(rank)]
            for rank in kept
            if rank in boxes.lost or str(rank) in reasons
        }
    return replace(found, ranks=tuple(kept), evidence=evidence)


def failed_first(boxes: Boxes) -> tuple[int, ...]:
    """Find ranks that an exception ended outside of collectives; inside, they fail if another one is gone."""
    own = tuple(each.rank for each in boxes.by_rank.values() if each.failed_by_itself)
    return own if len(own) < len(boxes.by_rank) or len(own) == 1 else ()


def _without_other_nodes(boxes: Boxes, found: HangVerdict, *, complete: bool) -> HangVerdict:
    """Take ranks without a box to be on other nodes, unless the node that they must be on is seen."""
    here = missing_here(boxes)
    missing = tuple(rank for rank in range(boxes.world_size) if rank not in boxes.by_rank)
    elsewhere = () if complete else tuple(rank for rank in missing if rank not in here)
    blamed = [rank for rank in found.ranks if rank in elsewhere]
    found = replace(found, missing_ranks=missing)
    if not blamed:
        return found
    evidence = dict(found.evidence)
    reasons = evidence.pop("reasons", None)
    kept = tuple(rank for rank in found.ranks if rank not in elsewhere)
    if isinstance(reasons, Mapping) and kept:
        evidence["reasons"] = {str(rank): reasons[str(rank)] for rank in kept if str(rank) in reasons}
    evidence["waits_for_ranks_without_box"] = blamed[:_MOST_SHOWN]
    evidence["notes"] = [
        *_strings(evidence.get("notes")),
        f"rank {blamed[0]} has no black box here: it is on another node, or wrote none"
        if len(blamed) == 1
        else "the ranks that are waited for have no black box here: they are on other nodes, or wrote none",
    ]
    state = found.state if kept or found.state is State.INCONCLUSIVE else State.HANG
    return replace(found, state=state, ranks=kept, evidence=evidence)


def missing_here(boxes: Boxes) -> tuple[int, ...]:
    """Find ranks without a box that must be on a node of which there are boxes.

    On a node, rank less local rank is one number, and a local rank below another that is there exists.
    """
    found: set[int] = set()
    by_host: dict[str, list[Box]] = defaultdict(list)
    for each in boxes.by_rank.values():
        by_host[each.header.identity.host].append(each)
    for of_host in by_host.values():
        offsets = {each.rank - each.header.identity.local_rank for each in of_host}
        if len(offsets) != 1:
            continue
        offset = offsets.pop()
        last = max(each.rank for each in of_host)
        found.update(rank for rank in range(max(0, offset), last) if rank not in boxes.by_rank)
    return tuple(sorted(found))


def with_places(boxes: Boxes, found: HangVerdict) -> HangVerdict:
    """Add where each blamed rank is."""
    places = {}
    for rank in found.ranks[:_MOST_SHOWN]:
        box = boxes.by_rank.get(rank)
        if box is not None:
            places[str(rank)] = place_of(box, boxes)
    return replace(found, evidence={**found.evidence, "places": places}) if places else found


def place_of(box: Box, boxes: Boxes) -> str:
    """Say where a rank is, or was when it ended."""
    where = where_of(box)
    since = box.open_phase[1] if box.open_phase else max(box.last_sign, box.now.step_began)
    if box.ended and (box.state is not RankState.LOST or boxes.liveness_known):
        ending = f" ({box.ended_by})" if box.failure else ""
        return f"{box.state.value}{ending}, last {where}"
    if boxes.moment is None:
        return where
    return f"{where}, for {max(0.0, boxes.moment - box.wall(since)):.1f} s"


def where_of(box: Box) -> str:
    """Name phase and step of a rank: its last ones, where it has ended."""
    step = f"step {box.now.step}" if box.now.step_began else f"after step {box.now.step}"
    return f"in {box.open_phase[0] if box.open_phase else 'no phase'}, {step}"


def _strings(value: object) -> list[str]:
    return [str(each) for each in value] if isinstance(value, list) else []
