"""Metrics of the telemetry itself: black boxes, the agent, its exports."""

from __future__ import annotations

from rankwatch.conventions.declaration import counter, gauge, info
from rankwatch.conventions.labels import Label

_RANK = (Label.RUN, Label.RANK)

BLACK_BOXES = (
    counter("rankwatch_blackbox_records_total", "1", _RANK, "Black-box records read."),
    counter(
        "rankwatch_blackbox_records_missed_total",
        "1",
        _RANK,
        "Black-box records overwritten or torn before they were read.",
    ),
    counter(
        "rankwatch_blackbox_names_dropped_total",
        "1",
        _RANK,
        "Records left out because the rank used more distinct names than are exported.",
    ),
    gauge(
        "rankwatch_instrumentation_errors",
        "1",
        _RANK,
        "Errors inside the instrumentation of the rank, swallowed so that training goes on.",
    ),
    gauge(
        "rankwatch_instrumentation_device_events_dropped",
        "1",
        _RANK,
        "Events on the compute stream of the rank's GPU that were dropped, because the GPU did not keep up "
        "or a step did not end: the time of these steps on the GPU is not known.",
    ),
    counter(
        "rankwatch_blackbox_faults_total",
        "1",
        (Label.REASON,),
        "Black boxes and directories of runs that were left out or are not what they claim, by reason; each "
        "counts once per reason.",
    ),
    gauge(
        "rankwatch_blackbox_last_fault_timestamp_seconds",
        "seconds",
        (Label.REASON,),
        "Unix time at which the last of these was found; no series of reasons that did not occur.",
    ),
    gauge("rankwatch_blackboxes", "1", (), "Black boxes that the agent reads."),
)

AGENT = (
    info("rankwatch_agent_info", (Label.VERSION,), "Version of the agent; always 1."),
    gauge("rankwatch_collectors", "1", (), "Collectors of the agent whose outcome is known."),
    gauge(
        "rankwatch_collector_state",
        "1",
        (Label.COLLECTOR, Label.STATE),
        "1 for the outcome of the collector's last run (ok, failed, not_applicable); other states "
        "have no series.",
    ),
    gauge(
        "rankwatch_collector_duration_seconds",
        "seconds",
        (Label.COLLECTOR,),
        "Duration of the collector's last run.",
    ),
    gauge(
        "rankwatch_collector_last_success_timestamp_seconds",
        "seconds",
        (Label.COLLECTOR,),
        "Unix time at which the collector last succeeded.",
    ),
    gauge(
        "rankwatch_collector_interval_seconds",
        "seconds",
        (Label.COLLECTOR,),
        "Configured time between runs of the collector.",
    ),
    gauge(
        "rankwatch_collector_overdue_intervals",
        "1",
        (Label.COLLECTOR,),
        "Time since the collector last succeeded, in its intervals, from 2 on; no series below, nor where "
        "what it reads does not exist.",
    ),
    counter(
        "rankwatch_collector_runs_total",
        "1",
        (Label.COLLECTOR, Label.OUTCOME),
        "Runs of the collector by outcome (ok, failed, not_applicable, deadline).",
    ),
    counter(
        "rankwatch_collector_read_errors_total",
        "1",
        (Label.COLLECTOR,),
        "Files, lines or devices that a run of the collector left out because it could not read them.",
    ),
)

TRACKERS = (
    counter(
        "rankwatch_tracker_requests_total",
        "1",
        (Label.OUTCOME,),
        "Requests to the MLflow server of the settings by outcome (success, failure). None is repeated.",
    ),
)

OTLP = (
    counter(
        "rankwatch_spans_total",
        "1",
        (Label.OUTCOME,),
        "Spans by outcome: sent, or dropped because a receiver was away for too long or there were too many.",
    ),
    counter(
        "rankwatch_traced_steps_total",
        "1",
        (Label.REASON,),
        "Steps of ranks that became traces, by why: failed, incident, resumed, slow, chance.",
    ),
    counter(
        "rankwatch_trace_notes_dropped_total",
        "1",
        (),
        "Steps and other records of ranks that were too many to be considered for traces.",
    ),
    counter(
        "rankwatch_otlp_batches_total",
        "1",
        (Label.OUTCOME,),
        "Batches of metrics handed to the OTLP endpoint by outcome (sent, dropped).",
    ),
    gauge(
        "rankwatch_otlp_last_success_timestamp_seconds",
        "seconds",
        (),
        "Unix time at which the OTLP endpoint last took a batch.",
    ),
)
