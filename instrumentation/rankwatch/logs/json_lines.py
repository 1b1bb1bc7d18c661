"""`logging` in JSON, one object a line, with the run's fields and those of OpenTelemetry's log records."""

from __future__ import annotations

import json
import logging
import math
import os
import threading
import time
import traceback
import weakref
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol, TextIO

from rankwatch.conventions import environment
from rankwatch.identity import Identity, rank_step_span, run_trace, span_text, step_trace, trace_text

_SEVERITIES = ((50, 21), (40, 17), (30, 13), (20, 9), (10, 5))
"""Least level of logging -> SeverityNumber of OpenTelemetry."""
_TRACE_SEVERITY = 1
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
"""Attributes that every record has; others come from `extra=`."""
_LONGEST_TEXT = 32_768
_MOST_ITEMS = 64
_DEEPEST = 4
_inside = threading.local()
_place: _Place | None = None
_cached: tuple[_Place | None, tuple[int, int], dict[str, Any]] = (None, (-1, 0), {})
"""The fields of a step: a loop may write many lines in one."""


class JsonFormatter(logging.Formatter):
    """Formats a record as one line of JSON.

    timestamp (RFC 3339, UTC), severity_text, severity_number, body, logger; run, attempt, rank, node, step,
    trace_id and span_id as `rankwatch.logs.fields` has them; and attributes, named as OpenTelemetry names
    them: place in the code, thread, exception, and what `extra=` adds.

    Raises nothing: what cannot be formatted is described.
    """

    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "timestamp": _timestamp(record.created),
            "severity_text": record.levelname,
            "severity_number": severity_number(record.levelno),
            "body": message_of(record)[:_LONGEST_TEXT],
            "logger": record.name,
            **fields(),
            "attributes": _attributes(record),
        }
        return json.dumps(entry, allow_nan=False)


class JsonHandler(logging.StreamHandler[TextIO]):
    """Writes such lines to a stream, by default standard error.

    A stream that cannot be written is not the training's problem: the line is lost and counted. A stream
    that logs what is written to it gets no line from inside that.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        super().__init__(stream)
        self.lost = 0
        """Lines that could not be written."""
        self.setFormatter(JsonFormatter())

    def emit(self, record: logging.LogRecord) -> None:
        """Write the record."""
        if getattr(_inside, "writing", False):
            self.lost += 1
            return
        _inside.writing = True
        try:
            super().emit(record)
        except RecursionError:  # StreamHandler lets it pass
            self.lost += 1
        finally:
            _inside.writing = False

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - the name in logging
        """Count the line, instead of the traceback that logging prints."""
        self.lost += 1


def severity_number(level: int) -> int:
    """Return OpenTelemetry's number of a level of logging."""
    for least, number in _SEVERITIES:
        if level >= least:
            return number
    return _TRACE_SEVERITY


def message_of(record: logging.LogRecord) -> str:
    """Return the message; where its arguments do not fit, both as they are."""
    try:
        return str(record.getMessage())
    except Exception:  # noqa: BLE001 - the code of any argument
        return f"{_text(record.msg)} {_text(record.args)}"


def _timestamp(seconds: float) -> str:
    whole, microseconds = divmod(round(seconds * 1e6), 1_000_000)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(whole))}.{microseconds:06d}Z"


def _attributes(record: logging.LogRecord) -> dict[str, Any]:
    found: dict[str, Any] = {
        "code.file.path": record.pathname,
        "code.line.number": record.lineno,
        "code.function.name": record.funcName,
        "thread.name": record.threadName,
    }
    if record.exc_info and record.exc_info[0] is not None:
        kind, error, _ = record.exc_info
        found["exception.type"] = f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")
        found["exception.message"] = _text(error)
        found["exception.stacktrace"] = stack_of(record)
    elif record.exc_text:
        found["exception.stacktrace"] = record.exc_text
    if record.stack_info:
        found["code.stacktrace"] = record.stack_info
    extra = {name: value for name, value in vars(record).items() if name not in _STANDARD}
    for name, value in list(extra.items())[:_MOST_ITEMS]:
        found.setdefault(name, _plain(value, _DEEPEST))
    return found


def stack_of(record: logging.LogRecord) -> str:
    """Return the traceback of a record's exception, its end if it is long; empty where there is none."""
    if record.exc_text or not record.exc_info:
        return record.exc_text or ""
    try:
        text = "".join(traceback.format_exception(*record.exc_info))
    except Exception:  # noqa: BLE001 - the code of any exception
        return "the traceback cannot be formatted"
    return text[-_LONGEST_TEXT:].rstrip("\n")


def _plain(value: object, depth: int) -> Any:
    """Return the value as JSON has it, bounded; its type where its own code fails."""
    try:
        return _as_json(value, depth)
    except Exception:  # noqa: BLE001 - the code of any object
        return f"<{type(value).__name__}>"


def _as_json(value: object, depth: int) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if type(value) is int and abs(value) < 1 << 63:
        return value
    if type(value) is float:
        return value if math.isfinite(value) else str(value)  # JSON has no such numbers
    if type(value) is str:
        return value[:_LONGEST_TEXT]
    if depth and isinstance(value, Mapping):
        items = list(value.items())[:_MOST_ITEMS]
        return {_text(key): _plain(each, depth - 1) for key, each in items}
    if depth and isinstance(value, list | tuple | set | frozenset):
        return [_plain(each, depth - 1) for each in list(value)[:_MOST_ITEMS]]
    return _text(value)


def _text(value: object) -> str:
    """Return the text of any object. That of a tensor on a device would wait for the device."""
    if is_on_device(value):
        return f"<tensor on {getattr(value, 'device', 'a device')}>"
    try:
        return str(value)[:_LONGEST_TEXT]
    except Exception:  # noqa: BLE001 - the code of any object
        return f"<{type(value).__name__}>"


def is_on_device(value: object) -> bool:
    """Return True for a tensor that is not in the memory of the host."""
    return getattr(type(value), "is_cpu", None) is not None and not getattr(value, "is_cpu", True)


class _Steps(Protocol):
    current: int
    """Number of the open step, else of the last one; -1 before the first."""
    repeats: int
    """How often the numbers have begun again."""


class _Place(NamedTuple):
    """The run that this process records."""

    identity: Identity
    steps: weakref.ref[_Steps]
    """Dead once the run is gone."""
    cluster: str


def follow(identity: Identity, steps: _Steps) -> None:
    """Have log lines name this run from now on."""
    global _place
    _place = _Place(identity, weakref.ref(steps), os.environ.get(environment.CLUSTER, ""))


def fields() -> dict[str, Any]:
    """Return the fields of a log line written now; empty while the rank of this process is not known.

    run, attempt, rank, node: text, number, number, text.
    step: the open one, else the last one; none before the first.
    trace_id, span_id: of the rank's step, in hexadecimal; before the first step only the trace of the run.

    Takes no lock and raises nothing.
    """
    global _cached
    place = _place
    if place is None:
        return {}
    steps = place.steps()
    step = (-1, 0) if steps is None else (steps.current, steps.repeats)
    of_place, of_step, found = _cached
    if of_place is not place or of_step != step:
        found = _fields(place, *step)
        _cached = (place, step, found)
    return dict(found)


def current_step() -> int:
    """Return the number of the open step, else of the last; -1 before the first, and once the run is gone."""
    steps = None if _place is None else _place.steps()
    return -1 if steps is None else steps.current


def _fields(place: _Place, step: int, repeat: int) -> dict[str, Any]:
    identity, cluster = place.identity, place.cluster
    attempt = identity.attempt
    found: dict[str, Any] = {
        "run": identity.run,
        "attempt": attempt,
        "rank": identity.rank,
        "node": identity.host,
    }
    if step < 0:
        return found | {"trace_id": trace_text(run_trace(cluster, identity.run))}
    trace = step_trace(cluster, identity.run, attempt, step, repeat)
    span = span_text(rank_step_span(trace, identity.rank))
    return found | {"step": step, "trace_id": trace_text(trace), "span_id": span}
