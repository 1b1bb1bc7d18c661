"""Ids of traces and spans: hashes of what they stand for.

So every node, every rank and every log line gives a step the same id, without asking anybody. Numbers, as
OpenTelemetry's SDK takes them; `trace_text` and `span_text` write them as W3C trace context does.
"""

from __future__ import annotations

from hashlib import blake2b

_TRACE_BYTES, _SPAN_BYTES = 16, 8
_LENGTH_BYTES = 4


def run_trace(cluster: str, run: str) -> int:
    """The trace of a run, with all of its attempts."""
    return _number(_TRACE_BYTES, "run", cluster, run)


def step_trace(cluster: str, run: str, attempt: int, step: int, repeat: int = 0) -> int:
    """The trace of one step, on all ranks. A step that a later attempt repeats has another one.

    repeat: how often the numbers have begun again within the attempt, as in a loop that counts the steps of
        each epoch from 0.
    """
    return _number(_TRACE_BYTES, "step", cluster, run, attempt, step, *((repeat,) if repeat else ()))


def span(trace: int, *what: str | int) -> int:
    """A span of a trace. what: tells it from the others of its trace."""
    return _number(_SPAN_BYTES, trace, *what)


def rank_step_span(trace: int, rank: int) -> int:
    """The span of a step on one rank; trace: that of the step."""
    return span(trace, "rank", rank)


def trace_text(trace: int) -> str:
    """32 hexadecimal digits."""
    return f"{trace:032x}"


def span_text(span_id: int) -> str:
    """16 hexadecimal digits."""
    return f"{span_id:016x}"


def _number(size: int, *fields: str | int) -> int:
    """A hash of the fields, never 0, which stands for no id. Each field is preceded by its length, so that no
    two lists of fields are hashed alike."""
    digest = blake2b(digest_size=size, person=b"rankwatch")
    for each in fields:
        raw = str(each).encode("utf-8", "surrogatepass")
        digest.update(len(raw).to_bytes(_LENGTH_BYTES, "little") + raw)
    return int.from_bytes(digest.digest(), "big") or 1
