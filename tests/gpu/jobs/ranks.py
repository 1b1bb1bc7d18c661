"""The jobs of the acceptance: `ranks.py MODE OPTIONS` is one rank of a small training, on a GPU or on a CPU.

Rank and world come from torchrun's variables. Several ranks may share one GPU, so compute is emulated: on a
GPU `torch.cuda._sleep` for a number of cycles, on a CPU `time.sleep`. Each rank writes what it knows itself
to `OUT/MODE.RANK.json`, and the flight recorder's own forms beside it.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import rankwatch

RANK, WORLD = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
CYCLES_PER_MS = int(float(os.environ.get("ACCEPTANCE_CYCLES") or 1.7e6))
LAYERS, WIDTH, ROWS = 4, 256, 32
FORWARD_MS, BACKWARD_MS = 15.0, 30.0
"""Emulated compute of one layer."""

parser = argparse.ArgumentParser()
parser.add_argument("mode")
parser.add_argument("--device", default="cuda")
parser.add_argument("--backend", default="")
parser.add_argument("--slow-rank", type=int, default=-1)
parser.add_argument("--slow", type=float, default=1.0)
parser.add_argument("--seconds", type=float, default=8.0)
parser.add_argument("--kind", default="")
parser.add_argument("--out", type=Path, default=Path())
given = parser.parse_args()
ON_GPU = given.device == "cuda"
FACTOR = given.slow if given.slow_rank == RANK else 1.0
OWN: list[Callable[[], float]] = []
"""Milliseconds that each piece of emulated compute really took: contexts that share a GPU stretch it."""


def timed(enqueue: Callable[[], object]) -> Callable[[], float]:
    """Returns what tells the milliseconds that it took, on a GPU once that is done."""
    if ON_GPU:
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        enqueue()
        last.record()
        return lambda: float(first.elapsed_time(last))
    began = time.perf_counter()
    enqueue()
    took = (time.perf_counter() - began) * 1e3
    return lambda: took


def work(milliseconds: float) -> None:
    """Emulated compute, longer on the slow rank, timed by itself."""
    longer = milliseconds * FACTOR
    if ON_GPU:
        OWN.append(timed(lambda: torch.cuda._sleep(int(longer * CYCLES_PER_MS))))
    else:
        OWN.append(timed(lambda: time.sleep(longer / 1e3)))


def synchronize() -> None:
    if ON_GPU:
        torch.cuda.synchronize()


class Busy(torch.autograd.Function):
    """Takes time forward and backward, and changes nothing."""

    @staticmethod
    def forward(_: Any, values: torch.Tensor) -> torch.Tensor:
        work(FORWARD_MS)
        return values.clone()

    @staticmethod
    def backward(_: Any, gradient: torch.Tensor) -> torch.Tensor:
        work(BACKWARD_MS)
        return gradient


class Layer(nn.Module):
    """Two products with the emulated compute between them."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return values + self.down(Busy.apply(torch.relu(self.up(values))))


def batch() -> torch.Tensor:
    return torch.randn(ROWS, WIDTH, device=given.device)


def connect(seconds: float = 90.0) -> None:
    """Join the default group."""
    if ON_GPU:
        torch.cuda.set_device(0)
    dist.init_process_group(
        given.backend or ("nccl" if ON_GPU else "gloo"), timeout=timedelta(seconds=seconds)
    )


def report(**found: Any) -> None:
    """Keep what the rank knows, for the part that started it."""
    kept = given.out / f"{given.mode}.{RANK}.json"
    kept.with_suffix(".new").write_text(json.dumps({"rank": RANK, **found}))
    kept.with_suffix(".new").replace(kept)


def keep_recorder() -> None:
    """PyTorch's flight recorder as pickle and as JSON, for fixtures."""
    import torch._C._distributed_c10d as c10d

    for name in ("nccl", "fr") if ON_GPU else ("fr",):
        for suffix in ("", "_json"):
            dump = getattr(c10d, f"_dump_{name}_trace{suffix}", None)
            with suppress(RuntimeError, TypeError):
                kept = dump()
                data = kept if isinstance(kept, bytes) else str(kept).encode()
                (given.out / f"recorder_{name}{suffix}_rank_{RANK}").write_bytes(data)


def train(run: Any, step: Callable[[], None], *, seconds: float | None = None) -> None:
    """Three steps that are not recorded, then as many as fit into the time, the same on all ranks."""
    for _ in range(3):
        began = time.monotonic()
        step()
        synchronize()
    wanted = given.seconds if seconds is None else seconds
    steps = torch.tensor(max(12.0, min(300.0, wanted / (time.monotonic() - began))), device=given.device)
    dist.all_reduce(steps, op=dist.ReduceOp.MIN)
    count, began = int(steps), time.monotonic()
    OWN.clear()
    for _ in range(count):
        with run.step():
            step()
    synchronize()
    took = (time.monotonic() - began) / count * 1e3
    report(steps=count, step_ms=took, own_ms=sum(each() for each in OWN) / count, factor=FACTOR)


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=1e-3, foreach=False)


def small_ddp() -> nn.Module:
    return nn.parallel.DistributedDataParallel(nn.Sequential(Layer(), Layer()).to(given.device))


def phased(run: Any, model: nn.Module) -> Callable[[], None]:
    """A step in its usual three phases. The loss is read, as most loops do now and then."""
    optimizer = sgd(model)

    def step() -> None:
        with run.phase("forward"):
            loss = model(batch()).square().mean()
        with run.phase("backward"):
            loss.backward()
        with run.phase("optimizer"):
            optimizer.step()
            optimizer.zero_grad()
        run.scalar("loss", loss)

    return step


def ddp(wrap: Callable[[nn.Module], nn.Module] | None = None) -> None:
    """DDP with a bucket for each layer, or another wrapper."""
    run = rankwatch.start()
    connect()
    model: nn.Module = nn.Sequential(*(Layer() for _ in range(LAYERS))).to(given.device)
    model = nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.5) if wrap is None else wrap(model)
    with run:
        train(run, phased(run, model))
        keep_recorder()


def fsdp() -> None:
    """FSDP2, each layer a unit of its own."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    def wrap(model: Any) -> Any:
        mesh = init_device_mesh(given.device, (WORLD,))
        for layer in model:
            fully_shard(layer, mesh=mesh)
        return fully_shard(model, mesh=mesh)

    ddp(wrap)


def tensor() -> None:
    """Tensor parallel: an all-reduce in each forward and each backward of a layer."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    def wrap(model: Any) -> Any:
        mesh = init_device_mesh(given.device, (WORLD,))
        for layer in model:
            parallelize_module(layer, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
        return model

    torch.manual_seed(0)
    ddp(wrap)


def pipeline() -> None:
    """A stage on each rank, 1F1B, four microbatches."""
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    run = rankwatch.start(coordinates={"pp": (RANK, WORLD)})
    connect()
    module = Layer().to(given.device)
    stage = PipelineStage(module, RANK, WORLD, torch.device(given.device))
    schedule = Schedule1F1B(stage, n_microbatches=4, loss_fn=lambda out, _: out.square().mean())
    optimizer = sgd(module)

    def step() -> None:
        with run.phase("forward"):  # and backward: the schedule mixes them
            if RANK == 0:
                schedule.step(batch())
            else:
                schedule.step(**({"target": batch()} if RANK == WORLD - 1 else {}))
        with run.phase("optimizer"):
            optimizer.step()
            optimizer.zero_grad()

    with run:
        train(run, step)
        keep_recorder()


def host() -> None:
    """Three runs in a row: the slow rank's host sleeps in a phase, between phases, in the loader."""
    for place in ("phase", "between", "loader"):
        run = rankwatch.start(run=f"host-{place}")
        if not dist.is_initialized():
            connect()
        values = torch.ones(WIDTH, WIDTH, device=given.device)

        def loader(wait: float) -> Iterator[None]:
            while True:
                time.sleep(wait)
                yield

        own = 0.08 if given.slow_rank == RANK else 0.0
        batches = iter(run.batches(loader(own if place == "loader" else 0.002)))

        def step(
            run: Any = run, place: str = place, batches: Any = batches, own: float = own, values: Any = values
        ) -> None:
            next(batches)
            time.sleep(own if place == "between" else 0.0)
            with run.phase("forward"):
                time.sleep(own if place == "phase" else 0.0)
                work(30.0)
            with run.phase("backward"):
                work(60.0)
                dist.all_reduce(values)
            synchronize()  # as a loop that reads its loss: the host does not run ahead

        with run:
            train(run, step, seconds=given.seconds / 3)


def sleeps() -> None:
    """How long emulated compute takes alone, and while all ranks do it; then all-reduces."""
    run = rankwatch.start()
    connect()
    store = dist.distributed_c10d._get_default_store()

    def meet(name: str) -> None:
        store.add(name, 1)
        while store.add(name, 0) < WORLD:
            time.sleep(0.005)

    def measure() -> float:
        began = time.perf_counter()
        for _ in range(5):
            work(50.0)
            synchronize()
        return (time.perf_counter() - began) / 5 * 1e3

    values = torch.ones(1 << 20, device=given.device)
    dist.all_reduce(values)
    synchronize()
    alone = 0.0
    for turn in range(WORLD):
        meet(f"turn{turn}")
        alone = measure() if turn == RANK else alone
    meet("together")
    together = measure()
    collective: list[float] = []

    def step() -> None:
        with run.phase("forward"):
            work(50.0)
        synchronize()
        began = time.perf_counter()
        with run.phase("communication"):
            dist.all_reduce(values)
        synchronize()
        collective.append((time.perf_counter() - began) * 1e3)

    with run:
        train(run, step)
        keep_recorder()
    known = json.loads((given.out / f"{given.mode}.{RANK}.json").read_text())
    median = sorted(collective)[len(collective) // 2]
    report(**{**known, "alone_ms": alone, "together_ms": together, "all_reduce_ms": median})


def ring() -> None:
    """Sends to the next rank and receives from the one before; then the slow rank sleeps."""
    run = rankwatch.start()
    connect(seconds=float(given.kind or 40))
    sent, received = (torch.ones(1 << 16, device=given.device) for _ in range(2))
    dist.all_reduce(sent)
    begins = time.monotonic()
    for number in itertools.count():
        with run.step():
            asleep = time.monotonic() - begins > given.seconds and given.slow_rank == RANK
            if asleep:
                report(asleep_at_step=number)
                time.sleep(600.0)
            with run.phase("forward"):
                work(20.0)
            with run.phase("communication"):
                operations = [
                    dist.P2POp(dist.isend, sent, (RANK + 1) % WORLD),
                    dist.P2POp(dist.irecv, received, (RANK - 1) % WORLD),
                ]
                for each in dist.batch_isend_irecv(operations):
                    each.wait()
            synchronize()


def desync() -> None:
    """After ten equal all-reduces the slow rank calls another size, or another operation."""
    run = rankwatch.start()
    connect()
    usual, larger = (torch.ones(size, device=given.device) for size in (1 << 20, 1 << 24))
    for number in range(11):
        with run.step(), run.phase("communication"):
            if number < 10 or given.slow_rank != RANK:
                dist.all_reduce(usual)
            elif given.kind == "size":
                dist.all_reduce(larger)
            else:
                dist.broadcast(usual, 0)
        report(steps=number + 1)
        synchronize()
    time.sleep(60.0)  # NCCL lets some ranks through


def _pieces() -> tuple[Any, Any, Any]:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1)).to(given.device)
    return model, torch.optim.SGD(model.parameters(), lr=0.1), torch.nn.MSELoss()


def graph() -> None:
    """The whole-network capture of PyTorch's notes on CUDA semantics, without a word of rankwatch."""
    model, optimizer, criterion = _pieces()
    inputs, targets = torch.randn(16, 64, device="cuda"), torch.randn(16, 1, device="cuda")
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for _ in range(3):
            optimizer.zero_grad(set_to_none=True)
            criterion(model(inputs), targets).backward()
            optimizer.step()
    torch.cuda.current_stream().wait_stream(aside)
    captured = torch.cuda.CUDAGraph()
    optimizer.zero_grad(set_to_none=True)
    with torch.cuda.graph(captured):
        loss = criterion(model(inputs), targets)
        loss.backward()
        optimizer.step()
    losses = []
    for _ in range(20):
        inputs.copy_(torch.randn(16, 64, device="cuda"))
        captured.replay()
        losses.append(float(loss))
    report(losses=losses)


def compiled() -> None:
    """`torch.compile(mode="reduce-overhead")`, which captures graphs itself."""
    model, optimizer, criterion = _pieces()
    fast = torch.compile(model, mode="reduce-overhead")
    losses = []
    for _ in range(12):
        inputs, targets = torch.randn(16, 64, device="cuda"), torch.randn(16, 1, device="cuda")
        loss = criterion(fast(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss))
    report(losses=losses)


def captures() -> None:
    """Many captures that contain an all-reduce, while others ask for the flight recorder."""
    run = rankwatch.start()
    connect()
    values = torch.ones(1 << 12, device="cuda")
    dist.all_reduce(values)
    synchronize()
    done, began = 0, time.monotonic()
    with run:
        while done < 200 and time.monotonic() - began < given.seconds:
            captured = torch.cuda.CUDAGraph()
            with run.step(), run.phase("forward"):
                with torch.cuda.graph(captured):
                    values.mul_(0.5)
                    dist.all_reduce(values)
                captured.replay()
            synchronize()
            done += 1
            again = torch.tensor(float(time.monotonic() - began < given.seconds), device="cuda")
            dist.all_reduce(again, op=dist.ReduceOp.MIN)
            if not bool(again):
                break
        keep_recorder()
    report(captures=done, finite=bool(torch.isfinite(values).all()))


def overhead() -> None:
    """Steps of 2 and 20 ms in blocks, in turn with another process; host time of a step and a collective."""
    turns = dist.TCPStore("127.0.0.1", int(given.kind), 2, RANK == 0, timeout=timedelta(seconds=60))
    mine, os.environ["RANK"], os.environ["WORLD_SIZE"] = RANK, "0", "1"
    os.environ["MASTER_PORT"] = os.environ[f"ACCEPTANCE_PORT_{mine}"]
    run = rankwatch.start(run=f"overhead-{mine}", rank=0, world_size=1)
    connect()
    values = torch.ones(1024, device=given.device)
    names = ("forward", "backward", "optimizer", "communication")

    def step(milliseconds: float) -> None:
        with run.step():
            for name in names * 2:
                with run.phase(name):
                    if milliseconds:
                        work(milliseconds / 8)
                    if milliseconds and name == "backward":
                        dist.all_reduce(values, async_op=True).wait()

    def block(milliseconds: float, steps: int) -> float:
        """Milliseconds of a step on the device's clock, or on that of the host where there is none."""
        synchronize()
        took = timed(lambda: [step(milliseconds) for _ in range(steps)])
        synchronize()
        return took() / steps

    def host_us(call: Callable[[], Any], times: int) -> float:
        synchronize()
        began = time.perf_counter()
        for _ in range(times):
            call()
        microseconds = (time.perf_counter() - began) / times * 1e6
        synchronize()
        return microseconds

    measures: dict[str, Callable[[], float]] = {
        "step_2_ms": lambda: block(2.0, 60),
        "step_20_ms": lambda: block(20.0, 12),
        "host_us_step": lambda: host_us(lambda: step(0.0), 300),
        "host_us_collective": lambda: host_us(lambda: dist.all_reduce(values, async_op=True), 300),
    }
    found: dict[str, list[float]] = {name: [] for name in measures}
    for number in range(-1, 5):  # the round before the first warms up
        turns.wait([f"turn{number}.{mine}"]) if (number, mine) != (-1, 0) else None
        for name, measure in measures.items():
            value = measure()
            if number >= 0:
                found[name].append(value)
        turns.set(f"turn{number}.1" if mine == 0 else f"turn{number + 1}.0", "")
    report(**{name: sorted(values)[len(values) // 2] for name, values in found.items()}, all=found)
    if mine == 0:
        turns.wait([f"turn{number + 1}.0"])  # it serves the store


def synchronous() -> None:
    """DDP steps while torch raises on a synchronising call."""
    run = rankwatch.start()
    connect()
    step = phased(run, small_ddp())
    error = ""
    with run:
        for number in range(8):
            if number == 3:
                torch.cuda.synchronize()
                torch.cuda.set_sync_debug_mode("error")
            try:
                with run.step():
                    step()
            except RuntimeError as raised:
                error = error or str(raised).splitlines()[0]
                traceback.print_exc()
        torch.cuda.set_sync_debug_mode("default")
    report(error=error)


def thread() -> None:
    """Memory of the GPU before and after an event is queried in a new thread, and the recorder is asked."""
    run = rankwatch.start()
    connect()
    values = torch.ones(1024, device="cuda")
    for _ in range(5):
        with run.step(), run.phase("backward"):
            dist.all_reduce(values)
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    torch.cuda.synchronize()

    def used() -> int:
        free, total = torch.cuda.mem_get_info(0)
        return int(total - free) >> 20

    before, answers = used(), []
    asking = threading.Thread(target=lambda: answers.append(event.query()))
    asking.start()
    asking.join()
    after_query = used()
    report(ready=True)
    release, began = given.out / "release", time.monotonic()
    while not release.exists() and time.monotonic() - began < 10:  # the part asks for the recorder
        time.sleep(0.05)
    report(before_mib=before, after_query_mib=after_query, after_pull_mib=used(), ready=True, answers=answers)


def memory() -> None:
    """Ten GiB for twelve seconds, then more than there is."""
    with rankwatch.start() as run:
        torch.cuda.set_device(0)
        held = torch.empty(10 << 30, dtype=torch.uint8, device="cuda")
        began = time.monotonic()
        while time.monotonic() - began < 12.0:
            with run.step(), run.phase("forward"):
                work(100.0)
                torch.cuda.synchronize()
        report(allocated=torch.cuda.memory_allocated(), held=held.numel())
        torch.empty(1 << 40, dtype=torch.uint8, device="cuda")


def profiled() -> None:
    """Traces of PyTorch's profiler, one of each rank, in OUT/traces."""
    from torch.profiler import ProfilerActivity, profile, schedule, tensorboard_trace_handler

    connect()
    model = small_ddp()
    optimizer = sgd(model)
    kinds = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if ON_GPU else [])]
    traces = tensorboard_trace_handler(str(given.out / "traces"), worker_name=f"rank{RANK}", use_gzip=True)
    plan = schedule(wait=1, warmup=2, active=8, repeat=1)
    with profile(activities=kinds, schedule=plan, on_trace_ready=traces, record_shapes=True) as profiler:
        for _ in range(12):
            model(batch()).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            profiler.step()
    report(steps=12)


def lightning() -> None:
    """Lightning's `fit`, without a word of rankwatch."""
    import lightning.pytorch as pl

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model, self.losses = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 1)), []

        def training_step(self, rows: Any, _: int) -> torch.Tensor:
            loss = self.model(rows[0]).square().mean()
            self.losses.append(loss.detach())
            return loss

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters(), lr=1e-3)

    pl.seed_everything(5)
    rows = torch.utils.data.TensorDataset(torch.randn(64 * 16, 64))
    module = Module()
    trainer = pl.Trainer(
        accelerator="gpu" if ON_GPU else "cpu", devices=1, max_steps=60, max_epochs=8, logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        default_root_dir=given.out,
    )  # fmt: skip
    trainer.fit(module, torch.utils.data.DataLoader(rows, batch_size=16))
    report(losses=[float(each) for each in module.losses])


def transformers() -> None:
    """The Trainer of Transformers on a model made from its configuration, without a word of rankwatch."""
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

    set_seed(5)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=128, n_positions=32, n_embd=64, n_layer=2, n_head=2))
    rows = [{"input_ids": ids, "labels": ids} for ids in torch.randint(0, 128, (256, 32))]
    options = TrainingArguments(
        output_dir=str(given.out / f"hf{os.getpid()}"), max_steps=40, per_device_train_batch_size=4,
        logging_steps=1, save_strategy="no", report_to=[], disable_tqdm=True, use_cpu=not ON_GPU,
    )  # fmt: skip
    trainer = Trainer(model=model, args=options, train_dataset=rows)
    trainer.train()
    report(losses=[each["loss"] for each in trainer.state.log_history if "loss" in each])


def calibrate() -> None:
    """Cycles of `torch.cuda._sleep` in a millisecond, once the clock has risen."""
    cycles, milliseconds = 100_000_000, 0.0
    for _ in range(12):
        took = timed(lambda: torch.cuda._sleep(cycles))
        torch.cuda.synchronize()
        milliseconds = took()
    report(cycles_per_ms=cycles / milliseconds)


MODES = (
    *(ddp, fsdp, tensor, pipeline, host, sleeps, ring, desync, graph, compiled, captures, overhead),
    *(synchronous, thread, memory, profiled, lightning, transformers, calibrate),
)

if __name__ == "__main__":
    began = time.monotonic()
    {each.__name__: each for each in MODES}[given.mode]()
    print(f"{given.mode}: rank {RANK} done in {time.monotonic() - began:.1f} s", file=sys.stderr, flush=True)
    if dist.is_initialized():
        dist.destroy_process_group()
