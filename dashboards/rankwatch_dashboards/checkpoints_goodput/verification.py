"""Row: is what was saved still what was written?"""

from __future__ import annotations

from rankwatch_alerts import RuleConfig
from rankwatch_dashboards.panels import RUN, Panel, Query


def verification(config: RuleConfig) -> tuple[Panel, ...]:
    """Panels of what the agent has read again; empty unless `checkpoint_bytes_per_second` is set."""
    return (_DAMAGED, _VERIFIED_STEP, _VERIFIED_AGE, _VERIFICATION_TIME)


_DAMAGED = Panel(
    title="Damaged checkpoints",
    description="Step of each checkpoint that is not what was written, with its path, file and tensor. "
    "Any raises RankwatchCheckpointAtRisk (damaged).",
    unit="short",
    queries=(
        Query(
            expression=f"topk(10, rankwatch_checkpoint_damaged_step{{{RUN}}})",
            legend="{{path}} {{file}} {{tensor}} {{damage}}",
        ),
    ),
)

_VERIFIED_STEP = Panel(
    title="Newest verified step",
    description="Step of the newest checkpoint that was read again and found good.",
    unit="short",
    queries=(
        Query(expression=f"max by (run) (rankwatch_checkpoint_verified_step{{{RUN}}})", legend="{{run}}"),
    ),
)

_VERIFIED_AGE = Panel(
    title="Age of the newest verified checkpoint",
    description="Time since it was saved. It grows if saves fail, are damaged, or are not read fast enough.",
    unit="s",
    queries=(
        Query(
            expression=f"time() - max by (run) (rankwatch_checkpoint_verified_timestamp_seconds{{{RUN}}})",
            legend="{{run}}",
        ),
    ),
)

_VERIFICATION_TIME = Panel(
    title="Time of the last verification",
    description="How long it took to read a checkpoint again, at the rate that the agent may read with.",
    unit="s",
    queries=(
        Query(
            expression=f"max by (run) (rankwatch_checkpoint_verification_seconds{{{RUN}}})", legend="{{run}}"
        ),
    ),
)
