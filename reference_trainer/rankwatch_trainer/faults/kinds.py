"""Every fault that can be injected, and the conditions through which it reaches the trainer."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import ClassVar, Protocol


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
        for field in fields(self):
            setattr(self, field.name, field.default)


class Fault(Protocol):
    """One way to go wrong: a frozen dataclass whose fields are the parameters of the fault."""

    name: ClassVar[str]
    """Name on the command line."""
    lasting: ClassVar[bool]
    """Without `until`, a lasting fault stays to the end of the run; another one strikes a single step."""

    def apply(self, conditions: Conditions) -> None:
        """Worsen the conditions of a step in which the fault is active."""
        ...


@dataclass(frozen=True, kw_only=True)
class ScheduledFault:
    """A fault with the rank and the steps it strikes."""

    fault: Fault
    rank: int | None
    """None for every rank."""
    from_step: int
    until_step: float
    """First step without the fault; infinity if it stays."""

    def strikes(self, rank: int, step: int) -> bool:
        """True if the fault is active on this rank in this step."""
        return self.rank in (None, rank) and self.from_step <= step < self.until_step


@dataclass(frozen=True, kw_only=True)
class Straggler:
    """The rank's layers take `factor` times as long, forward and backward. In a job of one rank, or with no
    rank named, the whole job is slower and no rank lags behind.
    """

    name: ClassVar[str] = "straggler"
    lasting: ClassVar[bool] = True
    factor: float = 1.5

    def apply(self, conditions: Conditions) -> None:
        """Two stragglers on one rank multiply."""
        conditions.compute_factor *= self.factor


@dataclass(frozen=True, kw_only=True)
class Stall:
    """The rank stops for `seconds`, or for ever without them."""

    name: ClassVar[str] = "stall"
    lasting: ClassVar[bool] = False
    seconds: float = math.inf

    def apply(self, conditions: Conditions) -> None:
        """The longest of several stalls counts."""
        conditions.stall_seconds = max(conditions.stall_seconds, self.seconds)


@dataclass(frozen=True, kw_only=True)
class Kill:
    """The rank sends itself SIGKILL in its forward."""

    name: ClassVar[str] = "kill"
    lasting: ClassVar[bool] = False

    def apply(self, conditions: Conditions) -> None:
        """The rank dies in its next forward."""
        conditions.killed = True


@dataclass(frozen=True, kw_only=True)
class Jitter:
    """The rank pauses for `seconds` in one step of `every`, drawn at random by rank and step. With no rank
    named, every rank pauses, each in steps of its own.
    """

    name: ClassVar[str] = "jitter"
    lasting: ClassVar[bool] = True
    seconds: float = 0.2
    every: float = 5.0

    def apply(self, conditions: Conditions) -> None:
        """The last of several such faults counts."""
        conditions.pause_seconds = self.seconds
        conditions.pause_every_steps = self.every


@dataclass(frozen=True, kw_only=True)
class SkipCollective:
    """The rank leaves out the all-reduce of its gradients in one step and goes on. Name a rank.

    Nothing hangs at once: the rank's all-reduce of the next step meets its peers' present one, and so on.
    At the next collective of another kind (a checkpoint, an evaluation) all ranks wait for ever.
    """

    name: ClassVar[str] = "skip-collective"
    lasting: ClassVar[bool] = False

    def apply(self, conditions: Conditions) -> None:
        """The gradients of the step stay on the rank."""
        conditions.gradients_are_reduced = False


@dataclass(frozen=True, kw_only=True)
class MismatchedCollective:
    """The rank waits in a broadcast while its peers all-reduce their gradients, so all wait for ever. Name a
    rank.
    """

    name: ClassVar[str] = "mismatched-collective"
    lasting: ClassVar[bool] = False

    def apply(self, conditions: Conditions) -> None:
        """A broadcast takes the place of the all-reduce of the step."""
        conditions.gradients_are_reduced = False
        conditions.calls_broadcast = True


@dataclass(frozen=True, kw_only=True)
class SlowData:
    """The batch of each step comes `seconds` later."""

    name: ClassVar[str] = "slow-data"
    lasting: ClassVar[bool] = True
    seconds: float = 0.1

    def apply(self, conditions: Conditions) -> None:
        """Several delays add up."""
        conditions.batch_delay_seconds += self.seconds


@dataclass(frozen=True, kw_only=True)
class StuckData:
    """The batch of one step comes `seconds` later, or never without them. With a rank named, its peers wait
    for it in a collective.
    """

    name: ClassVar[str] = "stuck-data"
    lasting: ClassVar[bool] = False
    seconds: float = math.inf

    def apply(self, conditions: Conditions) -> None:
        """Several delays add up."""
        conditions.batch_delay_seconds += self.seconds


@dataclass(frozen=True, kw_only=True)
class UnequalBatches:
    """Each micro-batch is cut to a length of its own, drawn at random between a full context divided by
    `ratio` and a full one; the reported work says so.
    """

    name: ClassVar[str] = "unequal-batches"
    lasting: ClassVar[bool] = True
    ratio: float = 4.0

    def apply(self, conditions: Conditions) -> None:
        """The widest of several such faults counts."""
        conditions.length_ratio = max(conditions.length_ratio, self.ratio)


@dataclass(frozen=True, kw_only=True)
class LossNaN:
    """The loss is NaN in one step. The weights become NaN too, and with them the loss of every later step."""

    name: ClassVar[str] = "loss-nan"
    lasting: ClassVar[bool] = False

    def apply(self, conditions: Conditions) -> None:
        """The loss of the step becomes NaN."""
        conditions.loss_is_nan = True


@dataclass(frozen=True, kw_only=True)
class FlipBit:
    """One bit of one parameter of the rank changes after the update of one step. Name a rank."""

    name: ClassVar[str] = "flip-bit"
    lasting: ClassVar[bool] = False

    def apply(self, conditions: Conditions) -> None:
        """The lowest bit of one element is flipped."""
        conditions.parameter_is_flipped = True


@dataclass(frozen=True, kw_only=True)
class LossBlowup:
    """The learning rate is `factor` times what the schedule says. Name no rank.

    The fault must strike all ranks in the same steps, or their weights drift apart. In a fault file give a
    step a little ahead: each rank counts `from=+5` from its own step.

    AdamW with clipped gradients is hard to blow up. At the default factor a small model jumps to some ten
    times its noise and recovers within tens of steps, which is a spike and no divergence. `factor=3000` for
    five steps keeps the emulated model away from its trend for about 80 steps.
    """

    name: ClassVar[str] = "loss-blowup"
    lasting: ClassVar[bool] = True
    factor: float = 100.0

    def apply(self, conditions: Conditions) -> None:
        """Several factors multiply."""
        conditions.learning_rate_factor *= self.factor


@dataclass(frozen=True, kw_only=True)
class GradientExplosion:
    """The gradients are `factor` times as large, before they are clipped. Name no rank.

    As with `loss-blowup`, all ranks must be struck in the same steps.
    """

    name: ClassVar[str] = "gradient-explosion"
    lasting: ClassVar[bool] = True
    factor: float = 1000.0

    def apply(self, conditions: Conditions) -> None:
        """Several factors multiply."""
        conditions.gradient_factor *= self.factor


@dataclass(frozen=True, kw_only=True)
class ForeignData:
    """The rank is given random bytes in place of text, of which there is nothing to learn. Name a rank."""

    name: ClassVar[str] = "foreign-data"
    lasting: ClassVar[bool] = True

    def apply(self, conditions: Conditions) -> None:
        """The rank's loader reads another file."""
        conditions.data_are_foreign = True


@dataclass(frozen=True, kw_only=True)
class CheckpointWriteFailure:
    """Writing a checkpoint in these steps raises OSError with ENOSPC. Needs --checkpoint-dir."""

    name: ClassVar[str] = "checkpoint-write-failure"
    lasting: ClassVar[bool] = True

    def apply(self, conditions: Conditions) -> None:
        """The disk looks full to checkpoints."""
        conditions.checkpoint_write_fails = True


@dataclass(frozen=True, kw_only=True)
class CheckpointCorruption:
    """Bytes of the checkpoints of these steps are flipped on the way to the disk. Needs --checkpoint-dir."""

    name: ClassVar[str] = "checkpoint-corruption"
    lasting: ClassVar[bool] = True

    def apply(self, conditions: Conditions) -> None:
        """The disk holds other bytes than were written."""
        conditions.checkpoint_is_corrupted = True


FAULTS: tuple[type[Fault], ...] = (
    *(Straggler, Stall, Kill, Jitter),
    *(SkipCollective, MismatchedCollective),
    *(SlowData, StuckData, UnequalBatches),
    *(LossNaN, FlipBit, LossBlowup, GradientExplosion, ForeignData),
    *(CheckpointWriteFailure, CheckpointCorruption),
)
"""Every fault, in the order of the help."""
