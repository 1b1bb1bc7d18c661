"""Faults on demand: what can go wrong, as text, in a file, and by the conditions that reach the trainer.

    <fault>[:<key>=<value>,...]        straggler:rank=2,factor=1.5,from=50,until=200

Keys of every fault: `rank` (every rank where absent), `from` (first step; the present one where
absent), `until` (first step without it); steps may be relative to the present one (`from=+5`).
Further keys are the parameters of the fault.
"""

from __future__ import annotations

import logging
import math
import operator
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import MappingProxyType
from typing import Any

from rankwatch_trainer.errors import UsageError

_log = logging.getLogger(__name__)


@dataclass(kw_only=True)
class Conditions:
    """What is wrong with this rank in the present step.

    Faults set the fields at the start of each step; the part of the trainer that a field is about reads it.
    """

    compute_factor: float = 1.0
    """How many times as long the layers take."""
    pause_seconds: float = 0.0
    """Pause of this rank in a step drawn at random."""
    pause_every_steps: float = 1.0
    """One step in this many is drawn, on average."""
    length_ratio: float = 1.0
    """Longest sequence over shortest; 1 if all are equal."""
    batch_delay_seconds: float = 0.0
    """Delay of each batch; infinity if it never comes."""
    learning_rate_factor: float = 1.0
    stall_seconds: float = 0.0
    """Pause in the next forward; infinity if the rank never goes on."""
    killed: bool = False
    gradients_are_reduced: bool = True
    """False if this rank leaves out the all-reduce of its gradients."""
    calls_broadcast: bool = False
    """True if this rank calls a broadcast after its backward."""
    gradient_factor: float = 1.0
    data_are_foreign: bool = False
    """True if the batches of this rank are of other data than those of its peers."""
    loss_is_nan: bool = False
    parameter_is_flipped: bool = False
    """True if one bit of one parameter changes after the update."""
    checkpoint_write_fails: bool = False
    checkpoint_is_corrupted: bool = False

    def clear(self) -> None:
        """Reset every field to its default."""
        for each in fields(self):
            setattr(self, each.name, each.default)


_TOGETHER: Mapping[str, Callable[[Any, Any], Any]] = {
    "compute_factor": operator.mul,
    "learning_rate_factor": operator.mul,
    "gradient_factor": operator.mul,
    "batch_delay_seconds": operator.add,
    "stall_seconds": max,
    "length_ratio": max,
}
"""Effect of several faults of one step on a condition; of the other conditions the last fault counts."""


@dataclass(frozen=True)
class Fault:
    """One way to go wrong."""

    name: str
    """Name on the command line."""
    meaning: str
    """Text that the help shows."""
    worsens: Mapping[str, float | str]
    """Conditions of a step in which it is active: a value, or the parameter that holds it."""
    parameters: Mapping[str, float] = field(default_factory=dict)
    """Keys of its own, with their defaults; infinity can only be left out."""
    lasting: bool = False
    """Without `until`, a lasting fault stays to the end of the run; another one strikes a single step."""


@dataclass(frozen=True, kw_only=True)
class ScheduledFault:
    """A fault with the rank and the steps it strikes."""

    fault: Fault
    parameters: Mapping[str, float]
    rank: int | None
    """None for every rank."""
    from_step: int
    until_step: float
    """First step without the fault; infinity if it stays."""

    def strikes(self, rank: int, step: int) -> bool:
        """Return True if the fault is active on this rank in this step."""
        return self.rank in (None, rank) and self.from_step <= step < self.until_step

    def apply(self, conditions: Conditions) -> None:
        """Worsen the conditions of a step in which the fault is active."""
        for name, given in self.fault.worsens.items():
            value = self.parameters[given] if isinstance(given, str) else given
            together = _TOGETHER.get(name, lambda _, last: last)
            setattr(conditions, name, together(getattr(conditions, name), value))


_ALL = (
    Fault(
        "straggler",
        "The rank's layers take `factor` times as long, forward and backward. In a job of one rank, or with "
        "no rank named, the whole job is slower and no rank lags behind.",
        {"compute_factor": "factor"},
        {"factor": 1.5},
        lasting=True,
    ),
    Fault(
        "stall",
        "The rank stops for `seconds`, or for ever without them.",
        {"stall_seconds": "seconds"},
        {"seconds": math.inf},
    ),
    Fault("kill", "The rank sends itself SIGKILL in its forward.", {"killed": True}),
    Fault(
        "jitter",
        "The rank pauses for `seconds` in one step of `every`, drawn at random by rank and step. With no "
        "rank named, every rank pauses, each in steps of its own.",
        {"pause_seconds": "seconds", "pause_every_steps": "every"},
        {"seconds": 0.2, "every": 5.0},
        lasting=True,
    ),
    # Nothing hangs at once: the rank's all-reduce of the next step meets its peers' present one, and so on.
    # At the next collective of another kind (a checkpoint, an evaluation) all ranks wait for ever.
    Fault(
        "skip-collective",
        "The rank leaves out the all-reduce of its gradients in one step and goes on. Name a rank.",
        {"gradients_are_reduced": False},
    ),
    Fault(
        "mismatched-collective",
        "The rank waits in a broadcast while its peers all-reduce their gradients, so all wait for ever. "
        "Name a rank.",
        {"gradients_are_reduced": False, "calls_broadcast": True},
    ),
    Fault(
        "slow-data",
        "The batch of each step comes `seconds` later.",
        {"batch_delay_seconds": "seconds"},
        {"seconds": 0.1},
        lasting=True,
    ),
    Fault(
        "stuck-data",
        "The batch of one step comes `seconds` later, or never without them. With a rank named, its peers "
        "wait for it in a collective.",
        {"batch_delay_seconds": "seconds"},
        {"seconds": math.inf},
    ),
    Fault(
        "unequal-batches",
        "Each micro-batch is cut to a length of its own, drawn at random between a full context divided by "
        "`ratio` and a full one; the reported work says so.",
        {"length_ratio": "ratio"},
        {"ratio": 4.0},
        lasting=True,
    ),
    Fault(
        "loss-nan",
        "The loss is NaN in one step. The weights become NaN too, and with them the loss of every later "
        "step.",
        {"loss_is_nan": True},
    ),
    Fault(
        "flip-bit",
        "One bit of one parameter of the rank changes after the update of one step. Name a rank.",
        {"parameter_is_flipped": True},
    ),
    # The fault must strike all ranks in the same steps, or their weights drift apart. In a fault file give a
    # step a little ahead: each rank counts `from=+5` from its own step.
    # AdamW with clipped gradients is hard to blow up. At the default factor a small model jumps to some ten
    # times its noise and recovers within tens of steps, which is a spike and no divergence. `factor=3000` for
    # five steps keeps the emulated model away from its trend for about 80 steps.
    Fault(
        "loss-blowup",
        "The learning rate is `factor` times what the schedule says. Name no rank.",
        {"learning_rate_factor": "factor"},
        {"factor": 100.0},
        lasting=True,
    ),
    # As with `loss-blowup`, all ranks must be struck in the same steps.
    Fault(
        "gradient-explosion",
        "The gradients are `factor` times as large, before they are clipped. Name no rank.",
        {"gradient_factor": "factor"},
        {"factor": 1000.0},
        lasting=True,
    ),
    Fault(
        "foreign-data",
        "The rank is given random bytes in place of text, of which there is nothing to learn. Name a rank.",
        {"data_are_foreign": True},
        lasting=True,
    ),
    Fault(
        "checkpoint-write-failure",
        "Writing a checkpoint in these steps raises OSError with ENOSPC. Needs --checkpoint-dir.",
        {"checkpoint_write_fails": True},
        lasting=True,
    ),
    Fault(
        "checkpoint-corruption",
        "Bytes of the checkpoints of these steps are flipped on the way to the disk. Needs --checkpoint-dir.",
        {"checkpoint_is_corrupted": True},
        lasting=True,
    ),
)
FAULTS: Mapping[str, Fault] = MappingProxyType({each.name: each for each in _ALL})
"""Every fault by its name, in the order of the help."""

_COMMON_KEYS = ("rank", "from", "until")
_WIDTH = 100
_COMMON = """\
faults, as in --fault straggler:rank=2,factor=1.5,from=50,until=200; every fault takes:
  rank=N       the rank it strikes; without it every rank
  from=STEP    its first step, counted from 1; +5 is five steps from now; without it the present step
  until=STEP   the first step without it; without it the end of the run, or one step where so marked
"""


def parse_fault(text: str, *, present_step: int, world_size: int) -> ScheduledFault:
    """Read the fault that the text describes.

    Raises UsageError naming the text, the key and what was expected.
    """
    name, _, keys = (part.strip() for part in text.strip().partition(":"))
    try:
        if name not in FAULTS:
            raise ValueError(f"no fault is called {name!r}, expected one of {', '.join(FAULTS)}")
        return _scheduled(FAULTS[name], _values_of(keys, FAULTS[name]), present_step, world_size)
    except ValueError as cause:
        raise UsageError(f"could not read fault {text.strip()!r}: {cause}") from cause


def _values_of(text: str, fault: Fault) -> dict[str, str]:
    allowed = (*_COMMON_KEYS, *fault.parameters)
    values: dict[str, str] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        key, equals, value = part.partition("=")
        if not equals or key not in allowed:
            raise ValueError(f"{part!r} is no parameter of {fault.name}, expected {', '.join(allowed)}")
        if key in values:
            raise ValueError(f"{key} is given twice")
        values[key] = value
    return values


def _scheduled(fault: Fault, values: dict[str, str], present_step: int, world_size: int) -> ScheduledFault:
    own = {key: _positive(key, values[key]) for key in fault.parameters if key in values}
    start = _step("from", values["from"], present_step) if "from" in values else present_step
    until: float = math.inf if fault.lasting else start + 1
    if "until" in values:
        until = _step("until", values["until"], present_step)
        if until <= start:
            raise ValueError(f"until is step {until}, expected a step after {start}")
    return ScheduledFault(
        fault=fault,
        parameters={**fault.parameters, **own},
        rank=_rank(values["rank"], world_size) if "rank" in values else None,
        from_step=start,
        until_step=until,
    )


def _rank(text: str, world_size: int) -> int:
    if not _is_whole(text) or int(text) >= world_size:
        raise ValueError(f"rank is {text!r}, expected a whole number below the world size {world_size}")
    return int(text)


def _step(key: str, text: str, present_step: int) -> int:
    if not _is_whole(text.removeprefix("+")):
        raise ValueError(f"{key} is {text!r}, expected a step such as 50, or +5 from now")
    if not text.startswith("+") and int(text) == 0:
        raise ValueError(f"{key} is {text!r}, expected a step >= 1, or +0 for the present one")
    return int(text) + (present_step if text.startswith("+") else 0)


def _positive(key: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise ValueError(f"{key} is {text!r}, expected a number > 0")
    return value


def _is_whole(text: str) -> bool:
    return text.isascii() and text.isdigit()


def describe_faults() -> str:
    """Return all faults with their own parameters, defaults and meaning; several lines."""
    return _COMMON + "".join(f"\n{_describe(each)}" for each in FAULTS.values())


def _describe(fault: Fault) -> str:
    own = [name if default == math.inf else f"{name}={default}" for name, default in fault.parameters.items()]
    marks = [*own, *(() if fault.lasting else ("one step",))]
    head = f"  {fault.name}" + (f" [{', '.join(marks)}]" if marks else "")
    return (
        f"{head}\n{textwrap.fill(fault.meaning, _WIDTH, initial_indent=' ' * 6, subsequent_indent=' ' * 6)}"
    )


class FaultFile:
    """The faults for a running job: one a line of a file, which is checked once per step.

    The steps of a line count from the step in which the line is first seen. A fault ends when its line is
    removed. A line that cannot be read is ignored, and logged once on the rank that reports errors. Blank
    lines and # comments are allowed.
    """

    def __init__(self, path: Path, world_size: int, *, reports_errors: bool = True) -> None:
        self._path = path
        self._world_size = world_size
        self._reports_errors = reports_errors
        self._seen: tuple[int, int, int] | None = None
        self._faults: dict[str, ScheduledFault] = {}
        self._malformed: set[str] = set()

    def faults(self, present_step: int) -> Sequence[ScheduledFault]:
        """Return the faults now in the file. Costs one stat call while the file does not change."""
        try:
            status = self._path.stat()
        except OSError:
            self._seen, self._faults = None, {}
            return ()
        version = (status.st_ino, status.st_mtime_ns, status.st_size)
        if version != self._seen:
            self._seen = version
            self._read(present_step)
        return tuple(self._faults.values())

    def _read(self, present_step: int) -> None:
        try:
            content = self._path.read_text(encoding="utf-8", errors="replace")
        except OSError as cause:
            _log.warning("could not read fault file %s: %s", self._path, cause.strerror)
            return
        lines = [line.strip() for line in content.splitlines()]
        wanted = [line for line in lines if line and not line.startswith("#")]
        read = {line: self._faults.get(line) or self._parse(line, present_step) for line in wanted}
        self._faults = {line: fault for line, fault in read.items() if fault is not None}

    def _parse(self, line: str, present_step: int) -> ScheduledFault | None:
        try:
            return parse_fault(line, present_step=present_step, world_size=self._world_size)
        except UsageError as cause:
            if self._reports_errors and line not in self._malformed:
                self._malformed.add(line)
                _log.warning("ignored a line of fault file %s: %s", self._path, cause)
            return None
