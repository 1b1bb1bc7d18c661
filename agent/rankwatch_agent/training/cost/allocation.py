"""What of this node is charged to which run: allocated, not used."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

CPU_MODEL = "cpu"
"""Stands for the model of a GPU where a rank has none: its price is that of a rank."""


class ChargedRank(NamedTuple):
    """A rank whose process lives."""

    run: str
    gpu: str
    """UUID of its GPU or MIG instance; empty for a rank without one."""


class NodeGpu(Protocol):
    """A GPU of this node."""

    @property
    def uuid(self) -> str: ...

    @property
    def model(self) -> str: ...

    @property
    def mig_uuids(self) -> tuple[str, ...]: ...


UNKNOWN_MODEL = "unknown"
"""A GPU that the driver does not list: it has no price."""


def allocate(
    ranks: Iterable[ChargedRank], gpus: Sequence[NodeGpu], *, whole_node: bool
) -> Mapping[str, Mapping[str, float]]:
    """Run -> model -> number of GPUs.

    Several ranks on one GPU pay for it once, and runs that share one divide it by their ranks. A MIG instance
    is an equal part of its GPU. A rank without a GPU pays for itself.
    whole_node: all GPUs of the node are charged to the runs on it, by their ranks on GPUs.
    """
    found: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    on_part: dict[str, Counter[str]] = defaultdict(Counter)
    for run, gpu in ranks:
        if gpu:
            on_part[gpu][run] += 1
        else:
            found[run][CPU_MODEL] += 1.0
    if whole_node and on_part and gpus:
        everybody: Counter[str] = sum(on_part.values(), Counter())
        for each in gpus:
            _divide(found, everybody, each.model, 1.0)
        return found
    by_uuid = {uuid: (each.model, 1.0) for each in gpus for uuid in (each.uuid,)}
    by_uuid |= {uuid: (each.model, 1.0 / len(each.mig_uuids)) for each in gpus for uuid in each.mig_uuids}
    for uuid, runs in on_part.items():
        model, part = by_uuid.get(uuid, (UNKNOWN_MODEL, 1.0))
        _divide(found, runs, model, part)
    return found


def _divide(
    found: Mapping[str, dict[str, float]], ranks_by_run: Mapping[str, int], model: str, amount: float
) -> None:
    total = sum(ranks_by_run.values())
    for run, count in ranks_by_run.items():
        found[run][model] += amount * count / total
