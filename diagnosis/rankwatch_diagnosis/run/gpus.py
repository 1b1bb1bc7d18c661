"""What the GPUs of waiting ranks do, by NVML's figures of the same moment: the last page in a bundle.

A rank that waits in a collective of NCCL shows 100 % utilisation, because a kernel is resident, at little
power and with few multiprocessors active. A rank whose kernel was never launched shows nothing at all. Where
all ranks have come to a collective, this tells the two apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

from rankwatch_diagnosis.hang.verdict import HangVerdict, State
from rankwatch_diagnosis.run.boxes import Boxes

PAGE = Path("metrics") / "after.prom"
"""In a bundle."""
_RANK, _UP = "rankwatch_rank_gpu_info", "rankwatch_gpu_up"
_UTILIZATION, _ACTIVITY = "rankwatch_gpu_utilization_ratio", "rankwatch_gpu_activity_ratio"
_POWER, _POWER_LIMIT = "rankwatch_gpu_power_watts", "rankwatch_gpu_power_limit_watts"
_WANTED = (_RANK, _UP, _UTILIZATION, _ACTIVITY, _POWER, _POWER_LIMIT)
_RESIDENT, _NOTHING = 0.95, 0.05
"""Utilisation from which a kernel was there all the time, and up to which there was none."""
_LOW_POWER = 0.5
"""Of the limit. A GPU that only waits draws less; one that computes draws more."""
_FEW_MULTIPROCESSORS = 0.3
"""Share of multiprocessors that are active. NCCL takes up to 32 of the 132 of an H100."""
_STANDS = (State.HANG, State.DESYNC)
_FEWEST_PEERS = 2
"""Other ranks that spin which it takes to call an idle one the odd one."""
_MOST_PAGE_BYTES = 64 << 20
_MOST_SHOWN = 64

Page = Mapping[tuple[str, frozenset[tuple[str, str]]], float]


class GpuState(StrEnum):
    """What the GPU of a rank that makes no progress does."""

    SPINS = "spins in a kernel"
    """A kernel is resident and does next to nothing: the rank waits for others on its device."""
    NOT_LAUNCHED = "runs no kernel"
    """What the rank is to take part in was not launched."""
    COMPUTES = "computes"
    """A kernel does work: it is slow, or does not end."""
    DEAD = "does not answer"
    """It is lost to the driver."""


class GpuFigures(NamedTuple):
    """NVML's figures of one GPU; None where there are none."""

    up: float | None = None
    utilization: float | None = None
    """Share of the time in which a kernel was resident."""
    multiprocessors: float | None = None
    """Share of multiprocessors that were active; only of Hopper and newer."""
    power_share: float | None = None
    """Of the enforced limit."""

    @property
    def state(self) -> GpuState | None:
        """What the GPU does; None where the figures are few, or disagree."""
        if self.up == 0.0:
            return GpuState.DEAD
        if self.utilization is None:
            return None
        if self.utilization <= _NOTHING:
            return GpuState.NOT_LAUNCHED
        bounds = ((self.multiprocessors, _FEW_MULTIPROCESSORS), (self.power_share, _LOW_POWER))
        low = {value < bound for value, bound in bounds if value is not None}
        if self.utilization < _RESIDENT or len(low) != 1:
            return None
        return GpuState.SPINS if low.pop() else GpuState.COMPUTES

    def __str__(self) -> str:
        named = (
            ("utilisation", self.utilization),
            ("active multiprocessors", self.multiprocessors),
            ("power of the limit", self.power_share),
        )
        shown = ", ".join(f"{value:.0%} {name}" for name, value in named if value is not None)
        return f" ({shown})" if shown else ""


def gpus_of_bundle(bundle: Path, run: str) -> dict[int, GpuFigures]:
    """The figures of the GPU of each rank of the node; none where the page is missing or makes no sense."""
    try:
        page = read_page(bundle / PAGE, _WANTED)
    except (ModuleNotFoundError, OSError, ValueError):
        return {}
    of_rank: dict[int, str] = {}
    for name, labels in page:
        given = dict(labels)
        if name == _RANK and given.get("run") == run and given.get("rank", "").isdecimal():
            of_rank[int(given["rank"])] = given.get("gpu", "")
    return {rank: _figures(page, gpu) for rank, gpu in of_rank.items()}


def _figures(page: Page, gpu: str) -> GpuFigures:
    def value(name: str, **labels: str) -> float | None:
        wanted = {"gpu": gpu, **labels}.items()
        return next((each for (of, known), each in page.items() if of == name and wanted <= known), None)

    power, limit = value(_POWER), value(_POWER_LIMIT)
    share = power / limit if power is not None and limit else None
    return GpuFigures(value(_UP), value(_UTILIZATION), value(_ACTIVITY, unit="sm"), share)


def with_gpus(boxes: Boxes, found: HangVerdict, seen: Mapping[int, GpuFigures]) -> HangVerdict:
    """The verdict on a run that stands, with what the GPUs show.

    A GPU that does not answer is named. Where nothing else names a rank, the one that alone runs no kernel
    is, if the GPUs of all others spin.
    """
    stands = found.state in _STANDS or (found.state is State.INCONCLUSIVE and bool(found.groups))
    states = {rank: state for rank, each in seen.items() if (state := each.state) is not None}
    if not stands or not states:
        return found
    named = {rank for rank, each in states.items() if each is GpuState.DEAD}
    if not named and not found.ranks:
        named = _alone(boxes, states)
    ranks = tuple(sorted({*found.ranks, *named}))
    by_state = {
        each.value: sorted(rank for rank, state in states.items() if state is each)[:_MOST_SHOWN]
        for each in GpuState
        if each in states.values()
    }
    reasons = _reasons(
        found, {rank: f"its GPU {states[rank]}{seen[rank]}" for rank in ranks if rank in states}
    )
    evidence = {**found.evidence, **({"reasons": reasons} if reasons else {}), "gpus": by_state}
    known = State.HANG if named and found.state is State.INCONCLUSIVE else found.state
    return replace(found, state=known, ranks=ranks, evidence=evidence)


def _reasons(found: HangVerdict, of_gpus: Mapping[int, str]) -> dict[str, str]:
    """The reasons of the verdict, those of the GPUs behind them."""
    reasons = found.evidence.get("reasons")
    known = dict(reasons) if isinstance(reasons, Mapping) else {}
    for rank, reason in list(of_gpus.items())[:_MOST_SHOWN]:
        known[str(rank)] = "; ".join(filter(None, (known.get(str(rank)), reason)))
    return known


def _alone(boxes: Boxes, states: Mapping[int, GpuState]) -> set[int]:
    """The rank whose GPU alone runs no kernel, where those of all other ranks of the run spin."""
    idle = {rank for rank, state in states.items() if state is GpuState.NOT_LAUNCHED}
    spinning = sum(state is GpuState.SPINS for state in states.values())
    everyone = len(idle) + spinning == boxes.world_size
    return idle if len(idle) == 1 and spinning >= _FEWEST_PEERS and everyone else set()


def read_page(path: Path, wanted: tuple[str, ...]) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """The series of a page of metrics with these names.

    Raises OSError, ValueError, and ModuleNotFoundError without prometheus_client, of the agent's extra.
    """
    from prometheus_client.parser import text_string_to_metric_families

    if path.stat().st_size > _MOST_PAGE_BYTES:
        raise ValueError
    lines = (line for line in path.read_text(encoding="utf-8").splitlines() if line.startswith(wanted))
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families("\n".join(lines) + "\n")
        for sample in family.samples
    }
