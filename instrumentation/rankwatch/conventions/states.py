"""What agent and diagnosis say of runs, ranks and nodes: causes, states, kinds of failures and incidents."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType

from rankwatch.conventions.vocabulary import CHECKPOINT, DATA_WAIT, EVALUATION, OTHER

NOT_COMPUTE: tuple[str, ...] = (DATA_WAIT, CHECKPOINT, EVALUATION)
"""Phases that the partition of the model does not decide: short in most steps, and long in some."""


class Cause(StrEnum):
    """What slows a run down: one word each for alerts, the diagnosis, commands and docs."""

    SLOW_RANK = "slow_rank"
    """A rank takes longer for its own work than its peers; `SlowPhase` says for which part of it."""
    SLOW_STAGE = "slow_stage"
    """Every rank of a pipeline stage takes longer than the other stages."""
    UNEQUAL_BATCHES = "unequal_batches"
    """Batches hold unequal work, so the ranks wait for each other in turn."""
    DATA_LOADING = "data_loading"
    """Most ranks wait for their batches."""
    NETWORK = "network"
    """Transfers are slow although nobody is waited for."""
    JITTER = "jitter"
    """Ranks are late in turn, none of them for long."""
    NONE = "none"
    """Nothing slows the run down."""
    INCONCLUSIVE = "inconclusive"
    """Something is slow, but the measurements cannot separate causes or ranks."""


class SlowPhase(StrEnum):
    """The part of a slow rank's own work that grew against its peers."""

    COMPUTE = "compute"
    """Forward, backward, optimizer."""
    DATA_LOADING = "data_loading"
    """Waiting for the next batch."""
    CHECKPOINT = "checkpoint"
    """Saving, verifying or loading a checkpoint inside the step."""
    OTHER = "other"
    """Everything else: evaluation, other work of the host, time that no phase claims."""


STEP_PHASES: Mapping[SlowPhase, tuple[str, ...]] = MappingProxyType(
    {
        SlowPhase.COMPUTE: ("forward", "backward", "optimizer"),
        SlowPhase.DATA_LOADING: (DATA_WAIT,),
        SlowPhase.CHECKPOINT: (CHECKPOINT,),
        SlowPhase.OTHER: (EVALUATION, OTHER),
    }
)
"""Phases of a step by the phase of a slow rank. `communication` is waiting for others and names nobody."""


class RankState(StrEnum):
    """State of a rank as the agent exports it."""

    STARTING = "starting"
    """The black box exists; no step has been completed yet."""
    RUNNING = "running"
    PREEMPTED = "preempted"
    FINISHED = "finished"
    FAILED = "failed"
    """An exception ended it; its type is exported."""
    INTERRUPTED = "interrupted"
    """Ctrl-C, or SIGINT, ended it."""
    EXITED = "exited"
    TERMINATED = "terminated"
    """SIGTERM ended it, for example from torchrun after another rank had died."""
    LOST = "lost"
    """The process is gone without having reported an end: SIGKILL, OOM killer, segmentation fault."""


ENDED_STATES: frozenset[RankState] = frozenset(RankState) - {RankState.STARTING, RankState.RUNNING}


class FailureKind(StrEnum):
    """What kind of failure ended a rank."""

    EXCEPTION = "exception"
    GPU_OUT_OF_MEMORY = "gpu_out_of_memory"
    HOST_OUT_OF_MEMORY = "host_out_of_memory"
    NON_FINITE = "non_finite"
    """A check found NaN or infinity, or the trainer gave up after its loss had become so."""
    EXIT_STATUS = "exit_status"
    """`sys.exit` with another status than 0."""
    CRASH = "crash"
    """A signal of an error, such as SIGSEGV, or SIGABRT of a library that gave up."""
    WATCHDOG_ABORT = "watchdog_abort"
    """PyTorch's watchdog of NCCL ended the process, because a collective or the watchdog itself hung."""
    COLLECTIVE = "collective"
    """A collective failed, mostly because another rank was gone: that one is the root cause."""
    LOST = "lost"
    """The process is gone without a reason: SIGKILL, or the end of its container or node."""


class Outcome(StrEnum):
    """How an attempt of a run, which is one start of all ranks, ended: as the ranks of one node show it."""

    FINISHED = "finished"
    """Every rank reported that it had finished."""
    FAILED = "failed"
    """A rank failed; a `FailureKind` says how."""
    PREEMPTED = "preempted"
    """The trainer, the scheduler or the cloud said so before anything failed."""
    INTERRUPTED = "interrupted"
    """Ctrl-C, or SIGINT."""
    TERMINATED = "terminated"
    """SIGTERM from outside, and no rank of this node failed first: the job was cancelled, its time was up, or
    a rank of another node failed."""
    LOST = "lost"
    """A process is gone without a reason, and nothing failed before."""
    EXITED = "exited"
    """The interpreters ended in order, but not every rank reported `finished`."""


class StartCause(StrEnum):
    """Why an attempt began."""

    FIRST = "first"
    RESTART = "restart"
    """The launcher started the ranks again, within the same job: torchrun's `--max-restarts`."""
    REQUEUE = "requeue"
    """The scheduler started the job again."""


class BoxFault(StrEnum):
    """What is wrong with a black box or the directory of a run."""

    NAME = "name"
    """It is not named after a rank."""
    NOT_A_FILE = "not_a_file"
    SYMLINK = "symlink"
    UNREADABLE = "unreadable"
    """The agent may not open it."""
    GARBAGE = "garbage"
    TRUNCATED = "truncated"
    OVERSIZED = "oversized"
    VERSION = "version"
    MISMATCH = "mismatch"
    """It claims another run or rank than its path."""
    FOREIGN_OWNER = "foreign_owner"
    """It belongs to another user than its directory. It is followed as a run of its own."""
    DUPLICATE = "duplicate"
    """Its rank has a box already."""
    TOO_MANY_RUNS = "too_many_runs"
    TOO_MANY_RANKS = "too_many_ranks"
    TOO_MANY_BOXES = "too_many_boxes"
    TOO_MANY_SERIES = "too_many_series"
    """It is followed, but its series are left out."""
    UNSAFE_DIRECTORY = "unsafe_directory"
    """Ordinary users could exchange what others have in the directory: its owner or its mode is wrong."""


class CollectorState(StrEnum):
    """Outcome of a collector's last run; missing hardware differs from failure."""

    OK = "ok"
    FAILED = "failed"
    NOT_APPLICABLE = "not_applicable"


class DriverState(StrEnum):
    """The NVIDIA driver as the agent sees it."""

    STARTING = "starting"
    """Not asked yet."""
    IN_USE = "in_use"
    UNRESPONSIVE = "unresponsive"
    """A call did not return in time."""
    UNAVAILABLE = "unavailable"
    """It is not loaded, fails, or shows no GPU."""
    RELEASED = "released"
    """The agent let go of it on request, so that it can be unloaded."""


class GoodputState(StrEnum):
    """What a second of an allocated rank was spent on: exactly one of these."""

    PRODUCTIVE = "productive"
    """Steps that no earlier attempt had completed: forward, backward, optimizer, other work of the loop."""
    STARTUP = "startup"
    """From the start of the process to its first step, and what that step takes longer than the next ten."""
    DATA = "data"
    """Waiting for the next batch."""
    COMMUNICATION = "communication"
    """Blocked in collectives, as long as the transfer itself takes."""
    STRAGGLER = "straggler"
    """Blocked in collectives beyond that: waiting for other ranks."""
    CHECKPOINT = "checkpoint"
    """Saving or verifying, as far as it blocks training."""
    RESTORE = "restore"
    """Loading a checkpoint."""
    EVALUATION = "evaluation"
    STALL = "stall"
    """No progress for longer than is normal."""
    REPLAYED = "replayed"
    """Steps that an earlier attempt had completed, done again."""
    DOWN = "down"
    """From the last step before a process died to the start of the process of the next attempt."""
    IDLE = "idle"
    """The rank has ended, and others of its attempt on the node run on."""
    UNKNOWN = "unknown"
    """Its records are lost, or were never read."""


class IncidentKind(StrEnum):
    """What kind of incident it is."""

    STALL = "stall"
    """No live rank of the node made progress for longer than its own history allows."""
    LOST_RANK = "lost_rank"
    """The process of a rank is gone without an end record."""


class EvidenceFault(StrEnum):
    """Why a bundle, or a part of one, is missing."""

    NO_SPACE = "no_space"
    """The file system is full or nearly full."""
    SIZE = "size"
    """It would have made the bundle larger than it may be."""
    WRITE = "write"
    BLACK_BOX = "black_box"
    FLIGHT_RECORDER = "flight_recorder"
    STACKS = "stacks"
    LOG_LINES = "log_lines"
    PROFILE = "profile"
    DUMP = "dump"
    VERDICT = "verdict"
    TOO_SOON = "too_soon"
    """The run had a bundle shortly before."""
    BUSY = "busy"
    """Too many incidents at once, or the incident is too old to collect evidence of it."""


class PriceBasis(StrEnum):
    """What a price stands for. Costs of different bases are never added."""

    LIST = "list"
    """Price that anybody pays."""
    CONTRACTED = "contracted"
    """Price that this customer pays."""
    AMORTISED = "amortised"
    """Cost of own machines over their life, with power and people."""
