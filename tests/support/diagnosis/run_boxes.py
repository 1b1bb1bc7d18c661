"""Black boxes of a run, word by word: what its ranks wrote up to the moments at which each is read."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import rankwatch
from rankwatch import Run
from rankwatch.blackbox import layout
from rankwatch.blackbox.layout import Now, RecordKind
from rankwatch.blackbox.writer import Writer
from rankwatch.conventions.states import RankState
from rankwatch.conventions.vocabulary import PHASES, Lifecycle
from rankwatch.identity import Identity
from rankwatch.members import members_text
from rankwatch_diagnosis.run.boxes import Boxes, read_boxes
from rankwatch_diagnosis.run.folder import find_run

_CLOCKS = (14, 15)
"""Places of the start in the header: monotonic and wall."""
_AGE_SECONDS = 1_000.0
UPTIME_SECONDS = 100_000.0
"""How much longer the made-up host has run than this machine, which may have booted a minute ago."""


class RankBox:
    """The box of one rank of run `job`, and its words about the group of all ranks.

    Moments are seconds before now; the rank has begun `_AGE_SECONDS` ago.
    """

    def __init__(self, directory: Path, rank: int, *, world: int = 3, members: str | None = None) -> None:
        identity = Identity(run="job", rank=rank, world_size=world, local_rank=rank, host="node")
        self.now = time.monotonic() + UPTIME_SECONDS
        self.writer = Writer(directory, identity, phases=PHASES, capacity=256)
        self._shift_start()
        integers = self.writer.integers
        self._group = integers[Now.GROUP_NAME] = self.writer.new_name("default_pg")
        members = members_text(range(world)) if members is None else members
        integers[Now.GROUP_MEMBERS] = self.writer.new_name(members)
        integers[Now.GROUP_SIZE] = world
        integers[Now.GROUPS] = 1
        self.says(Lifecycle.STARTED, _AGE_SECONDS)

    def _shift_start(self) -> None:
        fields = list(layout.FIXED.unpack_from(self.writer.target))
        for clock, moved in zip(_CLOCKS, (UPTIME_SECONDS - _AGE_SECONDS, -_AGE_SECONDS), strict=True):
            fields[clock] += moved
        layout.FIXED.pack_into(self.writer.target, 0, *fields)

    def enqueues(self, number: int, *, open_since: float | None = None) -> None:
        """Its words: this collective is the last one, and the oldest open one began so long ago."""
        integers = self.writer.integers
        integers[Now.GROUP_OPERATION] = self.writer.name_number("all_reduce")
        integers[Now.GROUP_ENQUEUED] = number + 1
        self.writer.floats[Now.GROUP_OLDEST] = 0.0 if open_since is None else self.now - open_since

    def completes(self, number: int, begin: float, end: float, *, failed: bool = False) -> None:
        """The record of a collective."""
        flags = layout.BLOCKING | (layout.FAILED if failed else 0)
        values = (64, number, self._group, flags, 0.0)
        tag = layout.tag(RecordKind.COLLECTIVE, self.writer.name_number("all_reduce"))
        self.writer.collective(tag, self.now - begin, self.now - end, *values)

    def receives(self, begin: float, end: float) -> None:
        """The record of a receive that its words still call open."""
        number = self.writer.name_number("recv")
        values = (64, 0, self._group, layout.BLOCKING | layout.POINT_TO_POINT, 0.0)
        tag = layout.tag(RecordKind.COLLECTIVE, number)
        self.writer.collective(tag, self.now - begin, self.now - end, *values)
        self.writer.integers[Now.GROUP_OPERATION] = number
        self.writer.floats[Now.GROUP_OLDEST] = self.now - begin

    def steps(self, number: int, begin: float, end: float) -> None:
        """The record of a step, and its words."""
        span = (self.now - begin, self.now - end)
        self.writer.append(RecordKind.STEP, 0, *span, layout.STEP, number, 0)
        self.writer.integers[Now.STEP] = number
        self.writer.integers[Now.STEPS_COMPLETED] = number + 1
        self.writer.floats[Now.STEP_ENDED] = self.now - end

    def reports(self, name: str, value: float, step: int) -> None:
        """The record of a scalar, a second a step."""
        number, at = self.writer.name_number(name), self.now - 500.0 + step
        self.writer.append(RecordKind.SCALAR, number, at, at, layout.SCALAR, value, step)

    def in_phase(self, name: str, since: float) -> None:
        """Its words: this phase is open."""
        self.writer.floats[Now.PHASE_BEGAN + self.writer.name_number(name)] = self.now - since

    def says(self, event: Lifecycle, ago: float, reason: str = "") -> None:
        """A word about its life."""
        at = self.now - ago
        number, detail = self.writer.name_number(event), self.writer.name_number(reason) if reason else 0
        self.writer.append(RecordKind.LIFECYCLE, number, at, at, layout.LIFECYCLE, 0, detail)


def recorded_run(directory: Path, *, rank: int = 0, world: int = 1) -> Run:
    """Run `job` of this process as that rank, without hooks. Tests end it."""
    run = rankwatch.start(
        run="job", rank=rank, world_size=world, directory=directory, flight_recorder=False, collectives=False
    )
    assert isinstance(run, Run)
    return run


def at_one_collective(directory: Path, gpus: Sequence[str] = ("", "", "")) -> list[RankBox]:
    """Three ranks that have waited in the same collective for 70 s: by the boxes nobody holds it up."""
    boxes = [RankBox(directory, rank) for rank in range(3)]
    for each, gpu in zip(boxes, gpus, strict=True):
        each.writer.set_gpu(gpu)
        each.completes(5, 70.02, 70.01)
        each.enqueues(6, open_since=70.0)
    return boxes


def make_bundle(directory: Path, ranks: int, page: str, text: str) -> None:
    """Make an evidence bundle of a folder with boxes: all ranks lived, and this is a page of metrics."""
    lived = [{"rank": rank, "state": "running"} for rank in range(ranks)]
    (directory / "ranks.json").write_text(json.dumps({"ranks": lived}))
    (directory / "metrics").mkdir()
    (directory / "metrics" / page).write_text(text)


def boxes_seen(directory: Path, ago: Mapping[int, float] | None = None) -> Boxes:
    """The boxes as if their ranks lived, each as of when it was read: now, or so many seconds before."""
    found = read_boxes(find_run(directory).boxes, copied=None)
    now, ago = time.time(), ago or dict.fromkeys(found.by_rank, 0.0)
    by_rank = {
        rank: replace(box, alive=True, state=RankState.RUNNING, seen_wall=now - ago[rank])
        for rank, box in found.by_rank.items()
    }
    return replace(found, by_rank=by_rank, moment=now - min(ago.values()), copied_alive=False)


def stalled_for(directory: Path, seconds: float) -> list[RankBox]:
    """Three ranks at collective 6; rank 1 has not come to it for so long."""
    boxes = [RankBox(directory, rank) for rank in range(3)]
    for each in boxes:
        for step in range(8):
            each.steps(step, seconds + 1.0 - 0.1 * step, seconds + 0.9 - 0.1 * step)
        each.completes(5, seconds + 0.02, seconds + 0.01)
        each.enqueues(5)
    for each in (boxes[0], boxes[2]):
        each.enqueues(6, open_since=seconds)
    return boxes
