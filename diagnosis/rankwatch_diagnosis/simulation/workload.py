"""What the work of a healthy job takes, before noise."""

from __future__ import annotations

from dataclasses import dataclass

from rankwatch_agent.runtime.errors import UserError


@dataclass(frozen=True, kw_only=True)
class Workload:
    """Seconds of each operation, of one microbatch where it belongs to one."""

    forward_seconds: float = 0.010
    backward_factor: float = 2.0
    """Backward over forward: gradients of inputs and of weights are one matrix product each."""
    first_stage_extra: float = 0.03
    """Share that the embedding adds to the first of several stages."""
    last_stage_extra: float = 0.06
    """Share that head and loss add to the last of several stages."""
    optimizer_seconds: float = 0.004
    data_seconds: float = 0.002
    """Wait for the loader, on the first and the last stage (which need inputs and labels)."""
    host_seconds: float = 0.001
    """Other host work of a step on every rank: logging, the interpreter."""
    send_seconds: float = 0.0004
    """Transfer of one microbatch's activations between two stages."""
    tensor_seconds: float = 0.0006
    """Transfers of the tensor-parallel collectives of one forward, taken together."""
    gradient_seconds: float = 0.008
    """Gradient all-reduce over many replicas; a ring of n takes (n - 1) / n of it."""
    norm_seconds: float = 0.0003
    """Job-wide all-reduce of the gradient norm."""

    def __post_init__(self) -> None:
        """Raises UserError for a negative time and for a job that computes nothing."""
        for name, value in vars(self).items():
            if not 0.0 <= value < float("inf"):
                raise UserError(f"{name} is {value}, expected a number of at least 0")
        if self.forward_seconds == 0.0 or self.backward_factor == 0.0:
            raise UserError("forward and backward must take time")

    def role(self, stage: int, stages: int) -> float:
        """Factor on forward and backward of a stage, by design."""
        if stages == 1:
            return 1.0
        extra = {0: self.first_stage_extra, stages - 1: self.last_stage_extra}
        return 1.0 + extra.get(stage, 0.0)

    def ring(self, members: int) -> float:
        """Seconds of a gradient all-reduce over so many replicas, by the volume that each link carries."""
        return self.gradient_seconds * (members - 1) / members
