"""Every fault there is."""

from __future__ import annotations

from rankwatch_trainer.faults.checkpoint_corruption import CheckpointCorruption
from rankwatch_trainer.faults.checkpoint_write_failure import CheckpointWriteFailure
from rankwatch_trainer.faults.data_imbalance import DataImbalance
from rankwatch_trainer.faults.data_stuck import DataStuck
from rankwatch_trainer.faults.fault import Fault
from rankwatch_trainer.faults.jitter import Jitter
from rankwatch_trainer.faults.kill import Kill
from rankwatch_trainer.faults.loss_blowup import LossBlowup
from rankwatch_trainer.faults.loss_nan import LossNaN
from rankwatch_trainer.faults.other_collective import OtherCollective
from rankwatch_trainer.faults.skip_collective import SkipCollective
from rankwatch_trainer.faults.slow_data import SlowData
from rankwatch_trainer.faults.stall import Stall
from rankwatch_trainer.faults.straggler import Straggler

FAULTS: tuple[type[Fault], ...] = (
    Straggler,
    Stall,
    Kill,
    Jitter,
    SkipCollective,
    OtherCollective,
    SlowData,
    DataStuck,
    DataImbalance,
    LossNaN,
    LossBlowup,
    CheckpointWriteFailure,
    CheckpointCorruption,
)
