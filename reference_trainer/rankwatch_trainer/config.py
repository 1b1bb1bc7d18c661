"""The trainer's configuration; every field is a command-line flag of the same name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NoReturn

from rankwatch.errors import SettingError
from rankwatch.settings import SentenceParser, Setting, add_flags, build, expect, read_flags
from rankwatch_trainer.errors import UsageError
from rankwatch_trainer.faults import describe_faults

Device = Literal["cpu", "cuda", "emulated"]
Resume = Literal["never", "auto"]

_EMULATED_SHAPE = {
    name: Setting(value, "device emulated")
    for name, value in {"width": 16, "context": 16, "batch_size": 2}.items()
}
"""Defaults with which the arithmetic of an emulated step takes about a millisecond."""


@dataclass(frozen=True, kw_only=True)
class TrainerConfig:
    """One training run. Raises FieldError for a value that cannot be used."""

    device: Device = "cpu"
    """Where layers compute: cpu, cuda, or emulated (a tiny model whose layers sleep for a given time)."""
    steps: int = 200
    """Optimizer steps of the whole run, including those before a resume."""
    seed: int = 1
    """Seed of the weights, of the order of the data and of all else that is random."""

    layers: int = 4
    """Transformer blocks."""
    width: int = 64
    """Model dimension; on an emulated device 16 unless given."""
    heads: int = 4
    """Attention heads; must divide the width. An emulated device has no attention."""
    context: int = 64
    """Bytes of text per sequence; on an emulated device 16 unless given."""
    layer_forward_seconds: float = 0.005
    """Sleep in the forward pass of each layer, on an emulated device only."""
    layer_backward_seconds: float = 0.010
    """Sleep in the backward pass of each layer, on an emulated device only."""

    batch_size: int = 8
    """Sequences per micro-batch and rank; on an emulated device 2 unless given."""
    accumulation: int = 1
    """Micro-batches per step; gradients are reduced after the last one only."""
    corpus_bytes: int = 2 << 20
    """Most bytes of text to read, including held-out text."""

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
    """Directory of the checkpoints, shared by all ranks; by default none are written."""
    checkpoint_every: int = 50
    """Steps between checkpoints; the last step is always saved."""
    keep_checkpoints: int = 2
    """Checkpoints to keep; older ones are deleted once a newer one is verified."""
    resume: Resume = "never"
    """auto: resume from the newest good checkpoint, or start anew if there is none."""
    preempt_on_sigterm: bool = False
    """On SIGTERM, finish the step, save a checkpoint and exit 0; costs a tiny all-reduce per step."""

    eval_every: int = 0
    """Steps between evaluations on held-out text; 0 for none."""
    eval_batches: int = 4
    """Micro-batches per evaluation and rank."""

    fault: tuple[str, ...] = ()
    """Fault to inject, such as straggler:rank=2,factor=1.5,from=50,until=200; may be repeated."""
    fault_file: Path | None = None
    """File of faults, one a line, read again when it changes; steps may be relative (from=+5)."""

    collective_timeout_seconds: float = 1800.0
    """Time after which an incomplete collective ends the run."""
    log_every: int = 10
    """Steps between progress lines of rank 0."""
    history: Path | None = None
    """JSON file to which rank 0 writes step, seconds and loss of every step at the end."""

    def __post_init__(self) -> None:
        for name in _AT_LEAST_ONE:
            expect(self, name, getattr(self, name) >= 1, "a whole number >= 1")
        for name in _NOT_NEGATIVE:
            expect(self, name, 0 <= getattr(self, name) < float("inf"), "a number >= 0")
        for name in _POSITIVE:
            expect(self, name, 0 < getattr(self, name) < float("inf"), "a number > 0")
        expect(self, "heads", self.width % self.heads == 0, f"a divisor of width {self.width}")
        complete = self.checkpoint_dir is not None or not (self.resume == "auto" or self.preempt_on_sigterm)
        needed = "a directory, because --resume auto and --preempt-on-sigterm need one"
        expect(self, "checkpoint_dir", complete, needed)


_AT_LEAST_ONE = (
    *("steps", "layers", "width", "heads", "context", "batch_size", "accumulation"),
    *("corpus_bytes", "checkpoint_every", "keep_checkpoints", "eval_batches", "log_every"),
)
_NOT_NEGATIVE = (
    *("seed", "layer_forward_seconds", "layer_backward_seconds", "final_learning_rate"),
    *("warmup_steps", "weight_decay", "eval_every"),
)
_POSITIVE = ("learning_rate", "clip_norm", "collective_timeout_seconds")


def parse_config(arguments: Sequence[str]) -> TrainerConfig:
    """Return the configuration that the command line asks for. Raises UsageError with one sentence."""
    parser = _Parser(
        prog="rankwatch_trainer",
        description="Trains a small GPT on the source of Python's standard library, with faults on demand.",
        epilog=describe_faults(),
    )
    add_flags(parser, TrainerConfig, repeated=("fault",))
    try:
        given = read_flags(TrainerConfig, vars(parser.parse_args(arguments)))
        if "device" in given and given["device"].value == "emulated":
            given = _EMULATED_SHAPE | given
        return build(TrainerConfig, given).values
    except SettingError as error:
        raise UsageError(str(error)) from None


class _Parser(SentenceParser):
    """Raises UsageError for a mistake instead of exiting: only rank 0 reports it."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(message)
