"""The curve of the loss in a box, thinned out so that a page shows it, with the alarms on it."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rankwatch.blackbox import layout
from rankwatch.blackbox.layout import RecordKind
from rankwatch.conventions import LOSS
from rankwatch_diagnosis.loss.anomaly import Anomaly
from rankwatch_diagnosis.loss.detection import LossVerdict
from rankwatch_diagnosis.review.model import LossCurve, LossMark
from rankwatch_diagnosis.run.boxes import Box

MOST_POINTS = 600
MOST_MARKS = 40


def loss_curve(box: Box, verdict: LossVerdict) -> LossCurve:
    """The loss that a rank has reported, with the anomalies that were found in it."""
    points = [
        (float(step), value)
        for record in box.records
        if record.kind == RecordKind.SCALAR and box.names.get(record.name) == LOSS
        for value, step in (layout.SCALAR.unpack_from(record.payload),)
    ]
    marks = [LossMark(each.step, anomaly_words(each), each.severity) for each in verdict.anomalies]
    return LossCurve(rank=box.rank, axis="step", points=thinned(points), marks=tuple(marks[-MOST_MARKS:]))


def anomaly_words(anomaly: Anomaly) -> str:
    """What happened, at which step, and how far from what was expected."""
    what = anomaly.kind.value.replace("_", " ")
    at = f"{what} at step {anomaly.step}"
    if not math.isfinite(anomaly.value) or not math.isfinite(anomaly.expected):
        return f"{at}: {anomaly.value:g}"
    lasted = f", until step {anomaly.last_step}" if anomaly.last_step > anomaly.step else ""
    return f"{at}: {anomaly.value:.4g} instead of {anomaly.expected:.4g}{lasted}"


def thinned(points: Sequence[tuple[float, float]]) -> tuple[tuple[float, float], ...]:
    """At most MOST_POINTS of the points: of each stretch the lowest and the highest, and all that are not
    finite as one."""
    if len(points) <= MOST_POINTS:
        return tuple(points)
    length = math.ceil(len(points) / (MOST_POINTS // 3))
    found: list[tuple[float, float]] = []
    for begin in range(0, len(points), length):
        part = points[begin : begin + length]
        finite = [each for each in part if math.isfinite(each[1])]
        odd = [each for each in part if not math.isfinite(each[1])][:1]
        ends = {min(finite, key=_value), max(finite, key=_value)} if finite else ()
        found += sorted([*ends, *odd])
    return tuple(found)


def _value(point: tuple[float, float]) -> float:
    return point[1]
