"""Every name rankwatch speaks; a test fails on any metric that does not come from here.

`vocabulary` and `environment` are what a training process speaks, so this package names only these. `states`
is what agent and diagnosis say, `metrics` the table of metrics and their labels, `traces` and
`opentelemetry` the names that others use. Importing them has no dependency and no side effect.
"""

from rankwatch.conventions import environment
from rankwatch.conventions.vocabulary import (
    CHECKPOINT,
    CHECKPOINT_OPERATIONS,
    COMMUNICATION,
    DATA_WAIT,
    EVALUATION,
    LOSS,
    OTHER,
    PHASES,
    TOKENS,
    Capability,
    CheckpointStage,
    Lifecycle,
    Unseen,
)

__all__ = [
    "environment",
    "PHASES",
    "DATA_WAIT",
    "COMMUNICATION",
    "OTHER",
    "CHECKPOINT",
    "EVALUATION",
    "LOSS",
    "TOKENS",
    "CHECKPOINT_OPERATIONS",
    "CheckpointStage",
    "Lifecycle",
    "Capability",
    "Unseen",
]
