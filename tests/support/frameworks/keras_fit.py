"""Trains a small model with Keras in several ways, on the backend of KERAS_BACKEND. Prints results as JSON.

keras_fit.py FOLDER: black boxes are below FOLDER, in a directory for each way.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import keras
import numpy as np

import rankwatch
from rankwatch.integrations.keras import RankwatchCallback

BATCHES, SIZE = 6, 8


class Slow(keras.utils.PyDataset):  # type: ignore[misc]
    """Batches that take a while, and how long."""

    def __init__(self) -> None:
        super().__init__()
        random = np.random.default_rng(3)
        self.x = random.normal(size=(BATCHES, SIZE, 4)).astype("float32")
        self.y = self.x.sum(axis=2, keepdims=True)

    def __len__(self) -> int:
        return BATCHES

    def __getitem__(self, index: int) -> Any:
        time.sleep(0.02)
        return self.x[index], self.y[index]


class Means(keras.callbacks.Callback):  # type: ignore[misc]
    """The means that Keras shows after each batch."""

    async_safe = True

    def __init__(self) -> None:
        super().__init__()
        self.means: dict[int, float] = {}
        self.epoch = 0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.epoch = epoch

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.means[self.epoch * BATCHES + batch] = logs["loss"]


class Failing(keras.callbacks.Callback):  # type: ignore[misc]
    """Ends the training in its second epoch."""

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        if epoch == 1:
            raise RuntimeError("the end")


class Broken:
    """A run that fails whatever it is asked to record."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(f"no {name} here")

    def sees(self, capability: Any, why: Any = None) -> None: ...

    cannot_see = sees


def train(
    *callbacks: Any, accumulate: int | None = None, validate: bool = False, **compiled: Any
) -> dict[str, Any]:
    keras.utils.set_random_seed(7)
    model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(8), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.05, gradient_accumulation_steps=accumulate), "mse", **compiled)
    data = Slow()
    history = model.fit(
        data, epochs=2, verbose=0, callbacks=[*callbacks], validation_data=data if validate else None
    )
    return {"loss": history.history["loss"], "weights": [each.tolist() for each in model.get_weights()]}


def main(folder: Path) -> None:
    def callback(case: str) -> RankwatchCallback:
        options = {"directory": folder / case, "collectives": False, "flight_recorder": False}
        return RankwatchCallback(run=case, every=2, **options)

    plain = train()
    means, saving = Means(), keras.callbacks.ModelCheckpoint(str(folder / "saved.keras"))
    fit = train(callback("fit"), means, saving, validate=True)
    train(callback("accumulation"), accumulate=3)
    if keras.backend.backend() != "torch":
        train(callback("executions"), steps_per_execution=2)
    backup = str(folder / "backup")
    try:
        train(callback("failed"), keras.callbacks.BackupAndRestore(backup), Failing())
    except RuntimeError:
        train(callback("resumed"), keras.callbacks.BackupAndRestore(backup))
    with rankwatch.start(directory=folder / "own_run", collectives=False, flight_recorder=False) as run:
        train(RankwatchCallback())
        run.scalar("mine", 1.0)
    broken: Any = Broken()
    unrecorded = train(RankwatchCallback(run=broken))
    shown = [means.means[each] for each in sorted(means.means)]
    print(json.dumps({"plain": plain, "fit": fit, "unrecorded": unrecorded, "means": shown}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
