"""Recorded series of the life of runs: how they end, how far they are, when they will be done."""

from __future__ import annotations

from rankwatch.conventions.declaration import recorded
from rankwatch.conventions.labels import Label

_RUN = (Label.CLUSTER, Label.RUN)

RECORDED_LIFE = (
    recorded(
        "run:rankwatch_run_failed_timestamp_seconds:max",
        (*_RUN, Label.NODE, Label.RANK, Label.KIND, Label.EXCEPTION),
        "Unix time at which the newest attempt of a run failed, while none of its ranks runs: of its root "
        "cause, where a node has it.",
    ),
    recorded("run:rankwatch_step:max", _RUN, "Highest step that any rank of the run has ever completed."),
    recorded(
        "run:rankwatch_step:deriv",
        _RUN,
        "Steps a second by which the highest step rises: checkpoints, evaluations, restarts and repeated "
        "steps count as time without steps.",
    ),
    recorded(
        "run:rankwatch_run_time_to_first_step_seconds:max",
        _RUN,
        "Time from the start of the processes of a run that goes on to the end of its first step.",
    ),
    recorded(
        "run:rankwatch_startup_seconds:max",
        _RUN,
        "The same; of a run without a first step how long it has been starting.",
    ),
    recorded(
        "run:rankwatch_time_to_complete_seconds:estimate",
        _RUN,
        "Time until the run reaches its target steps, if it goes on as in the last hours.",
    ),
    recorded(
        "run:rankwatch_deadline_margin_seconds:estimate",
        _RUN,
        "Time from the estimated end of the run to its deadline; negative where it will be late.",
    ),
    recorded(
        "run:rankwatch_node_lost_timestamp_seconds:min",
        (*_RUN, Label.RUN_CLASS),
        "Unix time at which the first of the nodes was last seen that the run has lost, until the run moves "
        "again. Machines that the cloud has taken away do not count.",
    ),
)
