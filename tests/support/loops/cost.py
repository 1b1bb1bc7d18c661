"""One training loop, run again and again in forked children of this process: bare, with explicit hooks, or
recorded without code. The children have the same libraries at the same addresses, so they are alike.

    python cost.py torch_loop --rounds 10 --steps 150 --pause-ms 0

Prints one line of JSON for each child: its way and its figures; see `Child`.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from itertools import cycle, pairwise
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import parts
import torch
from parts import BLOCK, VOCABULARY, Classifier, Vectors, slow, slow_collate, slow_updates
from recorded import recorded
from torch.utils.data import DataLoader

WAYS = ("bare", "explicit", "explicit again", "zero-code")
_BATCH = 16


class Child(NamedTuple):
    """What one child took, in nanoseconds, without the arithmetic of `Work`."""

    way: str
    cpu_ns: list[int]
    """CPU time of the training thread in each step after the first ones."""
    wall_ns: list[int]
    """Length of each of them."""
    once_ns: float
    """CPU time of the training thread until then, beyond that of as many steps."""
    others: float
    """CPU time of all other threads of the process, as a share of a core."""
    recorded: int
    """Steps in the black box."""


class Work:
    """Stands for what a large model or a remote file takes: sleeps, or multiplies matrices that leave little
    in the caches. The CPU time of the arithmetic itself is known, and left out."""

    def __init__(self, seconds: float, busy: bool) -> None:
        self._seconds = seconds
        self._matrices = [torch.ones(384, 384) for _ in range(12)] if busy and seconds else []
        self.cpu_ns = 0

    def __call__(self) -> None:
        if not self._seconds:
            return
        if not self._matrices:
            time.sleep(self._seconds)
            return
        began = time.thread_time_ns()
        until = began + self._seconds * 1e9
        out, *others = self._matrices
        for left, right in cycle(pairwise(others)):
            torch.mm(left, right, out=out)
            if time.thread_time_ns() >= until:
                break
        self.cpu_ns += time.thread_time_ns() - began


class Clocks(NamedTuple):
    """The clocks at one moment, in nanoseconds."""

    thread: int
    process: int
    wall: int


class Steps:
    """The clocks at the end of each step."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self.began = time.thread_time_ns()
        self.ends: list[Clocks] = []

    def ended(self) -> None:
        left_out = self._work.cpu_ns
        self.ends.append(
            Clocks(time.thread_time_ns() - left_out, time.process_time_ns() - left_out, time.monotonic_ns())
        )


class Hooks:
    """Explicit hooks, as a user writes them; without a run, nothing."""

    def __init__(self, run: Any) -> None:
        self.run = run

    def phase(self, name: str) -> AbstractContextManager[None]:
        return self.run.phase(name) if self.run else nullcontext()

    def batches(self, loader: Iterable[Any]) -> Iterable[Any]:
        return self.run.batches(loader) if self.run else loader

    def begin_step(self) -> None:
        if self.run:
            self.run.begin_step()

    def end_step(self, loss: Any) -> None:
        if self.run:
            self.run.scalar("loss", loss)
            self.run.end_step()


# -- the loops ------------------------------------------------------------------------------------


def torch_loop(hooks: Hooks, steps: Steps, count: int) -> None:
    """A loop with a gradient scaler and clipping."""
    model = Classifier()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    slow_updates(optimizer)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    loader = DataLoader(Vectors(_BATCH * count), batch_size=_BATCH, shuffle=True, collate_fn=slow_collate)
    for inputs, classes in hooks.batches(loader):
        hooks.begin_step()
        optimizer.zero_grad()
        with hooks.phase("forward"), torch.autocast("cpu", dtype=torch.float16):
            loss = torch.nn.functional.cross_entropy(model(inputs), classes)
        with hooks.phase("backward"):
            scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        with hooks.phase("optimizer"):
            scaler.step(optimizer)
        scaler.update()
        hooks.end_step(loss)
        steps.ended()


def hf_trainer(hooks: Hooks, steps: Steps, count: int) -> None:
    """Hugging Face's Trainer, without logs."""
    transformers: Any = importlib.import_module("transformers")
    losses: list[Any] = []

    class Model(transformers.GPT2LMHeadModel):  # type: ignore[misc]
        def forward(self, input_ids: Any = None, labels: Any = None, **kwargs: Any) -> Any:
            with hooks.phase("forward"):
                output = super().forward(input_ids=input_ids, labels=labels, **kwargs)
                # A view must not be changed in place, as the Trainer does.
                output.loss = slow(output.loss) * 1.0
            return output

    class Ends(transformers.TrainerCallback):  # type: ignore[misc]
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            hooks.begin_step()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            hooks.end_step(losses.pop())
            steps.ended()

    def backward(loss: torch.Tensor, **kwargs: Any) -> None:
        losses.append(loss)
        with hooks.phase("backward"):
            accelerated_backward(loss, **kwargs)

    def get_batch_samples(batches: Any, *args: Any) -> Any:
        return own_batch_samples(iter(hooks.batches(batches)), *args)

    size = {"n_positions": BLOCK, "n_embd": 16, "n_layer": 1, "n_head": 2}
    model = Model(transformers.GPT2Config(vocab_size=VOCABULARY, bos_token_id=0, eos_token_id=0, **size))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    slow_updates(optimizer)
    _watch_updates(hooks, optimizer)
    tokens = torch.randint(VOCABULARY, (4 * count, BLOCK))
    quiet = {"logging_strategy": "no", "save_strategy": "no", "report_to": "none", "disable_tqdm": True}
    arguments = transformers.TrainingArguments(
        output_dir=tempfile.gettempdir(),
        max_steps=count,
        per_device_train_batch_size=4,
        use_cpu=True,
        **quiet,
    )
    trainer = transformers.Trainer(
        model=model,
        args=arguments,
        data_collator=slow_collate,
        train_dataset=[{"input_ids": each, "labels": each} for each in tokens],
        optimizers=(optimizer, torch.optim.lr_scheduler.LinearLR(optimizer)),
        callbacks=[Ends()],
    )
    trainer.accelerator.backward, accelerated_backward = backward, trainer.accelerator.backward
    if hooks.run:
        own_batch_samples, trainer.get_batch_samples = trainer.get_batch_samples, get_batch_samples
    trainer.train()


def lightning_fit(hooks: Hooks, steps: Steps, count: int) -> None:
    """Lightning's `fit`, without a logger."""
    pl: Any = importlib.import_module("lightning.pytorch")

    class Module(pl.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = Classifier()
            self.loss: Any = None

        def training_step(self, batch: Any, index: int) -> torch.Tensor:
            inputs, classes = batch
            with hooks.phase("forward"):
                self.loss = torch.nn.functional.cross_entropy(self.model(inputs), classes)
            return self.loss  # type: ignore[no-any-return]

        def backward(self, loss: torch.Tensor, *args: Any, **kwargs: Any) -> None:
            with hooks.phase("backward"):
                super().backward(loss, *args, **kwargs)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            optimizer = torch.optim.AdamW(self.parameters(), lr=1e-3)
            slow_updates(optimizer)
            _watch_updates(hooks, optimizer)
            return optimizer

    class Ends(pl.Callback):  # type: ignore[misc]
        def on_train_batch_start(self, *_: Any) -> None:
            hooks.begin_step()

        def on_train_batch_end(self, trainer: Any, module: Any, *_: Any) -> None:
            hooks.end_step(module.loss)
            steps.ended()

    off = ("logger", "enable_progress_bar", "enable_model_summary", "enable_checkpointing")
    trainer = pl.Trainer(
        accelerator="cpu", devices=1, max_steps=count, callbacks=[Ends()], **dict.fromkeys(off, False)
    )
    data = Vectors(_BATCH * count)
    trainer.fit(Module(), hooks.batches(DataLoader(data, batch_size=_BATCH, collate_fn=slow_collate)))


def _watch_updates(hooks: Hooks, optimizer: torch.optim.Optimizer) -> None:
    if hooks.run:
        phase = hooks.phase("optimizer")
        optimizer.register_step_pre_hook(lambda *_: phase.__enter__())
        optimizer.register_step_post_hook(lambda *_: phase.__exit__(None, None, None))


_LOOPS: Mapping[str, Callable[[Hooks, Steps, int], None]] = {
    each.__name__: each for each in (torch_loop, hf_trainer, lightning_fit)
}


# -- children -------------------------------------------------------------------------------------


def _child(given: argparse.Namespace, way: str, boxes: Path) -> Child:
    """Runs in a forked child."""
    os.environ["RANKWATCH_DIR"] = str(boxes)
    work = parts.pause = Work(given.pause_ms / 4e3, given.busy)  # type: ignore[assignment]
    steps = Steps(work)
    run = None
    if way.startswith("explicit"):
        run = importlib.import_module("rankwatch").start()
    elif way == "zero-code":
        importlib.import_module("rankwatch.automatic.installing").install()
    torch.manual_seed(1)
    _LOOPS[given.loop](Hooks(run), steps, given.warmup + given.steps)
    if run is not None:
        run.finish()
    elif way == "zero-code":
        importlib.import_module("rankwatch.automatic.recording").opened().finish()
    return _figures(given, way, steps, boxes)


def _figures(given: argparse.Namespace, way: str, steps: Steps, boxes: Path) -> Child:
    ends = steps.ends[given.warmup - 1 :]
    cpu = [after.thread - before.thread for before, after in pairwise(ends)]
    wall = [after.wall - before.wall for before, after in pairwise(ends)]
    first, last = ends[0], ends[-1]
    once = first.thread - steps.began - given.warmup * median(cpu)
    others = last.process - first.process - (last.thread - first.thread)
    completed = sum(recorded(each).steps_completed for each in boxes.glob("*/*.blackbox"))
    return Child(way, cpu, wall, once, others / (last.wall - first.wall), completed)


def _in_child(call: Callable[[], Child]) -> Child:
    """Call it in a forked child. Raises RuntimeError if that fails."""
    receiving, sending = os.pipe()
    child = os.fork()
    if not child:
        status = 1
        try:
            os.close(receiving)
            with os.fdopen(sending, "w") as output:
                json.dump(call(), output)
            status = 0
        finally:
            sys.stderr.flush()
            os._exit(status)
    os.close(sending)
    with os.fdopen(receiving) as figures:
        text = figures.read()
    if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]):
        raise RuntimeError("a child failed")
    return Child(*json.loads(text))


def _main(words: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("loop", choices=_LOOPS)
    for name in ("--rounds", "--steps", "--warmup"):
        parser.add_argument(name, type=int, required=True)
    parser.add_argument("--pause-ms", type=float, default=0.0, help="what a step takes beside its own work")
    parser.add_argument("--busy", action="store_true", help="this is arithmetic, else sleep")
    given = parser.parse_args(words)
    _LOOPS[given.loop](Hooks(None), Steps(Work(0.0, busy=False)), 3)  # imports what it needs
    gc.collect()
    gc.freeze()
    for number in range(given.rounds):
        first = number % len(WAYS)  # no way always follows the same one
        for way in (*WAYS[first:], *WAYS[:first]):
            with tempfile.TemporaryDirectory() as name:
                found = _in_child(partial(_child, given, way, Path(name)))
            print(json.dumps(found._asdict()), flush=True)


if __name__ == "__main__":
    _main(sys.argv[1:])
