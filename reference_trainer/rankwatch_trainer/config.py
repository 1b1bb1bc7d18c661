"""The trainer's configuration; every field is a command-line flag of the same name."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

from rankwatch_trainer.errors import UsageError

Device = Literal["cpu", "cuda", "emulated"]
Resume = Literal["never", "auto"]

_EMULATED_SHAPE = {"width": 16, "context": 16, "batch_size": 2}
"""Defaults with which the arithmetic of an emulated step is about a millisecond."""


@dataclass(frozen=True, kw_only=True)
class TrainerConfig:
    """One training run. Raises UsageError where a value cannot be used."""

    device: Device = "cpu"
    """Where layers compute: cpu, cuda, or emulated (a tiny model whose layers take a given time asleep)."""
    steps: int = 200
    """Optimizer steps of the whole run, those before a resume included."""
    seed: int = 1
    """Seed of the weights, the order of the data and everything else that is random."""

    layers: int = 4
    """Transformer blocks."""
    width: int = 64
    """Model dimension; on an emulated device 16 unless given."""
    heads: int = 4
    """Attention heads; must divide the width; an emulated device has no attention."""
    context: int = 64
    """Bytes of text per sequence; on an emulated device 16 unless given."""
    layer_forward_seconds: float = 0.005
    """Time asleep in the forward of each layer, device emulated only."""
    layer_backward_seconds: float = 0.010
    """Time asleep in the backward of each layer, device emulated only."""

    batch_size: int = 8
    """Sequences per micro-batch and rank; on an emulated device 2 unless given."""
    accumulation: int = 1
    """Micro-batches per step; gradients are reduced after the last one only."""
    corpus_bytes: int = 2 << 20
    """Most bytes of text to read, held-out text included."""

    learning_rate: float = 3e-3
    """Learning rate at the end of the warm-up."""
    final_learning_rate: float = 3e-4
    """Learning rate at the last step, reached along a cosine."""
    warmup_steps: int = 10
    """Steps over which the learning rate rises linearly from nearly zero."""
    weight_decay: float = 0.1
    """AdamW weight decay."""
    clip_norm: float = 1.0
    """Largest gradient norm; larger gradients are scaled down to it."""

    checkpoint_dir: Path | None = None
    """Directory of the checkpoints, shared by all ranks; without it none are written."""
    checkpoint_every: int = 50
    """Steps between checkpoints; the last step is always saved."""
    keep_checkpoints: int = 2
    """Checkpoints kept; older ones are deleted once a newer one is verified."""
    resume: Resume = "never"
    """auto: go on from the newest good checkpoint, or start afresh where there is none."""
    preempt_on_sigterm: bool = False
    """On SIGTERM finish the step, save a checkpoint and exit 0; costs one tiny all-reduce per step."""

    eval_every: int = 0
    """Steps between evaluations on held-out text; 0 for none."""
    eval_batches: int = 4
    """Micro-batches per evaluation and rank."""

    fault: tuple[str, ...] = ()
    """Fault to inject, such as straggler:rank=2,factor=1.5,from=50,until=200; may be repeated."""
    fault_file: Path | None = None
    """File of faults, one per line, read again whenever it changes; steps may be relative (from=+5)."""

    collective_timeout_seconds: float = 1800.0
    """Time after which a collective that does not complete ends the run."""
    log_every: int = 10
    """Steps between progress lines of rank 0."""
    history: Path | None = None
    """File to which rank 0 writes step, seconds and loss of every step, as JSON, at the end."""

    def __post_init__(self) -> None:
        for name in _AT_LEAST_ONE:
            _require(self, name, getattr(self, name) >= 1, "a whole number >= 1")
        for name in _NOT_NEGATIVE:
            _require(self, name, 0 <= getattr(self, name) < float("inf"), "a number >= 0")
        for name in _POSITIVE:
            _require(self, name, 0 < getattr(self, name) < float("inf"), "a number > 0")
        _require(self, "heads", self.width % self.heads == 0, f"a divisor of width {self.width}")
        _require(self, "device", self.device in ("cpu", "cuda", "emulated"), "cpu, cuda or emulated")
        _require(self, "resume", self.resume in ("never", "auto"), "never or auto")
        needs_directory = self.resume == "auto" or self.preempt_on_sigterm
        _require(
            self,
            "checkpoint_dir",
            self.checkpoint_dir is not None or not needs_directory,
            "a directory, because --resume auto and --preempt-on-sigterm need one",
        )

    @classmethod
    def for_device(cls, device: Device = "cpu", **given: Any) -> TrainerConfig:
        """The configuration for a device: what is given, and that device's defaults for the rest."""
        defaults = _EMULATED_SHAPE if device == "emulated" else {}
        known = {field.name for field in fields(cls)}
        for name in given:
            if name not in known:
                raise UsageError(f"{name} is no field of the configuration, expected one of {sorted(known)}")
        return cls(device=device, **{**defaults, **given})


_AT_LEAST_ONE = (
    *("steps", "layers", "width", "heads", "context", "batch_size", "accumulation"),
    *("corpus_bytes", "checkpoint_every", "keep_checkpoints", "eval_batches", "log_every"),
)
_NOT_NEGATIVE = (
    *("seed", "layer_forward_seconds", "layer_backward_seconds", "final_learning_rate"),
    *("warmup_steps", "weight_decay", "eval_every"),
)
_POSITIVE = ("learning_rate", "clip_norm", "collective_timeout_seconds")


def _require(config: TrainerConfig, name: str, holds: bool, expected: str) -> None:
    if not holds:
        raise UsageError(f"{name} is {getattr(config, name)}, expected {expected}")
