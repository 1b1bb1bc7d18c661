"""The identity of a rank: run id, rank, world size, local rank and host."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from rankwatch.errors import IdentityError

_RUN_BYTES = 100
_RUN_CLASS_BYTES = 32
_HASH_CHARACTERS = 8
_CONTACT = re.compile(
    r"(?=.{2,64}\Z)(?:#[a-z0-9][a-z0-9._-]*|[A-Za-z0-9][A-Za-z0-9._+-]*@[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)+)",
    re.ASCII,
)
_UNSAFE = re.compile(r"[^A-Za-z0-9._=@:+-]")


@dataclass(frozen=True, kw_only=True)
class Identity:
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
    """What people call the run: the name of its script or of its job. Not unique."""
    attempt: int = 0
    """Number of the start of the job, from 0; see `rankwatch.attempts`."""
    most_attempts: int = 0
    """How many there may be, as the launcher says; 0 if it does not."""
    coordinates: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Position in each parallel dimension: name -> (index, size), e.g. {"dp": (3, 8), "pp": (0, 2)}."""

    def __post_init__(self) -> None:
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


def safe_run(run: str) -> str:
    """Return the run id as one path component that is printable everywhere.

    An id that has to be changed or cut ends with a hash of the whole, so that two runs stay two.
    """
    name = _UNSAFE.sub("_", run).lstrip("._-")
    if not name:
        raise IdentityError(f"run id {run[:_RUN_BYTES]!r} has no usable character")
    if name == run and len(name) <= _RUN_BYTES:
        return name
    digest = hashlib.sha256(run.encode("utf-8", "surrogatepass")).hexdigest()[:_HASH_CHARACTERS]
    return f"{name[: _RUN_BYTES - _HASH_CHARACTERS - 1]}-{digest}"


def as_run_class(text: str) -> str:
    """The class of a run as a label value of at most 32 characters."""
    return _UNSAFE.sub("_", text)[:_RUN_CLASS_BYTES]


def as_contact(text: str) -> str:
    """A channel or one mail address of at most 64 characters; empty if the text is neither."""
    return text if _CONTACT.fullmatch(text) else ""
