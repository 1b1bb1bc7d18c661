"""The goodput of a run from the black boxes of this node: those of its ranks, and those that are kept of
earlier attempts. With the account that the agent has saved, also of what no box holds any more."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from itertools import chain, islice, pairwise
from pathlib import Path
from typing import NamedTuple

from rankwatch.blackbox import earlier_attempts
from rankwatch.conventions.states import ENDED_STATES, GoodputState
from rankwatch.errors import BlackBoxError
from rankwatch_agent.runtime.errors import UserError
from rankwatch_agent.training.boxes.follower import RankFollower
from rankwatch_agent.training.boxes.totals import RankTotals
from rankwatch_agent.training.goodput.run_ledgers import RunLedger, saved_ledger
from rankwatch_agent.training.goodput.shared import RoleTransfers
from rankwatch_agent.training.life.ends import judge
from rankwatch_agent.training.steps.assembly import SETTLE_SECONDS
from rankwatch_diagnosis.goodput.model import AttemptGoodput, RunGoodput, Saves
from rankwatch_diagnosis.run.ending import end_words, rank_end
from rankwatch_diagnosis.run.folder import find_run

_MOST_NAMES = 1000
_MOST_GAPS = 8
"""Attempts without a box that are named."""


class _Box(NamedTuple):
    """A box that was read to its end."""

    rank: RankFollower
    living: bool
    moment: float
    """Now, on its clock; monotonic."""


def read_folder(directory: Path, account: Path | None = None) -> RunGoodput:
    """Return the goodput of the run in a directory.

    account: the file in which the agent keeps account of the time of all runs; read if it is there.
    Raises UserError where no box can be used.
    """
    boxes = find_run(directory).boxes
    if not boxes:
        raise UserError(f"{directory} holds no black box of a rank")
    paths = [*(path for _, _, path in earlier_attempts.listed(boxes[0].parent)), *boxes]
    run = boxes[0].parent.name
    saved = saved_ledger(account, run) if account is not None else None
    ledger = saved or RunLedger()
    read, unread = _read(paths, ledger)
    if not read:
        raise UserError(f"none of the {len(paths)} black boxes in {directory} can be used: {unread[0]}")
    living = {each.rank.header.identity.rank for each in read if each.living}
    ledger.charge_ended(max(each.moment for each in read), living)
    goodput = RunGoodput(
        run=run,
        source=str(boxes[0].parent) + (" and the agent's account" if saved is not None else ""),
        seconds=ledger.seconds,
        attempts=tuple(_attempts(ledger, read)),
        saves=_saves(read),
        unseen=tuple(_unseen(ledger, read, unread)),
    )
    for each in read:
        each.rank.close()
    return goodput


def _read(paths: Sequence[Path], ledger: RunLedger) -> tuple[list[_Box], list[str]]:
    """Read boxes in the order of their attempts; returns them, and why others could not be read.

    Each is read twice: what transfers take shows only once all ranks of an attempt have been read.
    """
    unread: list[str] = []
    transfers: dict[int, RunLedger] = {}
    for rank in _opened(paths, []):
        with closing(rank), suppress(BlackBoxError, OSError):
            _follow(rank, transfers.setdefault(rank.header.identity.attempt, RunLedger()))
    found: list[_Box] = []
    for rank in _opened(paths, unread):
        attempt = rank.header.identity.attempt
        for role, known in transfers[attempt].roles.items() if attempt in transfers else ():
            typical = [each.typical for each in known.ranks if each.typical is not None]
            ledger.roles.setdefault(role, RoleTransfers()).tell(min(typical, default=None))
        newest = ledger.newest_attempt(rank.header.identity.rank)
        try:
            moment = _follow(rank, ledger if newest <= attempt else None)
        except (BlackBoxError, OSError) as error:
            unread.append(str(error))
            rank.close()
            continue
        found.append(_Box(rank, rank.state not in ENDED_STATES, moment))
    return found, unread


def _opened(paths: Sequence[Path], unread: list[str]) -> list[RankFollower]:
    """Open the boxes, in the order of their attempts; add to `unread` why others cannot be read."""
    opened: list[RankFollower] = []
    for path in paths:
        try:
            totals = RankTotals(lambda _: None, max_names=_MOST_NAMES)
            opened.append(RankFollower(path, totals, in_its_place=False))
        except (BlackBoxError, OSError) as error:
            unread.append(str(error))
    return sorted(opened, key=lambda each: (each.header.identity.attempt, each.header.started_wall))


def _follow(rank: RankFollower, ledger: RunLedger | None) -> float:
    """Read a box to its end; returns the moment of now on its clock. Raises BlackBoxError and OSError."""
    header = rank.header
    moment = header.started_monotonic + time.time() - header.started_wall
    if ledger is not None:
        rank.totals.keep_account(ledger, header)
    rank.poll(moment, to_end=True)
    if not rank.totals.steps.all_settled:
        rank.poll(moment + SETTLE_SECONDS, to_end=True)
    return moment


def _attempts(ledger: RunLedger, boxes: Sequence[_Box]) -> Iterator[AttemptGoodput]:
    living = {each.rank.header.identity.attempt for each in boxes if each.living}
    for number, span, seconds in ledger.by_attempt():
        of_attempt = [each for each in boxes if each.rank.header.identity.attempt == number]
        signs = (
            each.rank.header.wall(each.moment if each.living else each.rank.last_sign) for each in of_attempt
        )
        yield AttemptGoodput(
            number=number,
            started=span.started,
            ended=max((span.last, *signs)),
            running=number in living,
            world_size=span.world_size,
            first_step=span.first_step,
            last_step=span.highest_step if span.highest_step >= 0 else None,
            ended_how=_ended_how(of_attempt, span.world_size),
            seconds=seconds,
        )


def _ended_how(boxes: Sequence[_Box], world_size: int) -> str:
    """Say how an attempt ended, as the agent judges it; empty where a rank lives or no box is left."""
    if not boxes or any(each.living for each in boxes):
        return ""
    ends = [
        rank_end(
            each.header,
            each.state,
            each.totals.lifecycle.last_failure,
            each.last_sign,
            in_collective=each.totals.collectives.last_failed,
        )
        for each in (box.rank for box in boxes)
    ]
    return end_words(judge(ends), world_size)


def _saves(boxes: Sequence[_Box]) -> Saves | None:
    """Return the saves of the rank that saves block most; None where no rank has saved."""
    best: Saves | None = None
    for each in boxes:
        saves = each.rank.totals.checkpoints.operations["save"]
        ran = each.rank.last_sign - each.rank.header.started_monotonic
        if saves.succeeded and ran > 0.0:
            count = saves.succeeded
            found = Saves(
                count=count,
                interval_seconds=ran / count,
                blocking_seconds=saves.blocking_seconds / count,
                seconds=saves.seconds / count,
            )
            if best is None or found.blocking_seconds > best.blocking_seconds:
                best = found
    return best


def _unseen(ledger: RunLedger, boxes: Sequence[_Box], unread: Sequence[str]) -> Iterator[str]:
    ranks = {each.rank.header.identity.rank for each in boxes}
    world = max(each.rank.header.identity.world_size for each in boxes)
    if len(ranks) < world:
        yield f"{len(ranks)} of {world} ranks: those of this node"
    seen = {number for number, _, _ in ledger.by_attempt()}
    before = min(seen, default=0)
    if before:
        yield f"the first {before} attempts: their boxes are gone"
    between = chain.from_iterable(range(one + 1, next_one) for one, next_one in pairwise(sorted(seen)))
    gaps = [str(number) for number in islice(between, _MOST_GAPS)]
    if gaps:
        yield f"attempts {', '.join(gaps)}: their boxes are gone"
    if ledger.seconds[GoodputState.UNKNOWN] > 0.0:
        yield "time whose records are lost: a box holds the newest only; it counts as unknown"
    if unread:
        yield f"{len(unread)} black boxes that could not be read: {unread[0]}"
    pending = sum(
        max(0.0, each.moment - account.cursor)
        for each in boxes
        if each.living and (account := each.rank.totals.ledger) is not None
    )
    if pending > 1.0:
        yield f"{pending:.0f} s of rank time since the last steps, which no step has judged yet"
