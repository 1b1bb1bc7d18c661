"""A black box for tests of collectives, and a process group of one rank."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rankwatch.blackbox.records import GroupNow
from rankwatch.blackbox.writer import Writer
from rankwatch.failures import Failures
from rankwatch.identity import Identity
from support.training.blackbox import now


class Recording:
    """A black box, its writer and its counter of failures."""

    def __init__(self, directory: Path) -> None:
        self.writer = Writer(directory, Identity(run="r"), phases=())
        self.failures = Failures(self.writer)

    @property
    def errors(self) -> int:
        """Number of failures inside rankwatch so far."""
        return now(self.writer.path).errors

    @property
    def groups(self) -> tuple[GroupNow, ...]:
        """The tables of the black box."""
        return now(self.writer.path).groups


@contextmanager
def gloo() -> Iterator[Any]:
    """The default group of a job of one rank."""
    import torch.distributed as dist

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield dist.group.WORLD
    finally:
        dist.destroy_process_group()
