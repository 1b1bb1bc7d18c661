"""What the diagnosis of a loss concludes: one alarm per episode."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """What happened."""

    NON_FINITE = "non_finite"
    """The loss was NaN or infinite."""
    GRADIENT_NON_FINITE = "gradient_non_finite"
    UPDATE_NON_FINITE = "update_non_finite"
    SPIKE = "spike"
    """The loss stood far above its trend, and recovered at once."""
    DIVERGENCE = "divergence"
    """The loss left its trend and stayed above it."""
    GRADIENT_NORM_JUMP = "gradient_norm_jump"
    UPDATE_NORM_JUMP = "update_norm_jump"
    LOSS_SCALE_COLLAPSE = "loss_scale_collapse"
    """The loss scaler halved its scale again and again."""


class Severity(StrEnum):
    """How much it matters, in the words of the alerts."""

    INFO = "info"
    """It recovered at once; nothing to do."""
    WARNING = "warning"
    """It lasted and recovered, or it may be the start of more."""
    CRITICAL = "critical"
    """The run does not recover by itself."""


@dataclass(frozen=True, kw_only=True)
class Alarm:
    """One episode of one kind, from its first step to its last."""

    step: int
    """First step of it."""
    kind: Kind
    value: float
    """Loss, norm or scale at that step; may be NaN or infinite."""
    expected: float
    """What the trend promised for that step (of NaN: the last finite value); NaN where there was none."""
    severity: Severity
    last_step: int
    values: int
    """Reported values that stood out."""
    highest: float
    """Of those that stood out; of a loss scale the lowest."""
    confirmed_step: int | None = None
    """Step at which a divergence had lasted long enough to be an alert; None where it had not."""
    recovered: bool = True
    """False where the episode lasted to the end of the file or of the process."""

    def as_json(self) -> dict[str, object]:
        """The object of `--json`; what is no finite number is null there."""
        return {
            "step": self.step,
            "kind": str(self.kind),
            "value": finite(self.value),
            "expected": finite(self.expected),
            "severity": str(self.severity),
        }


def finite(value: float) -> float | None:
    """The value where it is a number that JSON can hold, else None."""
    return value if math.isfinite(value) else None
