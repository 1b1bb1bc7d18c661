"""What comes after an incident: dumps of the watchdog of PyTorch, and traces of slow steps."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from rankwatch import profiling
from rankwatch.conventions.states import EvidenceFault, RankState
from rankwatch_agent.incidents.bundle import Bundle, BundleFolder
from rankwatch_agent.incidents.dumps import MAX_DUMPS, DumpWatcher, ProfileWatcher, add_profiles
from rankwatch_agent.incidents.episodes import Incident, RootCause
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
        self.incident = incident([condition(0), condition(1)])
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
    watched.dump("nccl_trace_rank_0", when=SINCE - 1.0)
    for name in ("nccl_trace_rank_2", "notes.txt", "with space 1"):
        watched.dump(name)
    (watched.directory / "link_1").symlink_to("/etc/hostname")
    os.mkfifo(watched.directory / "fifo_1")
    assert [watched.look() for _ in range(3)] == [[], [], []]
    assert watched.found() == {}


def test_dump_over_the_limit(tmp_path: Path) -> None:
    """The bundle stays within its limit, and the dump counts as one fault."""
    watched = Watched(tmp_path, free_bytes=1000)
    for name in ("trace_0", "trace_1"):
        watched.dump(name, "x" * 999)
    assert [watched.look() for _ in range(3)] == [[], [EvidenceFault.SIZE], []]
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


class Profiled:
    """A run `job` of ranks 0 to 2 with an incident, of which rank 2 is lost, and its bundle."""

    def __init__(self, folder: Path, named: Sequence[int], free_bytes: int = 1000) -> None:
        self.base, self.bundle = folder / "boxes", folder / "bundle"
        self.boxes = [self.base / "job" / f"{rank}.blackbox" for rank in range(3)]
        self.boxes[0].parent.mkdir(parents=True)
        self.bundle.mkdir()
        self.clock = ManualClock()
        ranks = [condition(rank)._replace(path=box) for rank, box in enumerate(self.boxes)]
        ranks[2] = ranks[2]._replace(state=RankState.LOST)
        self.incident = incident(ranks)
        self.watcher = ProfileWatcher(monotonic=self.clock)
        self.trace(0, 7, "an old one")
        causes = [RootCause(rank, "hang", "forward") for rank in named]
        self.asked = self.watcher.ask(self.incident, causes, self.bundle, free_bytes)

    def trace(self, rank: int, step: int, content: str) -> Path:
        """A trace that the rank writes."""
        path = self.boxes[rank].with_suffix(profiling.SUFFIX) / f"rank{rank}_step{step}.json.gz"
        path.parent.mkdir(exist_ok=True)
        path.write_text(content)
        return path

    def requests(self) -> list[str]:
        return sorted(each.name for each in self.base.glob(".*"))

    def look(self, seconds: float = 11.0) -> list[EvidenceFault]:
        self.clock.now += seconds
        return list(self.watcher.collect().elements())

    def found(self) -> dict[str, str]:
        return {each.name: each.read_text() for each in (self.bundle / "profiles").glob("*")}


def test_named_ranks_are_asked(tmp_path: Path) -> None:
    """Ranks that the evidence names are asked if they live; others are left alone."""
    profiled = Profiled(tmp_path, named=[1, 2])
    assert profiled.requests() == [profiling.request_path(Path(), "job", 1, os.geteuid()).name]


def test_new_traces_are_added(tmp_path: Path) -> None:
    """What the rank writes within half an hour comes into the bundle, once; what was there does not."""
    profiled = Profiled(tmp_path, named=[0])
    assert (profiled.look(), profiled.found()) == ([], {})
    profiled.trace(0, 120, "slow")
    profiled.trace(1, 120, "of another rank")
    for _ in range(2):
        assert (profiled.look(), profiled.found()) == ([], {"rank0_step120.json.gz": "slow"})
    profiled.look(1800.0)
    profiled.trace(0, 500, "late")
    assert (profiled.look(), len(profiled.found())) == ([], 1)


def test_nobody_is_named(tmp_path: Path) -> None:
    """Without a root cause nobody is asked."""
    profiled = Profiled(tmp_path, named=[])
    assert (profiled.requests(), profiled.look()) == ([], [])


def test_hostile_traces(tmp_path: Path) -> None:
    """Links, FIFOs and traces that do not fit are faults; a link in the place of their folder holds none."""
    profiled = Profiled(tmp_path, named=[0, 1])
    first, second = (each.with_suffix(profiling.SUFFIX) for each in profiled.boxes[:2])
    (first / "rank0_a.json.gz").symlink_to("/etc/hostname")
    os.mkfifo(first / "rank0_b.json.gz")
    profiled.trace(0, 130, "x" * 2000)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "rank1_step1.json.gz").write_text("of somebody else")
    second.symlink_to(tmp_path / "elsewhere")
    assert sorted(profiled.look()) == [EvidenceFault.PROFILE] * 2 + [EvidenceFault.SIZE]
    assert profiled.found() == {}


def test_no_request_for_a_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mounted read-only, say: that is counted, and the evidence is kept all the same."""

    def refused(*_: object) -> Path:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(profiling, "request", refused)
    assert [*Profiled(tmp_path, named=[0]).asked.elements()] == [EvidenceFault.PROFILE]


def test_names_that_are_no_text(tmp_path: Path) -> None:
    """They are left out: the manifest of the bundle could not be written with them, and no other one then.
    A bundle takes the traces that somebody has asked for before."""
    profiled = Profiled(tmp_path, named=[0])
    profiled.trace(0, 120, "slow")
    folder = os.fsencode(profiled.boxes[0].with_suffix(profiling.SUFFIX))
    for name in (b"rank0_step\xff.json.gz", b"rank0_step\x1b.json.gz"):
        Path(os.fsdecode(folder + b"/" + name)).write_text("forged")
    assert (profiled.look(), profiled.found()) == ([], {"rank0_step120.json.gz": "slow"})
    bundle = Bundle(profiled.incident, BundleFolder(tmp_path / "other", max_bytes=1 << 20))
    bundle.folder.path.mkdir()
    add_profiles(bundle)
    kept = {each.path: (tmp_path / "other" / each.path).read_text() for each in bundle.folder.files}
    assert kept == {
        "profiles/rank0_step120.json.gz": "slow",
        "profiles/rank0_step7.json.gz": "an old one",
    }
