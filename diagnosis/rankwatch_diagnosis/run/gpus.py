"""What NVML says of the GPUs of ranks: now, by two readings, or by a page of metrics in an evidence bundle.

A rank that waits in a collective of NCCL shows 100 % utilisation, because a kernel is resident, at little
power and with few multiprocessors active. A rank whose kernel was never launched shows nothing at all. Where
all ranks have come to a collective, this tells the two apart.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from importlib.util import find_spec
from math import isfinite
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, NamedTuple

from rankwatch.conventions.metrics import metric
from rankwatch.untrusted.folders import read_regular
from rankwatch_agent.runtime.errors import CollectError, NotApplicable
from rankwatch_agent.runtime.source import source_of
from rankwatch_diagnosis.hang.verdict import HangVerdict, State
from rankwatch_diagnosis.run.boxes import Boxes

if TYPE_CHECKING:
    from rankwatch_agent.sources.gpu.protocol import Reading  # needs msgspec

WHILE_IT_RAN, AT_THE_STALL = "before.prom", "after.prom"
"""Pages of a bundle: the newest from before the last progress, and one from when the bundle was written."""
_APART_SECONDS, _MOST_SECONDS = 1.0, 4.0
"""Between the two readings of now, and for all of it: a driver that hangs gives no answer."""
_UP, _PROCESSES = "rankwatch_gpu_up", "rankwatch_gpu_processes"
_UTILIZATION, _ACTIVITY = "rankwatch_gpu_utilization_ratio", "rankwatch_gpu_activity_ratio"
_POWER, _POWER_LIMIT = "rankwatch_gpu_power_watts", "rankwatch_gpu_power_limit_watts"
_ENERGY, _CLOCK = "rankwatch_gpu_energy_joules_total", "rankwatch_gpu_clock_hertz"
_HELD_DOWN = "rankwatch_gpu_throttle_active"
_WANTED = (_UP, _PROCESSES, _UTILIZATION, _ACTIVITY, _POWER, _POWER_LIMIT, _ENERGY, _CLOCK, _HELD_DOWN)
_RESIDENT, _NOTHING = 0.95, 0.05
"""Utilisation from which a kernel was there all the time, and up to which there was none."""
_LOW_POWER = 0.5
"""Of the limit. A GPU that only waits draws less; one that computes draws more."""
_FEW_MULTIPROCESSORS = 0.3
"""Share of multiprocessors that are active. NCCL takes up to 32 of the 132 of an H100."""
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
    """No kernel was launched of the collective that the rank is to take part in."""
    COMPUTES = "computes"
    """A kernel does work: it is slow, or does not end."""
    DEAD = "does not answer"
    """It is lost to the driver."""


class GpuFigures(NamedTuple):
    """NVML's figures of one GPU; None where there are none."""

    up: float | None = None
    utilization: float | None = None
    """Share of the time in which a kernel was resident. Without it nothing is said: the GPU may be cut into
    MIG instances, and its power is that of all of them."""
    multiprocessors: float | None = None
    """Share of multiprocessors that were active; only of Hopper and newer."""
    power_share: float | None = None
    """Of the enforced limit."""
    mean_watts: float | None = None
    """Between two readings, by the energy that it took; None by a single one."""
    clock_hertz: float | None = None
    """Of the multiprocessors."""
    held_down_by: frozenset[str] = frozenset()
    """Reasons that hold its clocks down in all readings."""

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


class SeenGpus(NamedTuple):
    """The GPUs of the living ranks of a node."""

    by_rank: Mapping[int, GpuFigures] = {}
    seconds: float = 0.0
    """Over which activity and power are means."""
    silent: tuple[str, ...] = ()
    """A note, where the driver should have answered and did not."""


def gpus_of_bundle(bundle: Path, boxes: Boxes, page: str) -> SeenGpus:
    """Read the figures from a page of the agent's metrics; none where it is missing or makes no sense."""
    try:
        read = read_page(bundle / "metrics" / page, _WANTED)
    except (ModuleNotFoundError, OSError, ValueError):
        return SeenGpus()
    seconds = source_of("gpu").schedule.interval_seconds
    return SeenGpus(_by_rank(_gpus_of(boxes), (read,), seconds), seconds)


def gpus_now(boxes: Boxes) -> SeenGpus:
    """Read the GPUs twice, in a process that is killed if the driver hangs; none without a GPU or NVML."""
    gpus = _gpus_of(boxes)
    if boxes.copied or not gpus or not all(map(find_spec, ("msgspec", "pynvml"))):
        return SeenGpus()
    from rankwatch_agent.sources.gpu.driver import read_twice  # needs msgspec

    try:
        first, last, seconds = read_twice(apart_seconds=_APART_SECONDS, deadline_seconds=_MOST_SECONDS)
    except NotApplicable:
        return SeenGpus()
    except CollectError as error:
        return SeenGpus(silent=(str(error),))
    pages = _page(first), _page(last)
    hidden = {gpu for gpu in gpus.values() if gpu.startswith("GPU-")} - {gpu.uuid for gpu in last.gpus}
    if len(hidden) == last.unidentified:  # else some of them may only be invisible from here
        pages[-1].update({(_UP, frozenset({("gpu", gpu)})): 0.0 for gpu in hidden})
    return SeenGpus(_by_rank(gpus, pages, seconds), seconds)


def _page(reading: Reading) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Return the reading in the form of a page."""
    samples = (each for gpu in reading.gpus for each in gpu.samples if each.metric in _WANTED)
    return {
        (each.metric, frozenset(zip(metric(each.metric).labels, each.labels, strict=True))): each.value
        for each in samples
    }


def _gpus_of(boxes: Boxes) -> dict[int, str]:
    """Map each rank to the UUID of its GPU or MIG instance."""
    return {each.rank: each.now.gpu for each in boxes.living if each.now.gpu}


def _by_rank(gpus: Mapping[int, str], pages: Sequence[Page], seconds: float) -> dict[int, GpuFigures]:
    """Return figures by rank; of a GPU that ranks share only whether it is up: the rest is of all of them."""
    ranks = Counter(gpus.values())
    seen = {gpu: _figures(_Series(pages, gpu), seconds) for gpu in ranks}
    return {rank: seen[gpu] if ranks[gpu] == 1 else GpuFigures(up=seen[gpu].up) for rank, gpu in gpus.items()}


class _Series:
    """The series of one GPU, in all pages."""

    def __init__(self, pages: Sequence[Page], gpu: str) -> None:
        self._pages = [
            [(name, dict(labels), value) for (name, labels), value in page.items() if ("gpu", gpu) in labels]
            for page in pages
        ]

    def values(self, name: str, **labels: str) -> list[float]:
        return [
            value
            for page in self._pages
            for of, known, value in page
            if of == name and labels.items() <= known.items()
        ]

    def mean(self, name: str, **labels: str) -> float | None:
        found = self.values(name, **labels)
        return fmean(found) if found else None

    def always(self, name: str, label: str) -> frozenset[str]:
        """Return the values of the label whose series is not 0 in any page."""
        found = (
            {known.get(label, "") for of, known, value in page if of == name and value}
            for page in self._pages
        )
        return frozenset(set.intersection(*found))


def _figures(gpu: _Series, seconds: float) -> GpuFigures:
    """Return the figures; only whether it is up, where several processes use it: the rest is of all."""
    ups = gpu.values(_UP)
    up = ups[-1] if ups else None
    if max(gpu.values(_PROCESSES), default=0.0) > 1.0:
        return GpuFigures(up)
    joules, limit = gpu.values(_ENERGY), gpu.mean(_POWER_LIMIT)
    watts = (joules[-1] - joules[0]) / seconds if len(joules) > 1 else None
    power = gpu.mean(_POWER) if watts is None else watts
    return GpuFigures(
        up,
        utilization=gpu.mean(_UTILIZATION),
        multiprocessors=gpu.mean(_ACTIVITY, unit="sm"),
        power_share=power / limit if power is not None and limit else None,
        mean_watts=watts,
        clock_hertz=gpu.mean(_CLOCK, clock="sm"),
        held_down_by=gpu.always(_HELD_DOWN, "reason"),
    )


def with_gpus(boxes: Boxes, found: HangVerdict, seen: Mapping[int, GpuFigures]) -> HangVerdict:
    """Return the verdict on a run that stands, with what the GPUs show.

    A GPU that does not answer is named. Where nothing else names a rank, the one that alone runs no kernel
    is, if the GPUs of all others spin.
    """
    states = {rank: state for rank, each in seen.items() if (state := each.state) is not None}
    if not found.stands or not states:
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
    """Return the reasons of the verdict, those of the GPUs behind them."""
    reasons = found.evidence.get("reasons")
    known = dict(reasons) if isinstance(reasons, Mapping) else {}
    for rank, reason in list(of_gpus.items())[:_MOST_SHOWN]:
        known[str(rank)] = "; ".join(filter(None, (known.get(str(rank)), reason)))
    return known


def _alone(boxes: Boxes, states: Mapping[int, GpuState]) -> set[int]:
    """Return the rank whose GPU alone runs no kernel, where those of all other ranks of the run spin."""
    idle = {rank for rank, state in states.items() if state is GpuState.NOT_LAUNCHED}
    spinning = sum(state is GpuState.SPINS for state in states.values())
    everyone = len(idle) + spinning == boxes.world_size
    return idle if len(idle) == 1 and spinning >= _FEWEST_PEERS and everyone else set()


def read_page(path: Path, wanted: tuple[str, ...]) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Return the series of a page of metrics with these names, whose values are numbers.

    Raises OSError, ValueError, and ModuleNotFoundError without prometheus_client, of the agent's extra.
    """
    from prometheus_client.parser import text_string_to_metric_families

    text = read_regular(path, _MOST_PAGE_BYTES).decode()
    lines = (line for line in text.splitlines() if line.startswith(wanted))
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families("\n".join(lines) + "\n")
        for sample in family.samples
        if isfinite(sample.value)
    }
