"""Collectives of made-up ranks: records as the hook writes them, added up by the real code."""

from __future__ import annotations

from rankwatch.blackbox import layout
from rankwatch.blackbox.records import GroupNow
from rankwatch_agent.training.collectives.totals import BoundedNames, RankCollectives
from rankwatch_agent.training.steps import StepAssembler
from rankwatch_agent.training.timeouts import LearntTimeouts

OPERATIONS = {1: "all_reduce", 2: "all_gather", 3: "barrier", 4: "send"}
WORLD, TENSOR = 10, 11
GROUPS = {WORLD: "default_pg", TENSOR: "mesh_tp"}


def group_now(number: int, members: str, size: int) -> GroupNow:
    """A row of the black box's table of groups."""
    return GroupNow(number, GROUPS[number], members, size, enqueued=0, oldest=0.0, operation="")


def rank_collectives(*groups: GroupNow, max_names: int = 64) -> RankCollectives:
    """The collectives of a rank whose black box holds these groups."""
    return collectives_and_steps(*groups, max_names=max_names)[0]


def collectives_and_steps(*groups: GroupNow, max_names: int = 64) -> tuple[RankCollectives, StepAssembler]:
    """Likewise, and the steps that the time of the collectives is taken out of."""
    steps = StepAssembler(LearntTimeouts(), lambda _: None)
    made = RankCollectives(BoundedNames(max_names), steps)
    names = {**OPERATIONS, **GROUPS}
    made.resolve_by(lambda number: names.get(number, f"name{number}"), lambda: groups)
    made.observe(groups)
    return made, steps


def complete(
    rank: RankCollectives,
    number: int,
    seconds: float,
    *,
    operation: int = 1,
    group: int = WORLD,
    size: int = 1 << 20,
    flags: int = 0,
    waited: float = 0.0,
    start: float = 100.0,
) -> None:
    """Have the rank complete the collective of this number."""
    payload = layout.COLLECTIVE.pack(size, number, group, flags, waited)
    rank.take(operation, start, start + seconds, payload, 0)
