"""Goodput: the states in which the time of a rank is spent, and its metrics."""

from __future__ import annotations

from enum import StrEnum

from rankwatch.conventions.declaration import counter, gauge
from rankwatch.conventions.labels import Label


class GoodputState(StrEnum):
    """What a second of an allocated rank was spent on: exactly one of these."""

    PRODUCTIVE = "productive"
    """Steps that no earlier attempt had completed: forward, backward, optimizer, other work of the loop."""
    STARTUP = "startup"
    """From the start of the process to its first step, and what that step takes longer than the next ten."""
    DATA = "data"
    """Waiting for the next batch."""
    COMMUNICATION = "communication"
    """Blocked in collectives, as long as the transfer itself takes."""
    STRAGGLER = "straggler"
    """Blocked in collectives beyond that: waiting for other ranks."""
    CHECKPOINT = "checkpoint"
    """Saving or verifying, as far as it blocks training."""
    RESTORE = "restore"
    """Loading a checkpoint."""
    EVALUATION = "evaluation"
    STALL = "stall"
    """No progress for longer than is normal."""
    REPLAYED = "replayed"
    """Steps that an earlier attempt had completed, done again."""
    DOWN = "down"
    """From the last step before a process died to the start of the process of the next attempt."""
    IDLE = "idle"
    """The rank has ended, and others of its attempt on the node run on."""
    UNKNOWN = "unknown"
    """Its records are lost, or were never read."""


GOODPUT = (
    counter(
        "rankwatch_goodput_seconds_total",
        "seconds",
        (Label.RUN, Label.STATE),
        "Time of the run's ranks on this node by what it was spent on, summed over the ranks. The states sum "
        "to the time for which the ranks were allocated.",
    ),
    counter(
        "rankwatch_replayed_steps_total",
        "1",
        (Label.RUN,),
        "Steps that an earlier attempt had completed and that were done again, on the rank with the most.",
    ),
    gauge(
        "rankwatch_run_highest_step",
        "1",
        (Label.RUN,),
        "Highest step that the run has ever completed on this node, over all attempts.",
    ),
)
