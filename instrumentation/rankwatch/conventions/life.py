"""Metrics of the life of a run: its attempts, how they began and ended, and its plan.

The counters have no label of a run, because the series of a run begin with it: see the agent's
`life.counters`.
"""

from __future__ import annotations

from rankwatch.conventions.declaration import counter, gauge
from rankwatch.conventions.labels import Label

LIFE = (
    counter(
        "rankwatch_run_starts_total",
        "1",
        (Label.RUN_CLASS, Label.CAUSE),
        "Attempts of runs that began, by what started them: first, restart (by the launcher), requeue (by "
        "the scheduler). The node of rank 0 counts.",
    ),
    counter(
        "rankwatch_run_attempts_total",
        "1",
        (Label.RUN_CLASS, Label.OUTCOME),
        "Attempts of runs that ended, by outcome. The node of rank 0 counts, by what its ranks show.",
    ),
    counter(
        "rankwatch_run_failures_total",
        "1",
        (Label.RUN_CLASS, Label.KIND),
        "Attempts that a rank of this node ended by a failure, by kind. Nodes that see only its victims do "
        "not count.",
    ),
    gauge(
        "rankwatch_run_attempt_start_timestamp_seconds",
        "seconds",
        (Label.RUN,),
        "Unix time at which the first process of the present attempt started on this node, before its "
        "imports.",
    ),
    gauge(
        "rankwatch_run_attempt_end_timestamp_seconds",
        "seconds",
        (
            *(Label.RUN, Label.ATTEMPT, Label.OUTCOME, Label.KIND),
            *(Label.EXCEPTION, Label.RANK, Label.MESSAGE),
        ),
        "Unix time of the end of the newest attempt that is over, with its outcome, and with kind, "
        "exception, rank and message of its root cause, as far as this node has it.",
    ),
    gauge(
        "rankwatch_run_time_to_first_step_seconds",
        "seconds",
        (Label.RUN,),
        "Time from the start of a process to the end of its first step, in the present attempt: of the "
        "slowest rank here.",
    ),
    gauge(
        "rankwatch_run_attempts_without_progress",
        "1",
        (Label.RUN,),
        "Attempts that have ended one after the other without a step that no attempt before had reached, as "
        "far as this node has seen them; attempts that finished, or were preempted or interrupted, are none.",
    ),
    gauge(
        "rankwatch_run_requeues",
        "1",
        (Label.RUN,),
        "How often the scheduler has started the job of the run before, as the scheduler says.",
    ),
    gauge(
        "rankwatch_run_restarts",
        "1",
        (Label.RUN,),
        "How often the launcher has started the ranks again in the present job, as the launcher says.",
    ),
    gauge(
        "rankwatch_run_cycle",
        "1",
        (Label.RUN,),
        "Number of the newest restart cycle of the run's job, from 0, as NVRx's launcher reports it; no "
        "series below other launchers, and likewise the next three.",
    ),
    gauge(
        "rankwatch_run_cycle_start_timestamp_seconds",
        "seconds",
        (Label.RUN,),
        "Unix time at which the newest restart cycle began.",
    ),
    gauge(
        "rankwatch_run_cycle_end_timestamp_seconds",
        "seconds",
        (Label.RUN,),
        "Unix time at which the newest restart cycle ended; no series while it runs.",
    ),
    gauge(
        "rankwatch_run_nodes",
        "1",
        (Label.RUN, Label.STATE),
        "Nodes of the newest restart cycle: active, with ranks; standby, waiting to take the place of "
        "another one.",
    ),
    counter(
        "rankwatch_cycle_files_skipped_total",
        "1",
        (Label.REASON,),
        "Reports of restart cycles that were left out, each version of a file once: no_file (a link, a "
        "directory, a pipe), too_large, half_written, foreign (no report of the cycle that its name says), "
        "unreadable.",
    ),
    gauge(
        "rankwatch_preemption_notice_timestamp_seconds",
        "seconds",
        (Label.SOURCE,),
        "Unix time at which the cloud first said that it will take this machine away; no series while it "
        "does not.",
    ),
    gauge(
        "rankwatch_run_deadline_timestamp_seconds",
        "seconds",
        (Label.RUN,),
        "Unix time by which the run is to be done; no series where it declares none.",
    ),
)
