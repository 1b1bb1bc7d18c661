"""What of a training loop is visible to rankwatch, and why something is not.

A black box holds the position of a member in its enumeration: new members go to the end.
"""

from __future__ import annotations

from enum import StrEnum


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
