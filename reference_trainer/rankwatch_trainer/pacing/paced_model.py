"""The model as each device runs it."""

from __future__ import annotations

from rankwatch_trainer.config import TrainerConfig
from rankwatch_trainer.faults.conditions import Conditions
from rankwatch_trainer.model import GPT, Block
from rankwatch_trainer.pacing.cpu import slow_layers_on_cpu
from rankwatch_trainer.pacing.cuda import slow_layers_on_cuda
from rankwatch_trainer.pacing.emulated import EmulatedBlock


def paced_model(config: TrainerConfig, conditions: Conditions) -> GPT:
    """A model whose layers take the time that the device and the conditions ask for.

    On a computing device layers are slowed only in runs that may be given faults: the hooks cost a little.
    """
    if config.device == "emulated":
        return _emulated(config, conditions)
    blocks = [Block(config.width, config.heads) for _ in range(config.layers)]
    model = GPT(blocks, width=config.width, context=config.context)
    if config.fault or config.fault_file is not None:
        slow_layers = slow_layers_on_cpu if config.device == "cpu" else slow_layers_on_cuda
        slow_layers([*model.blocks, model.head], conditions)
    return model


def _emulated(config: TrainerConfig, conditions: Conditions) -> GPT:
    blocks = [
        EmulatedBlock(
            config.width,
            conditions,
            context=config.context,
            forward_seconds=config.layer_forward_seconds,
            backward_seconds=config.layer_backward_seconds,
        )
        for _ in range(config.layers)
    ]
    return GPT(blocks, width=config.width, context=config.context)
