"""How the attempts in the boxes of a run ended, and when a run that goes on will be done."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from statistics import median
from typing import NamedTuple

from rankwatch.blackbox import earlier_attempts
from rankwatch.blackbox.records import Header
from rankwatch.conventions.states import RankState
from rankwatch_agent.training.life.ends import AttemptEnd, RankEnd, judge
from rankwatch_agent.training.life.failures import KILLED, Failure
from rankwatch_diagnosis.run.boxes import Box, Boxes, readable_boxes
from rankwatch_diagnosis.run.pace import rates

_MOST_EARLIER = 64
"""Boxes of earlier attempts that are read; those of the newest attempts."""
_RECORDS_READ = 1_000
"""Of each: the end of an attempt is in the newest ones."""


class EndedAttempt(NamedTuple):
    """An attempt whose ranks here have all ended, and how."""

    number: int
    """Counts from 0."""
    world_size: int
    started: float
    """Unix time."""
    ended: float
    end: AttemptEnd

    def words(self, *, message: bool = True) -> str:
        """Return the outcome, the kind of failure and the rank, with what else is known."""
        return end_words(self.end, self.world_size, message=message)

    def as_json(self) -> dict[str, object]:
        """Return the object of `--json`; what is not known is left out."""
        shown = {name: value for name, value in self.end._asdict().items() if value not in (None, "")}
        if self.end.exception == KILLED:
            shown["kernel_line"] = shown.pop("message", None)
        times = {"started_timestamp_seconds": self.started, "ended_timestamp_seconds": self.ended}
        return {"number": self.number, "world_size": self.world_size, **times, **shown}


def attempt_end(boxes: Boxes) -> AttemptEnd | None:
    """Judge the end of the attempt as the agent does; None while a rank may live."""
    ranks = boxes.by_rank.values()
    if not all(each.ended for each in ranks) or (boxes.copied_alive and not boxes.liveness_known):
        return None
    return judge([_rank_end(each) for each in ranks])


def ended_attempts(boxes: Boxes, run: Path) -> tuple[EndedAttempt, ...]:
    """Return the attempts that are over, in their order: earlier ones of which boxes are kept, and the
    present one if it has ended.

    run: the directory of the boxes.
    """
    newest = max(each.header.identity.attempt for each in boxes.by_rank.values())
    earlier: dict[int, list[Box]] = defaultdict(list)
    newest_first = sorted(earlier_attempts.listed(run), key=lambda each: each[1], reverse=True)
    paths = [path for _, _, path in newest_first[:_MOST_EARLIER]]
    for box in (*readable_boxes(paths, most_records=_RECORDS_READ), *boxes.earlier):
        if box.header.identity.attempt < newest and box.ended:
            earlier[box.header.identity.attempt].append(box)
    found = [
        _ended(number, of_attempt, judge([_rank_end(each) for each in of_attempt]))
        for number, of_attempt in sorted(earlier.items())
    ]
    end = attempt_end(boxes)
    if end is not None:
        found.append(_ended(newest, list(boxes.by_rank.values()), end))
    return tuple(found)


def ending_words(boxes: Boxes) -> str:
    """Say how the present attempt ended; empty where all went well."""
    end = attempt_end(boxes)
    if end is None or (end.kind is None and not end.message):
        return ""
    return end_words(end, boxes.world_size)


def end_words(end: AttemptEnd, world_size: int, *, message: bool = True) -> str:
    """Return the outcome, the kind of failure and the rank, with what else is known.

    message: with the message and the line of code, too.
    """
    whom = f" on rank {end.rank}" if end.rank is not None and world_size > 1 else ""
    why = ": ".join(filter(None, (end.exception, end.message if message else "")))
    place = f", {end.place}" if end.place and message else ""
    kind = f", {end.kind}" if end.kind is not None and end.kind.value != end.outcome.value else ""
    return f"{end.outcome}{kind}{whom}{f' ({why})' if why else ''}{place}"


def earlier_words(ended: Iterable[EndedAttempt], present: int) -> str:
    """Return the ends of the attempts before the present one, in short, the newest first."""
    earlier = sorted((each for each in ended if each.number < present), reverse=True)
    return "; ".join(f"attempt {each.number + 1} {each.words(message=False)}" for each in earlier)


def seconds_left(boxes: Boxes) -> float | None:
    """Estimate the seconds to the target steps, at the pace of recorded steps and the pauses between them."""
    living = boxes.living
    target = max((each.target_steps for each in living), default=0)
    paces = [pace for each in living if (pace := rates(each)[0])]
    if not target or not paces:
        return None
    done = max(each.now.step for each in living) + 1
    return max(0, target - done) / median(paces)


def _ended(number: int, boxes: list[Box], end: AttemptEnd) -> EndedAttempt:
    return EndedAttempt(
        number,
        max(each.header.identity.world_size for each in boxes),
        min(each.header.started_wall for each in boxes),
        max(each.wall(each.last_sign) for each in boxes),
        end,
    )


def _rank_end(box: Box) -> RankEnd:
    return rank_end(box.header, box.state, box.failure, box.last_sign, in_collective=box.failed_in_collective)


def rank_end(
    header: Header, state: RankState, failure: Failure | None, last_sign: float, *, in_collective: bool
) -> RankEnd:
    """Say how a rank ended, by its box, on the wall clock. last_sign: monotonic."""
    ended = header.wall(last_sign)
    return RankEnd(
        rank=header.identity.rank,
        state=state,
        failure=failure,
        in_collective=in_collective,
        started=header.started_wall,
        ended=ended,
        sigterm_at=ended if state is RankState.TERMINATED else None,
    )
