"""Loops that do what an ordinary loop does not. The arguments name the functions to run, each in a child of
its own with the name as that of its run. A single one runs in this process."""

from __future__ import annotations

import copy
import gc
import importlib
import io
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

STEPS = 6


def train(
    model: nn.Module | None = None,
    *,
    loader_options: dict[str, Any] | None = None,
    update: Callable[[torch.optim.Optimizer], object] = lambda optimizer: optimizer.step(),
    epochs: int = 2,
) -> nn.Module:
    """Print the loss of each step as its bits."""
    torch.manual_seed(0)
    model = model or nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = TensorDataset(torch.randn(12, 4), torch.randn(12, 1))
    loader = DataLoader(data, batch_size=4, **(loader_options or {}))
    for _ in range(epochs):
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(inputs), targets)
            loss.backward()
            update(optimizer)
            print(loss.item().hex(), flush=True)
    return model


def ends_in_order() -> None:
    train()


def _first_step() -> None:
    model = nn.Linear(4, 1)
    model(torch.ones(2, 4)).sum().backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()


def ends_by_os_exit() -> None:
    _first_step()
    os._exit(5)


def ends_by_builtin_exit() -> None:
    train()
    exit(4)


def ends_by_exception() -> None:
    train()
    raise RuntimeError("the disk is full")


def ends_by_sys_exit() -> None:
    train()
    sys.exit(3)


def ends_by_sigterm() -> None:
    _first_step()
    os.kill(os.getpid(), signal.SIGTERM)


def ends_by_own_sigterm_handler() -> None:
    def leave(*_: object) -> None:
        print("leaving", flush=True)
        sys.exit(7)

    signal.signal(signal.SIGTERM, leave)
    train()
    os.kill(os.getpid(), signal.SIGTERM)


def ends_by_sigint() -> None:
    train()
    signal.raise_signal(signal.SIGINT)  # os.kill may take effect after the script has ended


def never_steps() -> None:
    model = nn.Linear(4, 1).eval()
    with torch.no_grad():
        for (inputs,) in DataLoader(TensorDataset(torch.ones(12, 4)), batch_size=4):
            print(tuple(model(inputs).shape), flush=True)


def steps_in_a_thread() -> None:
    def update(optimizer: torch.optim.Optimizer) -> None:
        thread = threading.Thread(target=optimizer.step)
        thread.start()
        thread.join()

    train(update=update)


def trains_in_a_thread() -> None:
    thread = threading.Thread(target=train)
    thread.start()
    thread.join()


def two_threads() -> None:
    """Two models trained at once; the losses are printed at the end, because their order is by chance."""
    found: dict[int, list[str]] = {}

    def work(number: int) -> None:
        model = nn.Linear(4, 1)
        nn.init.constant_(model.weight, 0.1 * number)
        nn.init.zeros_(model.bias)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(STEPS):
            optimizer.zero_grad()
            loss = model(torch.ones(2, 4)).square().mean()
            loss.backward()
            optimizer.step()
            found.setdefault(number, []).append(loss.item().hex())

    threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    print(sorted(found.items()))


def fork_loader() -> None:
    train(loader_options={"num_workers": 2, "multiprocessing_context": "fork"})


def forkserver_loader() -> None:
    options = {"num_workers": 1, "multiprocessing_context": "forkserver", "persistent_workers": True}
    train(loader_options=options)


def persistent_loader() -> None:
    train(loader_options={"num_workers": 2, "persistent_workers": True})


def _count_graphs(function: Callable[[], object]) -> None:
    from torch._dynamo.utils import counters

    function()
    # Not the reasons of graph breaks: the optimizer has one of its own, and our hook comes before it.
    print(sorted(counters["stats"].items()), dict(counters["recompiles"]))


def compiled_model() -> None:
    torch.manual_seed(1)
    model = torch.compile(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1)), backend="aot_eager")
    _count_graphs(lambda: train(model))


def compiled_update() -> None:
    update: Any = torch.compile(lambda optimizer: optimizer.step(), backend="eager")
    _count_graphs(lambda: train(update=update))


def compiled_whole_step() -> None:
    torch.manual_seed(1)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    @torch.compile(backend="eager")
    def step(inputs: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(inputs).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    _count_graphs(lambda: [print(step(torch.ones(2, 4) * number).item().hex()) for number in range(STEPS)])


def pickled_objects() -> None:
    """Nothing that the script pickles may need rankwatch."""
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters())
    scaler = torch.amp.GradScaler("cpu")
    train(model)
    loss = model(torch.ones(2, 4)).sum()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    whole = io.BytesIO()
    torch.save(model, whole)
    loader = DataLoader(TensorDataset(torch.ones(12, 4)), batch_size=4)
    texts = [whole.getvalue()]
    for each in (model, optimizer, loader, torch.optim.lr_scheduler.StepLR(optimizer, 1), scaler):
        texts.append(pickle.dumps(each))
    copied = copy.deepcopy(model)
    print(["rankwatch" in repr(vars(each)) for each in (copied, *copied.modules(), optimizer, scaler)])
    print([b"rankwatch" in text for text in texts], len(texts))


def patched_by_others() -> None:
    """Another library has put its own functions in front of the same places, and calls the originals."""
    calls: list[str] = []

    def wrap(owner: Any, name: str) -> None:
        original = getattr(owner, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            calls.append(name)
            return original(*args, **kwargs)

        setattr(owner, name, call)

    wrap(torch.Tensor, "backward")
    wrap(torch, "save")
    wrap(torch.utils.data.dataloader._BaseDataLoaderIter, "__next__")
    wrap(torch.nn.utils, "clip_grad_norm_")
    wrap(torch.amp.GradScaler, "update")
    torch.save(train().state_dict(), io.BytesIO())
    print(len(calls), sorted(set(calls)))


def replaced_by_others() -> None:
    """Another library has replaced the same functions, and calls no original."""

    def backward(self: torch.Tensor, *args: Any, **kwargs: Any) -> None:
        torch.autograd.Variable._execution_engine.run_backward(
            (self,), (torch.ones_like(self),), False, False, (), allow_unreachable=True, accumulate_grad=True
        )

    def following(self: Any) -> Any:
        return self._next_data()

    iterator: Any = torch.utils.data.dataloader._BaseDataLoaderIter
    backward_before, following_before = torch.Tensor.backward, iterator.__next__
    torch.Tensor.backward, iterator.__next__ = backward, following  # type: ignore[assignment]
    train(epochs=8)
    torch.Tensor.backward, iterator.__next__ = backward_before, following_before  # type: ignore[method-assign]


def custom_loader() -> None:
    """Batches come from a generator, not from a DataLoader."""
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def batches() -> Iterator[torch.Tensor]:
        for number in range(STEPS):
            yield torch.full((2, 4), float(number))

    for inputs in batches():
        optimizer.zero_grad()
        loss = model(inputs).square().mean()
        loss.backward()
        optimizer.step()


def closure() -> None:
    model = nn.Linear(4, 1)
    nn.init.constant_(model.weight, 0.3)
    nn.init.zeros_(model.bias)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)

    def evaluate() -> torch.Tensor:
        optimizer.zero_grad()
        loss = (model(torch.ones(2, 4)) - 1).square().mean()
        loss.backward()
        return loss

    for _ in range(STEPS):
        print(float(optimizer.step(evaluate)).hex())


def strange_losses() -> None:
    """Backward on what is no loss: several tensors, a vector with a gradient, a nested backward."""
    model = nn.Linear(4, 2)
    nn.init.constant_(model.weight, 0.3)
    nn.init.zeros_(model.bias)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for number in range(STEPS):
        optimizer.zero_grad()
        output = model(torch.ones(3, 4))
        if number % 2:
            torch.autograd.backward([output[0].sum(), output[1].sum()])
        else:
            output.backward(torch.ones_like(output))
        optimizer.step()
        print(model.weight.sum().item().hex())


def failing_user_code() -> None:
    """Exceptions of the script's own code pass as they are, and training goes on after them."""
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for name, action in (
        ("backward", lambda: torch.ones(1).backward()),
        ("forward", lambda: model(torch.ones(2, 3))),
        ("save", lambda: torch.save(lambda: None, "/nonexistent/x.pt")),
        ("fetch", lambda: next(iter(DataLoader([1, None])))),
        ("step", lambda: optimizer.step(lambda: 1 / 0)),
    ):
        try:
            action()
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the same without rankwatch
            frames = []
            trace = error.__traceback__
            while trace:
                frames.append(trace.tb_frame.f_code.co_name)
                trace = trace.tb_next
            print(name, type(error).__name__, str(error).splitlines()[0][:60], frames[0])
    train(model)


def starts_rankwatch_itself() -> None:
    import rankwatch

    with rankwatch.start() as run:
        torch.manual_seed(0)
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(STEPS):
            with run.step():
                loss = model(torch.ones(2, 4)).square().mean()
                loss.backward()
                optimizer.step()
            print(loss.item().hex())


def python_helper() -> None:
    """A rank starts a Python program that uses torch as well."""
    code = (
        "import torch; m = torch.nn.Linear(2, 1); o = torch.optim.SGD(m.parameters(), lr=.1)\n"
        "m(torch.ones(1, 2)).sum().backward(); o.step(); print('helped')"
    )
    train()
    command = ["bash", "-c", f'"{sys.executable}" -c "{code}"']
    print(subprocess.run(command, capture_output=True, text=True, check=True).stdout, end="")


def _choose(cases: list[str]) -> list[str]:
    """In a child its case; in this process nothing, once the children have ended."""
    if len(cases) == 1:
        return cases
    importlib.import_module("torch._dynamo")  # once for all children
    gc.freeze()  # else each child takes a second at its end to visit, and so to copy, all that it shares
    for case in cases:
        print(case, flush=True)
        child = os.fork()
        if not child:
            os.environ["RANKWATCH_RUN"] = case
            return [case]
        print("status", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
    return []


if __name__ == "__main__":
    for chosen in _choose(sys.argv[1:]):
        torch.manual_seed(0)
        globals()[chosen]()
