"""The closed vocabularies: causes, phases of a step, lifecycle events, states, operations."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType

DATA_WAIT = "data_wait"
COMMUNICATION = "communication"
OTHER = "other"
CHECKPOINT = "checkpoint"
EVALUATION = "evaluation"
LOSS = "loss"
GRADIENT_NORM = "gradient_norm"
UPDATE_NORM = "update_norm"
"""Norm of what an optimizer's step adds to the parameters."""
LEARNING_RATE = "learning_rate"
LOSS_SCALE = "loss_scale"
DATASET = "dataset"
"""Any number that tells the data of one phase of training from those of another."""
UPDATE_SKIPPED = "update_skipped"
"""1 on a step whose update the gradient scaler skipped."""
TOKENS = "tokens"
"""The unit of work that a step's time is compared with."""

PHASES: tuple[str, ...] = (
    DATA_WAIT,
    "forward",
    "backward",
    "optimizer",
    COMMUNICATION,
    CHECKPOINT,
    EVALUATION,
)
"""Phases a training loop may open. `communication` also receives the exposed part of collectives
(time the training thread is blocked in them); what no phase claims is `other`."""

NOT_COMPUTE: tuple[str, ...] = (DATA_WAIT, CHECKPOINT, EVALUATION)
"""Phases that the partition of the model does not decide: short in most steps, and long in some."""

CHECKPOINT_OPERATIONS: tuple[str, ...] = ("save", "verify", "load", "upload")
"""`upload` copies a saved checkpoint to where it outlives the node, apart from the save itself."""


class CheckpointStage(StrEnum):
    """Stages of a checkpoint operation. The comments name the functions of torch.distributed.checkpoint by
    which zero-code recording tells them apart. Explicit calls may use any name."""

    SERIALIZE = "serialize"
    """Turning the state into bytes, where that is apart from writing them."""
    WRITE = "write"
    """Writing files: `write_data`, torch.save, safetensors."""
    READ = "read"
    """Reading files: `read_data`, torch.load, safetensors."""
    STATE_DICT = "state_dict"
    """Collecting the state: `_stateful_to_state_dict`."""
    STAGE = "stage"
    """Copying the state, so that training can go on: `stage_state_dict`."""
    SYNCHRONIZE_STAGING = "synchronize_staging"
    """Waiting for that copy: `maybe_synchronize_staging`, or `result` of its future."""
    START_PROCESS = "start_process"
    """Starting the process that writes in the background: `create_checkpoint_daemon_process`."""
    WAIT_PREVIOUS = "wait_previous"
    """Training waits for the end of a save in the background, before the next one: `result` of its future."""
    LOCAL_PLAN = "local_plan"
    """Planning what the rank writes or reads: `local_step`."""
    GLOBAL_PLAN = "global_plan"
    """Joining the plans of all ranks, on the coordinator: `global_step`."""
    FSYNC = "fsync"
    """Waiting until the disk has the files."""
    PUBLISH = "publish"
    """Renaming what is complete to its final name."""
    VERIFY = "verify"
    """Reading it again, as a part of the save."""
    UPLOAD = "upload"
    """Copying it to a remote storage."""
    DELETE = "delete"
    """Removing older checkpoints."""
    OTHER = "other"
    """An operation failed outside of all its stages."""
    COMMIT = "commit"
    """Writing the metadata that make it complete, on the coordinator: `finish_checkpoint`."""


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


class Lifecycle(StrEnum):
    """Events in the life of a rank, written to its black box."""

    STARTED = "started"
    RESUMED = "resumed"
    PREEMPTED = "preempted"
    FINISHED = "finished"
    FAILED = "failed"
    INTERRUPTED = "interrupted"
    """KeyboardInterrupt: Ctrl-C, or SIGINT."""
    EXITED = "exited"
    """The interpreter ended in order, but the run did not report `finished`."""


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
