"""What the faults of the present step do to this rank."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(kw_only=True)
class Conditions:
    """Set by the faults at the start of each step, read by the parts of the trainer they strike."""

    compute_factor: float = 1.0
    """How many times as long the layers take."""
    pause_seconds: float = 0.0
    """Time this rank pauses for in the steps that are drawn for it."""
    pause_every_steps: float = 1.0
    """One step of so many is drawn, on average."""
    length_ratio: float = 1.0
    """Longest over shortest sequences; 1 for equal ones."""
    batch_delay_seconds: float = 0.0
    """How much later each batch comes; infinity for never."""
    learning_rate_factor: float = 1.0
    stall_seconds: float = 0.0
    """Time this rank stops for in its next forward; infinity for ever."""
    killed: bool = False
    gradients_are_reduced: bool = True
    """False: this rank leaves out the all-reduce of its gradients."""
    calls_broadcast: bool = False
    """This rank calls a broadcast after its backward."""
    loss_is_nan: bool = False
    checkpoint_write_fails: bool = False
    checkpoint_is_corrupted: bool = False

    def clear(self) -> None:
        """Everything is well again."""
        for field in fields(self):
            setattr(self, field.name, field.default)
