"""Anomalies of a loss: what happened, how severe it is, and which values belong together."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from rankwatch_diagnosis.json_value import json_value

GAP_VALUES = 20
"""Ordinary values in a row that end an excursion; an outlier before that belongs to it."""


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
    """How much it matters, in the severities of the alerts."""

    INFO = "info"
    """It recovered at once; nothing to do."""
    WARNING = "warning"
    """It lasted and recovered, or it may be the start of more."""
    CRITICAL = "critical"
    """The run does not recover by itself."""


@dataclass(frozen=True, kw_only=True)
class Anomaly:
    """One excursion of one kind, from its first step to its last."""

    step: int
    """Its first step."""
    kind: Kind
    value: float
    """Loss, norm or scale at that step; may be NaN or infinite."""
    expected: float
    """The trend at that step (for NaN: the last finite value); NaN where there was none."""
    severity: Severity
    last_step: int
    values: int
    """Reported values that stood out."""
    highest: float
    """Highest of these values; of a loss scale the lowest."""
    confirmed_step: int | None = None
    """Step at which it had lasted long enough to be certain; None where it had not."""
    recovered: bool = True
    """False where the excursion lasted to the end of the file or of the process."""

    def as_json(self) -> dict[str, object]:
        """Return the object in `--json`; a number that is not finite is null there."""
        return {
            "step": self.step,
            "kind": str(self.kind),
            "value": json_value(self.value),
            "expected": json_value(self.expected),
            "severity": str(self.severity),
        }


@dataclass
class Excursion:
    """Values that stand out, and the gaps between them, taken as one event."""

    step: int
    """Its first step, of which are the value and what was expected."""
    value: float
    expected: float
    last_step: int = field(init=False)
    highest: float = field(init=False)
    values: int = 0
    """Values that stood out."""
    confirmed_step: int | None = None
    """Step at which the values had been above the threshold for long enough."""
    _in_a_row: int = 0
    _ordinary: int = 0
    _streak: tuple[int, float, float] | None = None
    """Step, value and expectation at the start of the present run of values that stand out."""

    def __post_init__(self) -> None:
        self.last_step, self.highest = self.step, self.value

    @property
    def over(self) -> bool:
        """Whether enough ordinary values have followed."""
        return self._ordinary >= GAP_VALUES

    @property
    def outlier_now(self) -> bool:
        """Whether the newest value stood out."""
        return self._ordinary == 0

    @property
    def above_now(self) -> bool:
        """Whether the newest value was above the threshold."""
        return self._in_a_row > 0

    def add_outlier(
        self, step: int, value: float, expected: float, *, above: bool, confirm_after: float
    ) -> None:
        """Take a value that stands out."""
        self._ordinary = 0
        self.values += 1
        self.last_step = step
        self.highest = max(self.highest, value)
        if self._streak is None:
            self._streak = (step, value, expected)
        self._in_a_row = self._in_a_row + 1 if above else 0
        if self._in_a_row >= confirm_after and self.confirmed_step is None:
            self.confirmed_step = step
            # A spike shortly before is not where the divergence began.
            self.step, self.value, self.expected = self._streak

    def add_ordinary(self) -> None:
        """Take a value that does not stand out."""
        self._ordinary += 1
        self._in_a_row = 0
        self._streak = None

    def anomaly(self, kind: Kind, severity: Severity, *, recovered: bool) -> Anomaly:
        """Return the anomaly that this excursion was, now that it is over."""
        return Anomaly(
            step=self.step,
            kind=kind,
            value=self.value,
            expected=self.expected,
            severity=severity,
            last_step=self.last_step,
            values=self.values,
            highest=self.highest,
            confirmed_step=self.confirmed_step,
            recovered=recovered,
        )
