"""Metrics of parameters that must be the same on several ranks."""

from __future__ import annotations

from rankwatch.conventions.declaration import Metric, RecordedSeries, counter, gauge, recorded
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
RECORDED_REPLICAS: tuple[RecordedSeries, ...] = (
    recorded(
        "rank:rankwatch_fingerprint_compared:max",
        (*_DIFFERING, Label.LEVEL, Label.RANK, Label.NODE),
        "Fingerprint of each rank that shows the newest step, where at least half of the ranks show it.",
    ),
    recorded(
        "rank:rankwatch_replica_differs:step",
        (*_DIFFERING, Label.RANK, Label.NODE),
        "Step at which the parameters of this rank differ from those of the majority of its replicas.",
    ),
    recorded(
        "rank:rankwatch_gradient_norm_deviation:ratio",
        (*_DIFFERING, Label.LEVEL, Label.RANK, Label.NODE),
        "Part by which the gradient norm of a rank differs from the median of its replicas, at one step.",
    ),
    recorded(
        "rank:rankwatch_gradient_norm_differs:step",
        (*_DIFFERING, Label.RANK, Label.NODE),
        "Step at which the gradient norm of this rank differs from that of the majority of its replicas.",
    ),
    recorded(
        "run:rankwatch_replicas_differ:step",
        _DIFFERING,
        "Step at which replicas differ and no majority tells which one is wrong.",
    ),
    recorded(
        "run:rankwatch_replicas_equal:step",
        _DIFFERING,
        "Newest step at which all replicas that were compared were equal.",
    ),
)
