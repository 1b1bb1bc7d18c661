"""What the job would gain if every operation took what is usual for its type: S of the What-if paper.

    S = seconds of all steps / seconds of all steps with each type of operation at one value

as arXiv 2505.05713 defines it: compute and host work take the mean of their type over all ranks, stages,
microbatches and steps, so that the work stays the same and only its spread goes; a transfer takes the median
of its type, without waits. Pauses between operations belong to no type, so both sides are replayed without
them. S names nobody: it holds what a cause costs, and also unequal stages, unequal batches and noise.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rankwatch_diagnosis.operations.groups import Floats, Groups
from rankwatch_diagnosis.operations.table import Kind
from rankwatch_diagnosis.straggler.case import Case
from rankwatch_diagnosis.straggler.graph.replay import slowdown

_MOST_REPLAYED = 8
"""Types of operation, those that differ most from their usual seconds."""
_LEAST_LISTED = 1.005


class AllFixed(NamedTuple):
    """S of a job, and the types of operation that hold it."""

    slowdown: float | None
    """None for a table without any time."""
    by_operation: dict[str, float]
    """The same with only this type as recorded and all others at their usual seconds, the highest first."""


def judge_all_fixed(case: Case) -> AllFixed:
    """The slowdown of the job against one in which nothing differs."""
    types = Groups.by(case.table.operation, case.table.kind)
    usual = _usual(case, types)
    pauses = np.zeros(len(usual))
    ideal = case.replay.step_seconds(usual, pauses)
    if not ideal.sum() > 0.0:
        return AllFixed(None, {})
    differs = np.bincount(types.number, weights=np.abs(case.seconds - usual), minlength=types.count)
    held = {}
    for index in np.argsort(-differs, kind="stable")[:_MOST_REPLAYED].tolist():
        recorded = np.where(types.number == index, case.seconds, usual)
        cost = slowdown(case.replay.step_seconds(recorded, pauses), ideal)
        if cost >= _LEAST_LISTED:
            operation = case.table.operation[int(np.argmax(types.number == index))]
            held[case.table.operations[operation]] = cost
    measured = case.replay.step_seconds(case.seconds, pauses)
    return AllFixed(slowdown(measured, ideal), dict(sorted(held.items(), key=lambda each: -each[1])))


def _usual(case: Case, types: Groups) -> Floats:
    """By row: what its type of operation takes everywhere."""
    median, mean = types.median(case.seconds), types.mean(case.seconds)
    return np.where(case.table.kind == Kind.COMMUNICATION, median[types.number], mean[types.number])
