"""The identity of a rank: run id, rank, world size, local rank and host; and the ids of its traces.

Ids of traces and spans are hashes of what they stand for. So every node, every rank and every log line gives
a step the same id, without asking anybody. They are numbers, as OpenTelemetry's SDK takes them; `trace_text`
and `span_text` write them as W3C trace context does.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from rankwatch.errors import IdentityError

MOST_ATTEMPTS = 1_000_000
_RUN_BYTES = 100
_RUN_CLASS_BYTES = 32
_HASH_CHARACTERS = 8
_CONTACT = re.compile(
    r"(?=.{2,64}\Z)(?:#[a-z0-9][a-z0-9._-]*|[A-Za-z0-9][A-Za-z0-9._+-]*@[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)+)",
    re.ASCII,
)
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
_NO_TRACE, _NO_SPAN = "0" * 32, "0" * 16
_UNSAFE = re.compile(r"[^A-Za-z0-9._=@:+-]")
_TRACE_BYTES, _SPAN_BYTES = 16, 8
_LENGTH_BYTES = 4


class Identity(NamedTuple):
    """One rank of one run."""

    run: str
    """Run id, the same on all ranks. A safe directory name of at most 128 bytes."""
    rank: int = 0
    """Global rank, 0 <= rank < world_size."""
    world_size: int = 1
    local_rank: int = 0
    """Rank within the node; usually the index of the GPU."""
    host: str = ""
    short_name: str = ""
    """Name by which people call the run: that of its script or of its job. Not unique."""
    attempt: int = 0
    """Number of the start of the job, from 0; see `rankwatch.launchers`."""
    most_attempts: int = 0
    """How many there may be, as the launcher says; 0 if it does not."""
    coordinates: Mapping[str, tuple[int, int]] = {}
    """Position in each parallel dimension: name -> (index, size), e.g. {"dp": (3, 8), "pp": (0, 2)}."""

    def checked(self) -> Identity:
        """Return it. Raises IdentityError if its values contradict each other."""
        if self.world_size < 1 or not 0 <= self.rank < self.world_size:
            raise IdentityError(f"rank {self.rank} does not fit a world of {self.world_size}")
        if self.local_rank < 0:
            raise IdentityError(f"local rank {self.local_rank} is negative")
        if self.attempt < 0:
            raise IdentityError(f"attempt {self.attempt} is negative")
        if self.most_attempts < 0:
            raise IdentityError(f"number of attempts {self.most_attempts} is negative")
        for name, (index, size) in self.coordinates.items():
            if not 0 <= index < size:
                raise IdentityError(f"coordinate {name}: index {index} does not fit size {size}")
        return self


def safe_run(run: str) -> str:
    """Return the run id as one path component that is printable everywhere.

    An id that has to be changed or cut ends with a hash of the whole, so that two runs stay two.
    """
    name = _UNSAFE.sub("_", run).lstrip("._-")
    if not name:
        raise IdentityError(f"run id {run[:_RUN_BYTES]!r} has no usable character")
    if name == run and len(name) <= _RUN_BYTES:
        return name
    from hashlib import sha256  # loads OpenSSL, for names that few runs have

    digest = sha256(run.encode("utf-8", "surrogatepass")).hexdigest()[:_HASH_CHARACTERS]
    return f"{name[: _RUN_BYTES - _HASH_CHARACTERS - 1]}-{digest}"


def in_tenant(run: str, tenant: str) -> str:
    """Return what a trainer of a tenant calls its run: its name begins with the tenant's."""
    return run if not tenant or run.startswith(f"{tenant}.") else f"{tenant}.{run}"


def as_run_class(text: str) -> str:
    """Return the class of a run as a label value of at most 32 characters."""
    return _UNSAFE.sub("_", text)[:_RUN_CLASS_BYTES]


def as_contact(text: str) -> str:
    """Return a channel or one mail address of at most 64 characters; empty if the text is neither."""
    return text if _CONTACT.fullmatch(text) else ""


def as_traceparent(text: str) -> str:
    """Return the text if it is a traceparent of W3C trace context, else nothing."""
    if _TRACEPARENT.fullmatch(text) is None:
        return ""
    version, trace, span, _ = text.split("-")
    return "" if version == "ff" or trace == _NO_TRACE or span == _NO_SPAN else text


def run_trace(cluster: str, run: str) -> int:
    """Return the trace of a run, with all of its attempts."""
    return _number(_TRACE_BYTES, "run", cluster, run)


def step_trace(cluster: str, run: str, attempt: int, step: int, repeat: int = 0) -> int:
    """Return the trace of one step, on all ranks. A step that a later attempt repeats has another one.

    repeat: how often the numbers have begun again within the attempt, as in a loop that counts the steps of
        each epoch from 0.
    """
    return _number(_TRACE_BYTES, "step", cluster, run, attempt, step, *((repeat,) if repeat else ()))


def span(trace: int, *what: str | int) -> int:
    """Return a span of a trace. what: tells it from the others of its trace."""
    return _number(_SPAN_BYTES, trace, *what)


def rank_step_span(trace: int, rank: int) -> int:
    """Return the span of a step on one rank; trace: that of the step."""
    return span(trace, "rank", rank)


def trace_text(trace: int) -> str:
    """Return a trace as 32 hexadecimal digits."""
    return f"{trace:032x}"


def span_text(span_id: int) -> str:
    """Return a span as 16 hexadecimal digits."""
    return f"{span_id:016x}"


def _number(size: int, *fields: str | int) -> int:
    """Return a hash of the fields, never 0, which stands for no id. Each field is preceded by its length, so
    that no two lists of fields are hashed alike."""
    from hashlib import blake2b

    digest = blake2b(digest_size=size, person=b"rankwatch")
    for each in fields:
        raw = str(each).encode("utf-8", "surrogatepass")
        digest.update(len(raw).to_bytes(_LENGTH_BYTES, "little") + raw)
    return int.from_bytes(digest.digest(), "big") or 1
