"""Environment variables that rankwatch reads."""

from __future__ import annotations

from pathlib import Path

DIRECTORY = "RANKWATCH_DIR"
"""Directory of the black boxes."""
DISABLE = "RANKWATCH_DISABLE"
"""Any value but empty, 0, false or no turns the instrumentation off."""
RUN = "RANKWATCH_RUN"
"""Run id; wins over what torchrun or SLURM say."""
TENANT = "RANKWATCH_TENANT"
"""Whose directory of black boxes it is, where each tenant has one, such as the namespace of a pod. Names of
runs begin with it."""
RUN_CLASS = "RANKWATCH_RUN_CLASS"
"""Class of the run, such as production or research: the alerts' settings say how many ranks of it page."""
CONTACT = "RANKWATCH_CONTACT"
"""Who is told of the run beside its owner on call, such as #my-team or me@example.com."""
ATTEMPT = "RANKWATCH_ATTEMPT"
"""How often the scheduler has started the job before; wins over what SLURM or AWS Batch say."""
TRACEPARENT = "TRACEPARENT"
"""Position in a trace of whoever started the job, as in W3C trace context; the run's trace links to it."""
CHECKPOINT_INTERVAL = "RANKWATCH_CHECKPOINT_INTERVAL_SECONDS"
"""Longest time between two checkpoints that the run intends."""
COLLECTIVES = "RANKWATCH_COLLECTIVES"
"""0, false, no or empty: collectives are not recorded."""
FLIGHT_RECORDER = "RANKWATCH_FLIGHT_RECORDER"
"""0, false, no or empty: PyTorch's flight recorder is not served to the agent."""
NCCL_TIMING = "RANKWATCH_NCCL_TIMING"
"""0, false, no or empty: PyTorch is not asked for the times of NCCL's collectives."""
SUMMARY = "RANKWATCH_SUMMARY"
"""0, false, no or empty: rank 0 prints nothing at start and at exit."""
TARGET_STEPS = "RANKWATCH_TARGET_STEPS"
"""Number of steps that the run is to reach."""
DEADLINE = "RANKWATCH_DEADLINE"
"""When the run is to be done: Unix time in seconds, or a time with its zone, such as 2026-12-01T08:00Z."""
FLOPS_PER_TOKEN = "RANKWATCH_FLOPS_PER_TOKEN"
"""FLOPs of the model for a token, forward and backward; with them, its share of the GPUs' peak is known."""
BASELINE_TOKENS_PER_SECOND = "RANKWATCH_BASELINE_TOKENS_PER_SECOND"
"""Tokens per second of one rank alone; with them, the efficiency of scaling is known."""
SINGLE_PROCESS = "RANKWATCH_SINGLE_PROCESS"
"""Any value but empty, 0, false or no: below `rankwatch run`, a process that no launcher has given a rank is
recorded too, if it trains. `rankwatch run` sets it."""
PYTHON = "RANKWATCH_PYTHON"
"""The interpreter of `rankwatch run`, set by it: it prints the card at exit."""
RANK_PROCESS = "RANKWATCH_RANK_PROCESS"
"""Set by a rank that zero-code recording follows, for the processes that it starts: they are no ranks."""
LOG_LINES = "RANKWATCH_LOG_LINES"
"""0, false, no or empty: the newest lines that a rank logs and prints are not kept beside its black box."""
BOX_WRITES = "RANKWATCH_BOX_WRITES"
"""mapped: black boxes and lines are mapped files. copied: a thread copies memory into them, so that cutting
them does not kill the process. By default copied in a directory of mode 1777 that is mounted by itself, which
other containers may share; else mapped."""
CLUSTER = "RANKWATCH_CLUSTER"
"""The cluster that the ids of traces in log lines are made with: the agent's setting `cluster`."""
TRACKERS = "RANKWATCH_TRACKERS"
"""0, false, no or empty: rank 0 neither looks for experiment trackers nor tells them anything."""
DASHBOARD_URL = "RANKWATCH_DASHBOARD_URL"
"""Address of the Grafana that has rankwatch's dashboards, for the link in experiment trackers."""
PROFILE_ON_SLOW = "RANKWATCH_PROFILE_ON_SLOW"
"""Traces of slow steps that a rank keeps when somebody asks for them; empty or 0: it never profiles."""
PROFILE_REQUESTS_FROM = "RANKWATCH_PROFILE_REQUESTS_FROM"
"""User ids, separated by commas, whose requests for traces a rank serves, beside its own user, root and the
owner of the directory of the black boxes."""
FINGERPRINT_STEPS = "RANKWATCH_FINGERPRINT_STEPS"
"""Steps between two fingerprints of the parameters that must be the same on several ranks; 0: none."""
TORCHTITAN_HANDLERS = "TITAN_STRUCT_LOGGER_HANDLERS"
"""torchtitan's own: functions that it calls with its structured logger. Zero-code recording names one of ours
where nobody has set it."""
OFF = ("", "0", "false", "no")
"""Values, in lower case, that turn a switch off."""

DEFAULT_DIRECTORY = Path("/dev/shm/rankwatch")
