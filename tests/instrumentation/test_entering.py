"""Every context manager of a run, entered and left in every way that Python has. None may end a training."""

from __future__ import annotations

import asyncio
import os
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, AsyncExitStack, ExitStack, nullcontext, suppress
from functools import partial
from pathlib import Path

import pytest

import rankwatch
from rankwatch.blackbox.layout import RecordKind
from support.device.lone import LoneRank
from support.training.blackbox import box, of_kind

AnyRun = rankwatch.Run | rankwatch.DisabledRun
Manager = AbstractContextManager[object]

MANAGERS: dict[str, Callable[[AnyRun], Manager]] = {
    "phase": lambda run: run.phase("forward"),
    "data_wait": lambda run: run.phase("data_wait"),
    "step": lambda run: run.step(),
    "numbered_step": lambda run: run.step(7),
    "evaluation": lambda run: run.evaluation(),
    "checkpoint": lambda run: run.checkpoint("save"),
    "stage": lambda run: run.checkpoint("save").stage("write"),
    "count_flops": lambda run: run.count_flops(tokens=8),
    "run": lambda run: run,
}


class TrainingError(Exception):
    """What the training raises."""


Body = Callable[[], object]


def by_with(manager: Manager, body: Body) -> None:
    with manager:
        body()


def by_stack(manager: Manager, body: Body) -> None:
    with ExitStack() as stack:
        stack.enter_context(manager)
        body()


def by_push(manager: Manager, body: Body) -> None:
    with ExitStack() as stack:
        manager.__enter__()
        stack.push(manager)
        body()


def by_async_stack(manager: Manager, body: Body) -> None:
    async def main() -> None:
        async with AsyncExitStack() as stack:
            stack.enter_context(manager)
            await asyncio.sleep(0)
            body()

    asyncio.run(main())


def between_awaits(manager: Manager, body: Body) -> None:
    async def main() -> None:
        other = asyncio.create_task(asyncio.sleep(0))
        with manager:
            await other
            body()

    asyncio.run(main())


def leaving(manager: Manager, body: Body, kind: type | None = None) -> None:
    """Leave what may not have been entered, by its own method or by that of its type."""
    leave = partial(kind.__exit__, manager) if kind else manager.__exit__  # type: ignore[attr-defined]
    try:
        body()
    except BaseException as error:
        assert not leave(type(error), error, error.__traceback__)
        raise
    assert not leave(None, None, None)


def by_calls(manager: Manager, body: Body) -> None:
    manager.__enter__()
    leaving(manager, body)


def by_type(manager: Manager, body: Body) -> None:
    kind = type(manager)
    kind.__enter__(manager)
    leaving(manager, body, kind)


def in_a_thread(manager: Manager, body: Body) -> None:
    with ThreadPoolExecutor(1) as other:
        other.submit(by_with, manager, body).result()


def in_a_generator(manager: Manager, body: Body) -> None:
    def generate() -> Iterator[None]:
        with manager:
            yield
            raise AssertionError("it is closed half way")

    generator = generate()
    next(generator)
    generator.close()
    body()


def nested(manager: Manager, body: Body) -> None:
    with manager, manager:
        body()


def left_only(manager: Manager, body: Body) -> None:
    leaving(manager, body)


def left_twice(manager: Manager, body: Body) -> None:
    leaving(manager, lambda: by_with(manager, body))


Way = Callable[[Manager, Body], None]
WAYS: list[Way] = [
    by_with, by_stack, by_push, by_async_stack, between_awaits, by_calls, by_type, in_a_thread,
    in_a_generator,
]  # fmt: skip
WRONG_WAYS: list[Way] = [nested, left_only, left_twice]
"""Wrong use, which may raise UsageError until the first step has ended, but never in the place of another
exception."""


def first_step_over(run: AnyRun) -> AnyRun:
    with run.step():
        pass
    return run


def finished(run: AnyRun) -> AnyRun:
    run.finish()
    return run


RUNS: dict[str, Callable[[rankwatch.Run, Path], AnyRun]] = {
    "fresh": lambda run, _: run,
    "training": lambda run, _: first_step_over(run),
    "finished": lambda run, _: finished(run),
    "finished_after_steps": lambda run, _: finished(first_step_over(run)),
    "on_gpu": lambda _, directory: first_step_over(LoneRank(directory / "gpu").run),
    "disabled": lambda *_: rankwatch.DisabledRun(),
}


def try_all(run: AnyRun, name: str, way: Way, *, strict: bool) -> None:
    """Enter and leave the manager in this way, without an exception and with one."""
    if strict and way in WRONG_WAYS:
        with suppress(rankwatch.UsageError):
            way(MANAGERS[name](run), lambda: None)
    else:
        way(MANAGERS[name](run), lambda: None)
    boom = TrainingError()

    def body() -> None:
        raise boom

    with pytest.raises(
        (TrainingError, rankwatch.UsageError) if strict and way is nested else TrainingError
    ) as raised:
        way(MANAGERS[name](run), body)
    if not strict or way is not nested:
        assert raised.value is boom


@pytest.mark.parametrize("way", [*WAYS, *WRONG_WAYS])
@pytest.mark.parametrize("name", MANAGERS)
@pytest.mark.parametrize("state", RUNS)
def test_entered(state: str, name: str, way: Way, run: rankwatch.Run, tmp_path: Path) -> None:
    """Whatever the way and the state of the run, nothing is raised but the training's own exception."""
    if name == "count_flops":
        pytest.importorskip("torch")
    try_all(RUNS[state](run, tmp_path), name, way, strict=state == "fresh")


@pytest.mark.process
def test_entered_in_a_forked_child(run: rankwatch.Run) -> None:
    """A child that is forked inside an open phase leaves it, and enters all others."""
    with run.step(), run.phase("forward"):
        if not (child := os.fork()):
            status = 1
            try:
                for name in MANAGERS:
                    for way in (*WAYS, *WRONG_WAYS):
                        try_all(run, name, way, strict=False)
                status = 0
            except BaseException:  # noqa: BLE001 - the child ends here
                traceback.print_exc()
            finally:
                os._exit(status)
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize("way", [by_stack, by_push, by_async_stack, by_type])
def test_same_records(way: Way, run: rankwatch.Run, tmp_path: Path) -> None:
    """A phase that is entered through its type is recorded as by `with`."""
    with run.step():
        way(run.phase("forward"), lambda: None)
        way(run.evaluation(), lambda: None)
    assert [each.name for each in of_kind(box(tmp_path), RecordKind.PHASE)] == ["forward", "evaluation"]


def test_left_without_entering(run: rankwatch.Run, tmp_path: Path) -> None:
    """Nobody knows when it began, so no phase and no checkpoint of that length is recorded."""
    first_step_over(run)
    for name in ("phase", "evaluation", "checkpoint"):
        MANAGERS[name](run).__exit__(None, None, None)
    assert of_kind(box(tmp_path), RecordKind.PHASE) == []
    assert of_kind(box(tmp_path), RecordKind.CHECKPOINT) == []


def test_flops_inside_flops(run: rankwatch.Run) -> None:
    """The counter inside is the same one: torch's own counter is left once, and counts nothing afterwards."""
    torch = pytest.importorskip("torch")
    from torch.utils._python_dispatch import _get_current_dispatch_mode

    with run.count_flops(tokens=1) as counter, counter:  # type: ignore[attr-defined]
        torch.ones(2, 2) @ torch.ones(2, 2)
    assert _get_current_dispatch_mode() is None


def test_misuse_behind_an_exception(run: rankwatch.Run) -> None:
    """Wrong calls in a `finally` or an `except` do not take the place of the exception that led there."""
    boom = TrainingError()
    with pytest.raises(TrainingError) as raised:
        try:
            raise boom
        finally:
            run.end_step()
            run.end_phase("forward")
            with nullcontext(), run.phase("froward"):
                pass
    assert raised.value is boom
