"""Environment variables that rankwatch reads."""

from __future__ import annotations

from pathlib import Path

DIRECTORY = "RANKWATCH_DIR"
"""Directory of the black boxes."""
DISABLE = "RANKWATCH_DISABLE"
"""Any value but empty, 0, false or no turns the instrumentation off."""
RUN = "RANKWATCH_RUN"
"""Run id; wins over what torchrun or SLURM say."""
RUN_CLASS = "RANKWATCH_RUN_CLASS"
"""Class of the run, such as production or research: the alerts' settings say how many ranks of it page."""
CHECKPOINT_INTERVAL = "RANKWATCH_CHECKPOINT_INTERVAL_SECONDS"
"""Longest time between two checkpoints that the run intends."""
NCCL_TIMING = "RANKWATCH_NCCL_TIMING"
"""0, false, no or empty: PyTorch is not asked for the times of NCCL's collectives."""
SUMMARY = "RANKWATCH_SUMMARY"
"""0, false, no or empty: rank 0 prints nothing at start and at exit."""
OFF = ("", "0", "false", "no")
"""Values, in lower case, that turn a switch off."""

DEFAULT_DIRECTORY = Path("/dev/shm/rankwatch")
