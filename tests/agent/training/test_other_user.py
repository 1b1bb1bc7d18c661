"""The agent is not the user who trains."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rankwatch_agent.training.collector import RanksCollector
from support.training.ranks import rank, values

NOBODY = 65534


@contextmanager
def as_nobody() -> Iterator[None]:
    """Another user for a while; only root can become one."""
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    """A directory that other users can reach; pytest's own is for its user alone."""
    opened = [path for path in (tmp_path, *tmp_path.parents) if path.owner() == "root" and path != Path("/")]
    modes = {path: path.stat().st_mode for path in opened}
    for path in opened:
        path.chmod(modes[path] | 0o011)
    shared = tmp_path / "boxes"
    shared.mkdir()
    shared.chmod(0o1777)
    yield shared
    for path, mode in modes.items():
        path.chmod(mode)


def test_strict_umask(directory: Path) -> None:
    """A trainer with a strict umask is still seen.

    A black box tells nothing secret, and the agent has a user of its own.
    """
    with rank(directory, "steps(1); ready()", before="os.umask(0o077)"), as_nobody():
        collected = RanksCollector(directory=directory).collect()
    assert values(collected, "rankwatch_blackboxes") == {(): 1}


@pytest.mark.parametrize("closed", ["job", "job/0.blackbox"])
def test_closed_run(directory: Path, closed: str) -> None:
    """A run that is closed to the agent is a fault and no silence.

    Else a node whose runs cannot be read looks like one without runs; once it is opened it is read.
    """
    collector = RanksCollector(directory=directory)
    with rank(directory, "steps(1); ready()"):
        mode = (directory / closed).stat().st_mode
        (directory / closed).chmod(0)
        with as_nobody():
            collected = collector.collect()
        assert values(collected, "rankwatch_blackboxes") == {(): 0}
        assert values(collected, "rankwatch_blackbox_read_errors_total") == {("unreadable",): 1}
        (directory / closed).chmod(mode)
        os.utime(directory / "job")
        with as_nobody():
            assert values(collector.collect(), "rankwatch_blackboxes") == {(): 1}
