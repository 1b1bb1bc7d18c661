"""The places a run writes to, tried before it trains for hours."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from rankwatch_trainer.config import TrainerConfig
from rankwatch_trainer.errors import UsageError
from rankwatch_trainer.faults.checkpoint_corruption import CheckpointCorruption
from rankwatch_trainer.faults.checkpoint_write_failure import CheckpointWriteFailure
from rankwatch_trainer.faults.fault import ScheduledFault


def require_writable_outputs(config: TrainerConfig) -> None:
    """Creates the directory of the checkpoints and tries the history file; for rank 0, which writes both.

    Raises UsageError naming the path that cannot be written.
    """
    if config.checkpoint_dir is not None:
        _require_writable_directory(config.checkpoint_dir)
    if config.history is not None:
        _require_writable_file(config.history)


def require_checkpoints_for(faults: Sequence[ScheduledFault], config: TrainerConfig) -> None:
    """Raises UsageError for a fault of checkpoints in a run that writes none."""
    for scheduled in faults:
        of_checkpoints = isinstance(scheduled.fault, CheckpointWriteFailure | CheckpointCorruption)
        if of_checkpoints and config.checkpoint_dir is None:
            raise UsageError(
                "checkpoint_dir is None, expected a directory, "
                f"because fault {scheduled.fault.name} strikes checkpoints"
            )


def _require_writable_directory(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as cause:
        raise UsageError(f"could not create checkpoint_dir {path}: {cause.strerror}") from cause
    if not os.access(path, os.W_OK | os.X_OK):
        raise UsageError(f"could not write to checkpoint_dir {path}: it is not writable")


def _require_writable_file(path: Path) -> None:
    """Opens the file as the end of the run will, but leaves it as it was."""
    existed = path.exists()
    try:
        path.open("ab").close()
    except OSError as cause:
        raise UsageError(f"could not write history {path}: {cause.strerror}") from cause
    if not existed:
        path.unlink()  # an empty file would pass for the history of a run that was killed
