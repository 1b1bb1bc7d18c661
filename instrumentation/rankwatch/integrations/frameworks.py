"""What the integrations share: how they find their framework, report, and record checkpoints and steps."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from importlib.util import find_spec
from typing import Any

from rankwatch.automatic import loop, recording, reporting
from rankwatch.automatic.checkpoints import Part, checkpoints
from rankwatch.automatic.patching import watch
from rankwatch.automatic.reporting import ReportedTraining
from rankwatch.conventions.vocabulary import Capability
from rankwatch.disabled import DisabledRun
from rankwatch.run import Run


def require(package: str, *, integration: str, name: str) -> None:
    """Raise ImportError, in one sentence, if the package of a framework is not installed. Imports nothing."""
    if find_spec(package) is None:
        raise ImportError(
            f"rankwatch.integrations.{integration} needs {name}, and {package} is not installed here",
            name=package,
        )


def class_when_used(module: str, name: str, own: type, bases: Callable[[], Iterable[type]]) -> Any:
    """Return `__getattr__` of a module with a class of this name, which inherits from a framework's classes.

    It is made when somebody asks for it: the import of an integration imports no framework.
    """

    @functools.cache
    def found(asked: str) -> type:
        if asked != name:
            raise AttributeError(f"module {module!r} has no attribute {asked!r}")
        return type(name, (own, *bases()), {"__module__": module, "__doc__": own.__doc__})

    return found


def begin_reporting(name: str, *, added: bool = False) -> ReportedTraining | None:
    """Let a framework report, see `rankwatch.automatic.reporting.begin`. added: the script itself has added
    the callback, so the run that the script has started is meant as well."""
    if added and recording.join_script():
        loop.current.cache_clear()  # what it has seen belongs to no run
    return reporting.begin(name, loop.current().stop_inferring)


def evaluation_began(*_: Any, **__: Any) -> None:
    """Begin an evaluation of the framework. For `watch`, and for hooks of any arguments."""
    reporting.evaluation_began(loop.current().stop_inferring)


def evaluation_ended(*_: Any, **__: Any) -> None:
    """End the evaluation."""
    reporting.evaluation_ended()


def watch_checkpoint(
    owner: type,
    name: str,
    operation: str,
    path: Callable[..., object],
    *,
    shows: Capability | Sequence[Capability] = (),
) -> None:
    """Record a method that saves or loads as one checkpoint, whatever files it has.

    path: returns file or folder of the checkpoint, for the result of the method and its arguments.
    """

    def began(*args: Any, **kwargs: Any) -> tuple[Part, Callable[[object], object]]:
        return checkpoints.begin(operation), lambda result: path(result, *args, **kwargs)

    def ended(token: Any, result: object, error: BaseException | None) -> None:
        if token is not None:
            part, path_for = token
            try:
                part.lies_at(path_for(result))
            finally:
                checkpoint_ended(part, result, error)

    watch(owner, name, began=began, ended=ended, shows=shows)


def checkpoint_ended(part: Part | None, result: object, error: BaseException | None) -> None:
    """Note, for `watch`, that the call that is this part of a checkpoint has ended. None: it is none."""
    if part is not None:
        checkpoints.end(part, error=error)


class StepsByStart:
    """Steps of a framework that only enqueues the work of a step: each lasts until the next one begins.

    The call that runs a step returns long before the device is done, so its own time says nothing. The device
    holds back the host after some steps, and then the time from start to start is that of the device.
    """

    def __init__(self, run: Run | DisabledRun) -> None:
        self._run = run
        self._open = False
        if isinstance(run, Run):
            run.after_steps(self._at_end)

    def begin(self, number: int | None = None) -> None:
        """End the step before, and begin this one."""
        self.end()
        self._open = True
        self._run.begin_step(number)

    def end(self) -> None:
        """End the open step, if there is one: what follows lies between steps."""
        if self._open:
            self._open = False
            self._run.end_step()

    def _at_end(self) -> None:
        # Called after each step, when none is open, and at the end of the run, when the last one still is.
        self.end()
