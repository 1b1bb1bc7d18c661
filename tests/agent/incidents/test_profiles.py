"""Traces of slow steps that ranks write after an incident has named them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from rankwatch import profiling
from rankwatch.conventions.states import EvidenceFault, RankState
from rankwatch_agent.incidents.bundle import Bundle, BundleFolder
from rankwatch_agent.incidents.dumps import ProfileWatcher, add_profiles
from rankwatch_agent.incidents.episodes import RootCause
from support.agent.process import ManualClock
from support.incidents.incidents import condition, incident


class Watched:
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
    watched = Watched(tmp_path, named=[1, 2])
    assert watched.requests() == [profiling.request_path(Path(), "job", 1, os.geteuid()).name]


def test_new_traces_are_added(tmp_path: Path) -> None:
    """What the rank writes within half an hour comes into the bundle, once; what was there does not."""
    watched = Watched(tmp_path, named=[0])
    assert (watched.look(), watched.found()) == ([], {})
    watched.trace(0, 120, "slow")
    watched.trace(1, 120, "of another rank")
    for _ in range(2):
        assert (watched.look(), watched.found()) == ([], {"rank0_step120.json.gz": "slow"})
    watched.look(1800.0)
    watched.trace(0, 500, "late")
    assert (watched.look(), len(watched.found())) == ([], 1)


def test_nobody_is_named(tmp_path: Path) -> None:
    """Without a root cause nobody is asked."""
    watched = Watched(tmp_path, named=[])
    assert (watched.requests(), watched.look()) == ([], [])


def test_hostile_traces(tmp_path: Path) -> None:
    """Links, FIFOs and traces that do not fit are faults; a link in the place of their folder holds none."""
    watched = Watched(tmp_path, named=[0, 1])
    (watched.boxes[0].with_suffix(profiling.SUFFIX) / "rank0_a.json.gz").symlink_to("/etc/hostname")
    os.mkfifo(watched.boxes[0].with_suffix(profiling.SUFFIX) / "rank0_b.json.gz")
    watched.trace(0, 130, "x" * 2000)
    watched.boxes[1].with_suffix(profiling.SUFFIX).symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "rank1_step1.json.gz").write_text("of somebody else")
    assert sorted(watched.look()) == [EvidenceFault.PROFILE] * 2 + [EvidenceFault.SIZE]
    assert watched.found() == {}


def test_directory_that_takes_no_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mounted read-only, say: that is counted, and the evidence is kept all the same."""

    def refused(*_: object) -> Path:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(profiling, "request", refused)
    assert [*Watched(tmp_path, named=[0]).asked.elements()] == [EvidenceFault.PROFILE]


def test_traces_that_are_there(tmp_path: Path) -> None:
    """A bundle takes the traces that somebody has asked for before."""
    watched = Watched(tmp_path, named=[])
    bundle = Bundle(watched.incident, BundleFolder(watched.bundle, max_bytes=1 << 20))
    add_profiles(bundle)
    assert watched.found() == {"rank0_step7.json.gz": "an old one"}


def test_names_that_are_no_text(tmp_path: Path) -> None:
    """They are left out: the manifest of the bundle could not be written with them, and no other one then."""
    watched = Watched(tmp_path, named=[0])
    watched.trace(0, 120, "slow")
    folder = os.fsencode(watched.boxes[0].with_suffix(profiling.SUFFIX))
    for name in (b"rank0_step\xff.json.gz", b"rank0_step\x1b.json.gz"):
        Path(os.fsdecode(folder + b"/" + name)).write_text("forged")
    assert (watched.look(), watched.found()) == ([], {"rank0_step120.json.gz": "slow"})
    bundle = Bundle(watched.incident, BundleFolder(tmp_path / "other", max_bytes=1 << 20))
    (tmp_path / "other").mkdir()
    add_profiles(bundle)
    assert sorted(each.path for each in bundle.folder.files) == [
        "profiles/rank0_step120.json.gz",
        "profiles/rank0_step7.json.gz",
    ]
