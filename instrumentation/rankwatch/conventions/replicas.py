"""Metrics of parameters that must be the same on several ranks."""

from __future__ import annotations

from rankwatch.conventions.declaration import Metric, counter, gauge
from rankwatch.conventions.labels import Label

_RANK = (Label.RUN, Label.RANK)
_LEVEL = (*_RANK, Label.MEMBERS, Label.LEVEL)
_DIFFERING = (Label.CLUSTER, Label.RUN, Label.MEMBERS)

SAME_NORM = 1e-5
"""Part by which equal gradient norms may differ: by the order of additions in float32, where GPUs differ."""
OTHER_NORM = 0.01
"""Part from which gradient norms differ: neighbouring numbers of bfloat16 do by up to 0.8 %."""

REPLICAS: tuple[Metric, ...] = (
    gauge(
        "rankwatch_rank_fingerprint",
        "1",
        _LEVEL,
        "48 bits of a hash of all parameters that these ranks (members) must hold alike, after the step that "
        "rankwatch_rank_fingerprint_step names.",
    ),
    gauge("rankwatch_rank_fingerprint_step", "1", _LEVEL, "Step of that fingerprint."),
    gauge(
        "rankwatch_rank_fingerprint_gradient_norm",
        "1",
        _LEVEL,
        "Gradient norm of that step, where the training loop reports one.",
    ),
    counter("rankwatch_rank_fingerprints_total", "1", _RANK, "Fingerprints that the rank has taken."),
    counter(
        "rankwatch_rank_fingerprint_seconds_total",
        "seconds",
        _RANK,
        "Time that they took: on the GPU, else on the training thread.",
    ),
)
