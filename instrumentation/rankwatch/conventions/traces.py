"""Names in traces: spans, attributes, and what other tools call the same.

There are no OpenTelemetry conventions for training. Where others have names that mean the same, spans carry
those too, with equal values: NeMo's `dl.*` on steps, and OpenTelemetry's CI/CD conventions on runs and
attempts (https://opentelemetry.io/docs/specs/semconv/cicd/): a run is a pipeline run, an attempt a task run.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType


class SpanName(StrEnum):
    """Spans of the run trace and of step traces. Phases of a step have the phase's own name."""

    RUN = "run"
    RUN_STARTED = "run.started"
    """Without a length, because a backend shows a run's own span only after its end."""
    ATTEMPT = "attempt"
    HEARTBEAT = "heartbeat"
    """A part of an attempt, with links to the traces of the steps sampled meanwhile."""
    CHECKPOINT = "checkpoint"
    """Followed by a dot and the operation; its stages have the operation's name and their own."""
    EVALUATION = "evaluation"
    INCIDENT = "incident"
    STEP = "step"


class Attribute(StrEnum):
    """Attributes of spans."""

    RUN = "rankwatch.run"
    RUN_NAME = "rankwatch.run_name"
    RUN_CLASS = "rankwatch.run_class"
    ATTEMPT = "rankwatch.attempt"
    RANK = "rankwatch.rank"
    LOCAL_RANK = "rankwatch.local_rank"
    WORLD_SIZE = "rankwatch.world_size"
    NODE = "rankwatch.node"
    STEP = "rankwatch.step"
    PHASE = "rankwatch.phase"
    SAMPLED = "rankwatch.sampled"
    """Why the step is in a trace: a word of `Sampled`."""
    LOSS = "rankwatch.loss"
    GRADIENT_NORM = "rankwatch.gradient_norm"
    LEARNING_RATE = "rankwatch.learning_rate"
    STATE = "rankwatch.state"
    """State of the rank at the end of the attempt, or of the run."""
    RESULT = "rankwatch.result"
    """A word of `Result`."""
    CHECKPOINT_OPERATION = "rankwatch.checkpoint.operation"
    CHECKPOINT_STAGE = "rankwatch.checkpoint.stage"
    CHECKPOINT_SIZE = "rankwatch.checkpoint.size"
    INCIDENT_KIND = "rankwatch.incident.kind"
    STEPS = "rankwatch.steps"
    """Steps that the attempt completed within the span."""
    SCHEDULER_TRACE = "rankwatch.scheduler.trace_id"
    """Trace of whoever started the job, by its TRACEPARENT."""
    LINK = "rankwatch.link"
    """Target of a link."""
    EXCEPTION_TYPE = "exception.type"
    EXCEPTION_MESSAGE = "exception.message"


class Sampled(StrEnum):
    """Why a step is in a trace. Of several reasons the first counts."""

    FAILED = "failed"
    INCIDENT = "incident"
    RESUMED = "resumed"
    SLOW = "slow"
    CHANCE = "chance"


class Result(StrEnum):
    """How an attempt or a run ended, in the words of OpenTelemetry's CI/CD conventions."""

    SUCCESS = "success"
    FAILURE = "failure"
    """An exception in the training code."""
    ERROR = "error"
    """The process was killed, or is gone."""
    CANCELLATION = "cancellation"
    """It was preempted or interrupted."""


class LinkTo(StrEnum):
    """What a link leads to."""

    SCHEDULER = "scheduler"
    ATTEMPT = "attempt"
    STEP = "step"


ALIASES: Mapping[Attribute, str] = MappingProxyType(
    {
        Attribute.RANK: "dl.rank",
        Attribute.LOCAL_RANK: "dl.local_rank",
        Attribute.WORLD_SIZE: "dl.world_size",
        Attribute.STEP: "dl.iteration",
        Attribute.LOSS: "dl.loss",
        Attribute.GRADIENT_NORM: "dl.grad_norm",
        Attribute.LEARNING_RATE: "dl.learning_rate",
    }
)
"""Attribute -> NeMo's name of it, on spans of steps, checkpoints and evaluations."""
COORDINATE_ALIASES: Mapping[str, str] = MappingProxyType(
    {"dp": "dl.data_parallel", "tp": "dl.tensor_parallel", "pp": "dl.pipeline_parallel"}
)
"""Parallel dimension -> NeMo's name of it, to which `.rank` and `.size` are added."""
RUN_ALIASES: Mapping[Attribute, str] = MappingProxyType(
    {
        Attribute.RUN: "cicd.pipeline.run.id",
        Attribute.RUN_NAME: "cicd.pipeline.name",
        Attribute.RESULT: "cicd.pipeline.result",
    }
)
"""Attribute -> name in the CI/CD conventions, on the span of the run."""
ATTEMPT_ALIASES: Mapping[Attribute, str] = MappingProxyType(
    {
        Attribute.RUN_NAME: "cicd.pipeline.task.name",
        Attribute.ATTEMPT: "cicd.pipeline.task.run.id",
        Attribute.RESULT: "cicd.pipeline.task.run.result",
    }
)
"""Likewise on the span of an attempt."""
SCALARS: Mapping[str, Attribute] = MappingProxyType(
    {
        "loss": Attribute.LOSS,
        "gradient_norm": Attribute.GRADIENT_NORM,
        "learning_rate": Attribute.LEARNING_RATE,
    }
)
"""Scalar of a rank -> attribute of the step's span."""
