"""What a training process writes: phases, scalars, events, checkpoint stages, capabilities, trackers.

A black box holds the position of a capability in its enumeration: new members go to the end.
"""

from __future__ import annotations

from enum import StrEnum

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


FLOPS_PER_TOKEN = "flops_per_token"
"""Name of the scalar by which a run states the FLOPs of its model for a token, forward and backward."""
BASELINE = "baseline_tokens_per_second"
"""Name of the scalar by which a run states how many tokens per second one rank alone makes."""
STEPS_PER_EPOCH = "steps_per_epoch"
"""Name of the scalar by which a run states how many steps an epoch has."""


class Capability(StrEnum):
    """Something about a training loop that can be recorded."""

    STEPS = "steps"
    DATA_WAIT = "data_wait"
    FORWARD = "forward"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"
    LOSS = "loss"
    GRADIENT_NORM = "gradient_norm"
    LEARNING_RATE = "learning_rate"
    LOSS_SCALE = "loss_scale"
    CHECKPOINTS = "checkpoints"
    EVALUATION = "evaluation"
    WORK = "work"
    """Samples or tokens of each batch."""
    EXIT_CAUSE = "exit_cause"
    """The exception, the signal or the exit code that ends the process."""
    REPLICAS = "replicas"
    """Parameters that must be the same on several ranks, by their fingerprints."""
    WAITS = "waits"
    """Waits for other ranks on a GPU, without which a rank's own time is not known."""


class Unseen(StrEnum):
    """Why a capability is not visible. `sentence` says it to a person."""

    TOO_OLD = "too_old"
    REPLACED = "replaced"
    HOOK_FAILED = "hook_failed"
    NOT_CALLED = "not_called"
    COLLECTIVE = "collective"
    DEVICE = "device"
    COMPILED = "compiled"
    OTHER_THREAD = "other_thread"
    CUSTOM_LOOP = "custom_loop"
    SEVERAL_LOSSES = "several_losses"
    UNKNOWN_SCALE = "unknown_scale"
    UNKNOWN_FORMAT = "unknown_format"
    EXPLICIT = "explicit"
    SEVERAL_ELEMENTS = "several_elements"
    IN_BACKWARD = "in_backward"
    OFF = "off"
    SHARDED = "sharded"
    ONE_REPLICA = "one_replica"
    LOCAL_UPDATES = "local_updates"
    CUDA_GRAPH = "cuda_graph"

    @property
    def sentence(self) -> str:
        """The reason as the end of a sentence: `loss: not visible, because ...`."""
        return _SENTENCES[self]


_SENTENCES = {
    Unseen.TOO_OLD: "the installed library lacks the function that shows it",
    Unseen.REPLACED: "another library has replaced the function that shows it",
    Unseen.HOOK_FAILED: "rankwatch's hook failed several times and was removed",
    Unseen.NOT_CALLED: "the training loop has not called the function that shows it",
    Unseen.COLLECTIVE: "its parts lie on several ranks, and only a collective would put them together",
    Unseen.DEVICE: "reading it would wait for the device",
    Unseen.COMPILED: "it happens inside a compiled graph",
    Unseen.OTHER_THREAD: "it happens in another thread than the training loop",
    Unseen.CUSTOM_LOOP: "the training loop overrides the function that shows it",
    Unseen.SEVERAL_LOSSES: "the step has several losses, and none of them is the loss",
    Unseen.UNKNOWN_SCALE: "it is scaled by a factor that is not known",
    Unseen.UNKNOWN_FORMAT: "its structure is not one that rankwatch knows",
    Unseen.EXPLICIT: "the script calls rankwatch.start and does not record it",
    Unseen.SEVERAL_ELEMENTS: "it is a tensor with more than one element",
    Unseen.IN_BACKWARD: "the optimizers step inside the backward pass",
    Unseen.OFF: "a setting turns it off",
    Unseen.SHARDED: "it does not apply: the parameters are sharded, so no other rank holds the same ones",
    Unseen.ONE_REPLICA: "it does not apply: no other rank holds a replica",
    Unseen.LOCAL_UPDATES: "it does not apply: the ranks update their parameters separately between averages",
    Unseen.CUDA_GRAPH: "it happens inside a CUDA graph with collectives",
}


class TrackerKind(StrEnum):
    """An experiment tracker that is found in a training process."""

    MLFLOW = "mlflow"
    WANDB = "wandb"
    TRACKIO = "trackio"
    TENSORBOARD = "tensorboard"


class TrackerTag(StrEnum):
    """Tags of a tracker's run."""

    RUN = "rankwatch.run"
    """Run id of rankwatch."""
    DASHBOARD_URL = "rankwatch.dashboard_url"
    LAST_INCIDENT = "rankwatch.last_incident"
    """Kind, time and the ranks that the evidence names."""
    GOODPUT = "rankwatch.goodput"
    """Part of the time of rank 0 since its start that was spent in completed steps."""


class TrackerMetric(StrEnum):
    """Metrics of a tracker's run, over its steps."""

    GOODPUT = "rankwatch/goodput"
    STEP_SECONDS = "rankwatch/step_seconds"
    """Mean duration of rank 0's steps."""
    STEPS_PER_SECOND = "rankwatch/steps_per_second"
    """Over wall time, with everything between steps."""
    DATA_WAIT_SHARE = "rankwatch/data_wait_share"
    """Part of the time of steps in which rank 0 waited for a batch."""
    COMMUNICATION_SHARE = "rankwatch/communication_share"
    LATE_STEPS = "rankwatch/late_steps"
    """Steps of rank 0 that took far longer than its usual ones."""


DASHBOARD_PATH = "/d/rankwatch-run-debug?var-run={run}"
"""Of the dashboard of one run, below the address of Grafana."""
