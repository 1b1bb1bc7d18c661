"""The checkpoint operations in black boxes, one for all ranks that took part."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from rankwatch.blackbox import layout
from rankwatch.blackbox.layout import RecordKind
from rankwatch.checkpoint_paths import SUFFIX, read_checkpoints
from rankwatch_diagnosis.review.model import CheckpointSeen
from rankwatch_diagnosis.run.boxes import Box, Boxes

_MOST_SHOWN = 30


def checkpoints_seen(boxes: Boxes, paths: Sequence[Path]) -> tuple[CheckpointSeen, ...]:
    """The newest first. paths: of the boxes; notes beside them say where the checkpoints are."""
    found: dict[tuple[str, int], list[CheckpointSeen]] = defaultdict(list)
    for box in (*boxes.earlier, *boxes.by_rank.values()):
        for each in _of_box(box):
            found[each.operation, each.step].append(each)
    places = {
        (each.operation, each.step): each.path
        for path in paths
        for each in reversed(read_checkpoints(path.with_suffix(SUFFIX)))
    }
    together = [_together(of_ranks, places.get(key, "")) for key, of_ranks in found.items()]
    return tuple(sorted(together, key=lambda each: each.ended, reverse=True)[:_MOST_SHOWN])


def _of_box(box: Box) -> list[CheckpointSeen]:
    found = []
    for record in box.records:
        if record.kind != RecordKind.CHECKPOINT:
            continue
        _, step, stage, failed, blocked = layout.CHECKPOINT.unpack_from(record.payload)
        if not stage:
            operation, seconds = box.names.get(record.name, ""), max(0.0, record.end - record.start)
            blocking = min(seconds, blocked) if blocked > 0.0 else 0.0
            found.append(
                CheckpointSeen(
                    ended=box.wall(record.end),
                    operation=operation,
                    step=step,
                    ranks=1,
                    failed=int(bool(failed)),
                    seconds=seconds,
                    blocking_seconds=blocking,
                    slowest_rank=box.rank,
                )
            )
    return found


def _together(of_ranks: Sequence[CheckpointSeen], path: str) -> CheckpointSeen:
    slowest = max(of_ranks, key=lambda each: each.seconds)
    return slowest._replace(
        ended=max(each.ended for each in of_ranks),
        ranks=len({each.slowest_rank for each in of_ranks}),
        failed=sum(each.failed for each in of_ranks),
        blocking_seconds=max(each.blocking_seconds for each in of_ranks),
        path=path,
    )
