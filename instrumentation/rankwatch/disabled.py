"""The run object of a process that is not recorded. It has the methods of `Run`, without effect."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from types import TracebackType
from typing import TypeVar

from rankwatch.conventions.vocabulary import Capability, Unseen
from rankwatch.identity import Identity
from rankwatch.spans import Batches, NullSpan

T = TypeVar("T")
_NULL = NullSpan()


class DisabledStage(NullSpan):
    """A stage that is not recorded."""

    __slots__ = ()

    def begin(self) -> DisabledStage:
        """Do nothing."""
        return self

    def end(self, *, failed: bool = False) -> None:
        """Do nothing."""


class DisabledOperation(AbstractContextManager["DisabledOperation"]):
    """A checkpoint operation that is not recorded."""

    def __init__(self, name: str = "", *_: object, step: int | None = None, **__: object) -> None:
        self.name = name
        self.step = -1 if step is None else step
        self.bytes = 0
        self.path: object = None

    def stage(self, name: str) -> DisabledStage:
        """Do nothing, like all methods here."""
        return DisabledStage()

    def begin(self) -> DisabledOperation:
        return self

    def end(self, *, failed: bool = False) -> None: ...

    def unblock(self) -> None: ...

    def failed(self, reason: str) -> None: ...

    def record_stage(self, name: str, began: float, *, failed: bool) -> None: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class DisabledRun:
    """Accepts every call of `Run` and records nothing."""

    identity = Identity(run="disabled")
    current_step = -1
    steps_completed = 0
    unused = True

    def step(self, number: int | None = None) -> NullSpan:
        """Do nothing, like all methods here."""
        return _NULL

    def phase(self, name: str) -> NullSpan:
        return _NULL

    def begin_step(self, number: int | None = None) -> None: ...

    def end_step(self) -> None: ...

    def begin_phase(self, name: str) -> None: ...

    def end_phase(self, name: str) -> None: ...

    def target(self, steps: int) -> None: ...

    def batches(self, loader: Iterable[T]) -> Batches[T]:
        return Batches(loader, _NULL)

    def evaluation(self) -> NullSpan:
        return _NULL

    def scalar(self, name: str, value: object) -> None: ...

    def work(self, /, **amounts: float) -> None: ...

    def count_flops(self, *, tokens: float) -> NullSpan:
        return _NULL

    def checkpoint(
        self, operation: str, *, step: int | None = None, path: object = None
    ) -> DisabledOperation:
        return DisabledOperation(operation, step=step)

    def fingerprint(self, *models: object) -> None: ...

    def sees(self, capability: Capability) -> None: ...

    def cannot_see(self, capability: Capability, why: Unseen) -> None: ...

    def resumed(self, step: int) -> None: ...

    def preempted(self) -> None: ...

    def finish(self) -> None: ...

    def fail(self, error: BaseException | type[BaseException]) -> None: ...

    def show_phase(self, name: str, began: float) -> None: ...

    def record_phase(self, name: str, began: float, ended: float) -> None: ...

    def when_ended(self, close: Callable[[], object]) -> None: ...

    def when_ending(self, conclude: Callable[..., None]) -> None: ...

    def after_steps(self, resolve: Callable[[], None]) -> None: ...

    def __enter__(self) -> DisabledRun:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
