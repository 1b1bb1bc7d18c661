"""Dumps that PyTorch's watchdog writes minutes after the beginning of an incident."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rankwatch.conventions.states import EvidenceFault
from rankwatch_agent.incidents.dumps import MAX_DUMPS, DumpWatcher
from rankwatch_agent.incidents.episodes import Incident
from support.agent.process import ManualClock
from support.incidents.incidents import condition, incident

SINCE = 1e9 + 100.0
"""Unix time of the last progress of the incident's run."""


class Watched:
    """A directory of dumps and the bundle of an incident of ranks 0 and 1."""

    def __init__(self, folder: Path, free_bytes: int = 1000) -> None:
        self.directory, self.bundle = folder / "dumps", folder / "bundle"
        self.directory.mkdir()
        self.bundle.mkdir()
        self._clock = ManualClock()
        self.incident: Incident = incident([condition(0), condition(1)])
        self._added = DumpWatcher(self.directory, monotonic=self._clock)
        self._added.watch(self.incident, self.bundle, free_bytes)

    def dump(self, name: str, content: str = "dump", when: float = SINCE + 50.0) -> None:
        """A dump that is written at this time."""
        (self.directory / name).write_text(content)
        os.utime(self.directory / name, (when, when))

    def look(self, *incidents: Incident) -> list[EvidenceFault]:
        """Faults of the next look."""
        self._clock.now += 6.0
        return list(self._added.collect(incidents or [self.incident], 1e9).elements())

    def found(self) -> dict[str, str]:
        """The dumps of the bundle."""
        return {each.name: each.read_text() for each in (self.bundle / "dumps").glob("*")}


def test_dump_is_added_once_complete(tmp_path: Path) -> None:
    """A dump is added when two looks agree on it, and only once."""
    watched = Watched(tmp_path)
    watched.dump("nccl_trace_rank_0", "half")
    assert (watched.look(), watched.found()) == ([], {})
    watched.dump("nccl_trace_rank_0", "the whole")
    assert (watched.look(), watched.found()) == ([], {})
    for _ in range(3):
        assert (watched.look(), watched.found()) == ([], {"nccl_trace_rank_0": "the whole"})


def test_other_files_are_ignored(tmp_path: Path) -> None:
    """The directory is /tmp by default: dumps of other ranks or times and other files stay out."""
    watched = Watched(tmp_path)
    watched.dump("nccl_trace_rank_2")
    watched.dump("nccl_trace_rank_0", when=SINCE - 1.0)
    watched.dump("notes.txt")
    watched.dump("with space 1")
    (watched.directory / "link_1").symlink_to("/etc/hostname")
    os.mkfifo(watched.directory / "fifo_1")
    assert [watched.look() for _ in range(3)] == [[], [], []]
    assert watched.found() == {}


def test_dump_over_the_limit(tmp_path: Path) -> None:
    """The bundle stays within its limit, and the dump counts as one fault."""
    watched = Watched(tmp_path, free_bytes=1000)
    watched.dump("trace_0", "x" * 999)
    watched.dump("trace_1", "x" * 999)
    found = [watched.look() for _ in range(3)]
    assert found == [[], [EvidenceFault.SIZE], []]
    assert len(watched.found()) == 1


def test_number_of_dumps_is_bounded(tmp_path: Path) -> None:
    """A training process can write any number of them."""
    watched = Watched(tmp_path, free_bytes=1 << 20)
    for number in range(2 * MAX_DUMPS):
        watched.dump(f"t{number}_1")
    watched.look()
    watched.look()
    assert len(watched.found()) == MAX_DUMPS


def test_no_dumps_after_the_incident(tmp_path: Path) -> None:
    """Later dumps belong to the next incident."""
    watched = Watched(tmp_path)
    watched.look()
    watched.look(incident([condition(0)], number=2))
    watched.dump("trace_0")
    assert [watched.look() for _ in range(3)] == [[], [], []]
    assert watched.found() == {}


@pytest.mark.parametrize("kind", ["missing", "file"])
def test_unreadable_or_missing_directory(tmp_path: Path, kind: str) -> None:
    watched = Watched(tmp_path)
    watched.directory.rmdir()
    if kind == "file":
        watched.directory.touch()
    assert watched.look() == ([] if kind == "missing" else [EvidenceFault.DUMP])
