"""A bound on the memory that untrusted input may take."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def bounded_memory(most_bytes: int) -> Iterator[None]:
    """Inside, the address space of this process ends at `most_bytes`, and beyond it is a MemoryError.

    A bound that the process already has stays where it is lower. Linux does not wait for the machine to run
    out of memory then, and ends no other process.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    known = [each for each in (soft, hard) if each != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_AS, (min(most_bytes, *known) if known else most_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
