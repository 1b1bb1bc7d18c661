"""torchtitan: its own structured logger says when steps, waits for batches and evaluations begin and end.

    TITAN_STRUCT_LOGGER_HANDLERS=rankwatch.integrations.torchtitan.register torchrun ... -m torchtitan.train

Below `rankwatch run` the variable is set in each rank where the user has not set it. torchtitan writes its
default JSON lines only without the variable, so `register` has them written too. Phases, loss, gradient norm
and checkpoints come from PyTorch, as in any other loop.
"""

from __future__ import annotations

import importlib
import logging
import os
import threading
from typing import Any

from rankwatch.automatic import installing, reporting
from rankwatch.automatic.patching import guarded
from rankwatch.automatic.reporting import ReportedTraining
from rankwatch.automatic.values import values
from rankwatch.conventions import environment
from rankwatch.conventions.vocabulary import TOKENS
from rankwatch.integrations.frameworks import begin_reporting, evaluation_began, evaluation_ended

_FACTORY = "rankwatch.integrations.torchtitan.register"
"""Value that the variable holds, alone or among others, separated by commas."""
_JSON_LINES = "torchtitan.observability.structured_logger.jsonl_handler"
_NAME = "torchtitan"


def register(
    *, structured_logger: logging.Logger, rank: int, source: str, output_dir: str, **others: Any
) -> None:
    """Register the handlers: torchtitan calls this once in each process."""
    factories = os.environ.get(environment.TORCHTITAN_HANDLERS, "").split(",")
    if not {each.strip() for each in factories} - {"", _FACTORY}:
        write_lines = importlib.import_module(_JSON_LINES).register_jsonl_handler
        place = {"rank": rank, "source": source, "output_dir": output_dir}
        write_lines(structured_logger=structured_logger, **place, **others)
    installing.install()
    structured_logger.addHandler(_Handler())


def patch(module: object) -> None:
    """Patch torchtitan once its structured logger is imported. Not earlier: torchtitan imports what the
    variable names, and would end in a process that has no rankwatch."""
    if not os.environ.get(environment.TORCHTITAN_HANDLERS, "").strip():
        os.environ[environment.TORCHTITAN_HANDLERS] = _FACTORY


class _Handler(logging.Handler):
    """Turns the logger's records into the steps of the run. Takes no lock: it runs in the training thread."""

    def __init__(self) -> None:
        super().__init__(level=logging.INFO)
        self._thread = threading.get_ident()
        self._events = _Events()
        self._follow = guarded("follow torchtitan", self._events.follow)

    def createLock(self) -> None:  # noqa: N802 - named by logging
        self.lock = None

    def handle(self, record: logging.LogRecord) -> bool:
        """Follow a record of the logger."""
        name = getattr(record, "log_type_name", None)
        if isinstance(name, str) and threading.get_ident() == self._thread:
            self._follow(name, record)
        return True


class _Events:
    """The steps of the training, from the records of its structured logger."""

    def __init__(self) -> None:
        self._reported: ReportedTraining | None = None
        self._number: int | None = None
        """Number of the step that begins with its first batch; None once it has begun."""
        self._first = True
        self._no_batch = False

    def follow(self, name: str, record: logging.LogRecord) -> None:
        """Follow a record. A span has `..._start` and `..._end`, and before it `..._error` if it raises."""
        if name == "step_start":
            self._step_begins(record)
        elif self._reported is None:
            return
        elif name == "fetching_batch_start":
            self._no_batch = False
            reporting.fetch_began()
        elif name == "fetching_batch_error":
            self._no_batch = True
        elif name == "fetching_batch_end":
            self._fetched(self._reported)
        elif name == "metric_value":
            if getattr(record, "event_name", "") == "local_valid_tokens":
                self._reported.work(**{TOKENS: float(getattr(record, "value", 0))})
        else:
            self._step_ends(self._reported, name)

    def _step_begins(self, record: logging.LogRecord) -> None:
        if self._reported is None:
            self._reported = begin_reporting(_NAME)
            values.finds_loss = True  # no record holds it
        step = getattr(record, "step", None)
        self._number = step if isinstance(step, int) else None
        if self._reported is not None and self._first and self._number is not None:
            self._first = False
            if self._number > 1:
                self._reported.run.resumed(self._number - 1)

    def _fetched(self, reported: ReportedTraining) -> None:
        reporting.fetch_ended()
        if self._no_batch:  # the data has ended: torchtitan gives this step up
            reported.forget_waits()
            reported.end_step(failed=True)
        elif self._number is not None:
            reported.begin_step(self._number)
            self._number = None

    def _step_ends(self, reported: ReportedTraining, name: str) -> None:
        if name in ("checkpoint_save_start", "step_end"):  # the first one comes after every step
            reported.end_step()
        elif name == "step_error":
            reported.end_step(failed=True)
        elif name == "eval_start":
            reported.end_step()
            evaluation_began()
        elif name == "eval_end":
            evaluation_ended()
        elif name == "torch_distributed_teardown_start":
            reported.release()
            self._reported = None
