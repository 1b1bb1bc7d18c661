"""How the attempt in the boxes of a run ended, and when a run that goes on will be done."""

from __future__ import annotations

from statistics import median

from rankwatch.conventions import RankState
from rankwatch_agent.training.life.ends import AttemptEnd, RankEnd, judge
from rankwatch_diagnosis.run.boxes import Box, Boxes
from rankwatch_diagnosis.run.pace import rates


def attempt_end(boxes: Boxes) -> AttemptEnd | None:
    """As the agent judges it; None while a rank may live."""
    ranks = boxes.by_rank.values()
    if not all(each.ended for each in ranks) or (boxes.copied_alive and not boxes.liveness_known):
        return None
    return judge([_rank_end(each) for each in ranks])


def ending_words(boxes: Boxes) -> str:
    """The outcome, the kind of failure and the rank, with what else is known; empty where all went well."""
    end = attempt_end(boxes)
    if end is None or (end.kind is None and not end.message):
        return ""
    whom = f" on rank {end.rank}" if end.rank is not None and boxes.world_size > 1 else ""
    why = ": ".join(filter(None, (end.exception, end.message)))
    place = f", {end.place}" if end.place else ""
    kind = f", {end.kind}" if end.kind is not None and end.kind.value != end.outcome.value else ""
    return f"{end.outcome}{kind}{whom}{f' ({why})' if why else ''}{place}"


def seconds_left(boxes: Boxes) -> float | None:
    """Until the target steps are reached, at the pace of the recorded steps and the pauses between them."""
    living = boxes.living
    target = max((each.now.target_steps or each.header.target_steps or 0 for each in living), default=0)
    paces = [pace for each in living if (pace := rates(each)[0])]
    if not target or not paces:
        return None
    done = max(each.now.step for each in living) + 1
    return max(0, target - done) / median(paces)


def _rank_end(box: Box) -> RankEnd:
    ended = box.wall(box.last_sign)
    return RankEnd(
        rank=box.rank,
        state=box.state,
        failure=box.failure,
        in_collective=box.failed_in_collective,
        started=box.header.started_wall,
        ended=ended,
        sigterm_at=ended if box.state is RankState.TERMINATED else None,
    )
