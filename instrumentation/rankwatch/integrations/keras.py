"""Keras: a callback for `fit` that records steps, data wait, loss, evaluations, checkpoints and resumes.

    from rankwatch.integrations.keras import RankwatchCallback

    model.fit(dataset, callbacks=[RankwatchCallback()])

Keras calls `on_train_batch_end` in another thread if all callbacks allow it, so that the device never waits
for the host. This callback allows it. It takes the steps from the calls of `model.train_function`, which are
in the training thread.
"""

from __future__ import annotations

import functools
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import rankwatch
from rankwatch.automatic.patching import guarded, watch
from rankwatch.automatic.visibility import visibility
from rankwatch.conventions.vocabulary import DATA_WAIT, LOSS, Capability, Unseen
from rankwatch.integrations.frameworks import StepsByStart, require
from rankwatch.starting import run_of_script

require("keras", integration="keras", name="Keras")
import keras  # noqa: E402 - the class below inherits from it

_guarded = functools.partial(guarded, "follow Keras")
_MOST_UNREAD = 256
_PRECISE_BATCHES = 10_000
"""Keras keeps the mean of the epoch in single precision. Beyond this many batches the loss of a few of them
cannot be told from it, so the reading covers more."""


class RankwatchCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Records `fit`. It starts the run when training begins, and ends it with training.

    run: a run that is started already; it is not ended here. By default, and without options, that is the one
        that the script has started, if there is one. A text is the id of a run to start.
    every: batches after which the loss is read. Keras shows the mean since the epoch began; recorded is the
        mean of the batches since the reading before.
    options: those of `rankwatch.start`.
    """

    async_safe = True

    def __init__(self, *, run: rankwatch.Run | str | None = None, every: int = 10, **options: Any) -> None:
        super().__init__()
        if every < 1:
            raise rankwatch.UsageError(f"every is {every}, expected at least 1 batch")
        if isinstance(run, str):
            run, options = None, options | {"run": run}
        self._given = run
        self._options = options
        self._every = every
        self._run: rankwatch.Run | rankwatch.DisabledRun | None = None

    # Keras calls the methods below in the training thread, but for `on_train_batch_end`.

    def on_train_begin(self, logs: Any = None) -> None:
        """Start the run. The other callbacks may load a checkpoint yet, see `on_epoch_begin`."""
        found = None if self._options else run_of_script()
        self._joined = self._given or (None if found in _started else found)
        self._run = self._joined or _start(self._options)
        self._follow(self._run)

    @_guarded
    def _follow(self, run: rankwatch.Run | rankwatch.DisabledRun) -> None:
        # With JAX `self.model` copies the state of the training into the model, so it is asked only once.
        self._trained = model = self.model
        visibility.attach(run)
        if keras.backend.backend() == "tensorflow":  # the function draws its batches itself
            for each in (Capability.DATA_WAIT, Capability.WORK):
                visibility.cannot_see(each, Unseen.COMPILED)
        self._steps = StepsByStart(run)
        self._loss = _MeanLoss(model, self._every)
        self._evaluation: AbstractContextManager[None] | None = None
        self._first_epoch = True
        self._saving = False  # `save` of a model calls `save_weights` of its parts
        _active.append(self)
        _watch_keras()
        function = model.train_function
        if isinstance(function, _TimedFunction):  # the fit before ended in an exception
            function = function.original
        model.train_function = _TimedFunction(function, self._call)

    @_guarded
    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Begin an epoch; at the first one all callbacks have restored what they restore."""
        assert self._run is not None
        if self._first_epoch:
            self._first_epoch = False
            self._accumulated = 0
            self._accumulation = getattr(self._trained.optimizer, "gradient_accumulation_steps", None) or 1
            # With a strategy of TensorFlow each device has a copy of the number.
            self._done = int(keras.ops.convert_to_numpy(getattr(self._trained.optimizer, "iterations", 0)))
            if self._done > 0:
                self._run.resumed(self._done - 1)
        self._loss.begin_epoch()

    @_guarded
    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Keep what the logs say, and no more: called in a thread of Keras, maybe late."""
        if self._run is not None and logs:
            self._loss.keep(batch, logs)

    @_guarded
    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """End the last step of an epoch: what follows lies between steps."""
        self._between_steps()

    @_guarded
    def on_test_begin(self, logs: Any = None) -> None:
        """Begin an evaluation, in `fit` or alone."""
        if self._run is not None:
            self._between_steps()
            self._evaluation = self._run.evaluation()
            self._evaluation.__enter__()

    @_guarded
    def on_test_end(self, logs: Any = None) -> None:
        """End an evaluation."""
        evaluation, self._evaluation = self._evaluation, None
        if evaluation is not None:
            evaluation.__exit__(None, None, None)

    @_guarded
    def on_train_end(self, logs: Any = None) -> None:
        """End the training, and give Keras its function back."""
        self._between_steps()
        function = self._trained.train_function
        if isinstance(function, _TimedFunction):
            self._trained.train_function = function.original
        _active.remove(self)
        if self._joined is None and self._run is not None:
            self._run.finish()

    def _between_steps(self) -> None:
        self._steps.end()
        self._record_loss()

    def _record_loss(self) -> None:
        assert self._run is not None
        for value in self._loss.read():
            self._run.scalar(LOSS, value)

    def _call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Run one batch, or as many steps as the model runs in one execution."""
        self._before_call()
        if keras.backend.backend() == "jax":  # it draws the batches inside of the call
            *others, iterator = arguments
            arguments = (*others, self._counted(iterator) or iterator)
        result = function(*arguments)
        self._after_call()
        return result

    @_guarded
    def _before_call(self) -> None:
        if self._accumulated == 0:
            self._between_steps()
            executed = self._trained.steps_per_execution
            self._done += executed if self._accumulation == 1 else 1
            self._steps.begin(self._done - 1)
        self._accumulated = (self._accumulated + 1) % self._accumulation

    @_guarded
    def _counted(self, iterator: Iterator[Any]) -> Iterator[Any]:
        assert self._run is not None
        return _Counted(iter(self._run.batches(iterator)), self._run)

    @_guarded
    def _after_call(self) -> None:
        if self._accumulated == 0 and keras.backend.backend() == "torch":
            self._steps.end()  # the next batch is drawn before the next call


def _start(options: dict[str, Any]) -> rankwatch.Run | rankwatch.DisabledRun:
    if keras.backend.backend() == "jax":
        from rankwatch.integrations import jax

        run = jax.start(annotation=None, **options)
    else:
        run = rankwatch.start(**options)
    _started.add(run)
    return run


_started: weakref.WeakSet[Any] = weakref.WeakSet()
"""Runs that a callback has started. One whose training has raised goes on until the next run begins."""


class _TimedFunction:
    """The model's function for a batch, called through the callback."""

    def __init__(self, original: Callable[..., Any], call: Callable[..., Any]) -> None:
        self.original = original
        self._call = call

    def __call__(self, *arguments: Any) -> Any:
        return self._call(self.original, *arguments)


class _Counted(Iterator[Any]):
    """Counts the samples of each batch as work."""

    def __init__(self, batches: Iterator[Any], run: rankwatch.Run | rankwatch.DisabledRun) -> None:
        self._batches = batches
        self._run = run

    def __next__(self) -> Any:
        batch = next(self._batches)
        self._run.work(**(_samples(batch) or {}))
        return batch


@_guarded
def _samples(batch: Any) -> dict[str, int]:
    """Return the work of a batch, by the length of its first array."""
    while isinstance(batch, dict | list | tuple) and batch:
        batch = next(iter(batch.values() if isinstance(batch, dict) else batch))
    shape = getattr(batch, "shape", None)
    return {"samples": int(shape[0])} if shape else {}


class _MeanLoss:
    """The loss of the last batches, from the mean of the epoch that Keras shows."""

    def __init__(self, model: Any, every: int) -> None:
        self._every = every
        self._executed = model.steps_per_execution
        # A model of its own training step returns what it likes: then that is the loss.
        self._is_mean = type(model).train_step is keras.Model.train_step
        self._kept: deque[tuple[int, float]] = deque(maxlen=_MOST_UNREAD)
        self.begin_epoch()

    def begin_epoch(self) -> None:
        """Begin the mean anew."""
        self._kept.clear()
        self._read = (0, 0.0)

    def keep(self, batch: int, logs: dict[str, Any]) -> None:
        """Keep the loss of every n-th batch, in any thread. Keras has made it a number already."""
        count = batch + 1
        every = max(self._every, count // (_PRECISE_BATCHES // 10) if self._is_mean else 1)
        if count // every > (count - self._executed) // every and isinstance(logs.get(LOSS), float | int):
            self._kept.append((count, float(logs[LOSS])))

    def read(self) -> Iterator[float]:
        """Yield the losses that were kept since the last call."""
        while self._kept:
            count, value = self._kept.popleft()
            before, mean = self._read
            if not self._is_mean:
                yield value
            elif count > before:  # threads may keep them in another order
                self._read = (count, value)
                yield (value * count - mean * before) / (count - before)


_active: list[RankwatchCallback] = []
"""Callbacks whose training goes on."""


def _watch_keras() -> None:
    """Watch what a callback is not called for: checkpoints, and with PyTorch the wait for a batch."""
    for name, operation in _CHECKPOINTS.items():
        began = functools.partial(_began, operation)
        watch(keras.Model, name, began=began, ended=_ended, shows=Capability.CHECKPOINTS)
    if keras.backend.backend() == "torch":
        from keras.src.trainers.epoch_iterator import EpochIterator

        watch(EpochIterator, "__next__", began=_fetch_began, ended=_fetched, shows=Capability.DATA_WAIT)


def _fetch_began(_: Any) -> Any:
    """Begin the wait for a batch. None unless a model is being trained."""
    if not _active or _active[-1]._evaluation is not None or _active[-1]._run is None:
        return None
    run = _active[-1]._run
    wait = run.phase(DATA_WAIT)
    wait.__enter__()
    return run, wait


def _fetched(token: Any, result: Any, error: BaseException | None) -> None:
    if token is not None:
        run, wait = token
        wait.__exit__(None if error is None else type(error), error, None)
        if error is None:
            run.work(**(_samples(result[2]) or {}))


_CHECKPOINTS = {"save": "save", "save_weights": "save", "load_weights": "load"}
"""Method of a model -> operation."""


def _began(operation: str, model: Any, filepath: Any = None, *_: Any, **__: Any) -> Any:
    """Begin to write or read a checkpoint. None unless this model is being trained."""
    for callback in _active:
        if callback._trained is model and callback._run is not None and not callback._saving:
            callback._saving = True
            callback._between_steps()
            return callback, callback._run.checkpoint(operation, path=filepath).begin()
    return None


def _ended(token: Any, result: Any, error: BaseException | None) -> None:
    if token is not None:
        callback, operation = token
        callback._saving = False
        if error is None:
            operation.end()
        else:
            operation.__exit__(type(error), error, None)
