"""The collector of flight recorders: which ranks it asks, when, and what it exports of each."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from rankwatch.blackbox.records import GroupNow
from rankwatch.conventions.states import RankState
from rankwatch_agent.runtime.collector import Collection
from rankwatch_agent.runtime.errors import NotApplicable
from rankwatch_agent.training.collectives.collector import CollectivesCollector
from rankwatch_agent.training.conditions import RankCondition, RunConditions
from support.training.ranks import values
from support.training.recorder import completed, entry, reply, worker_server

RUNNING = RankState.RUNNING
NCCL, OTHER = "dump_nccl_trace_json", "fr_trace_json"
PLACE = ("default_pg", "0-1", "flight_recorder")


class Node:
    """Two ranks of a run, each with a recorder that a test may change."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        self.moment = 1000.0
        self.conditions = RunConditions()
        self.recorders = [{NCCL: reply(completed(0), enqueued=1, done=1)} for _ in range(2)]
        self.directory = directory
        self.asked = [
            stack.enter_context(
                worker_server(directory / "job" / f"{rank}.sock", partial(self.recorders.__getitem__, rank))
            )
            for rank in range(2)
        ]
        self.collector = CollectivesCollector(
            directory=directory, conditions=self.conditions, monotonic=lambda: self.moment
        )

    def collect(self, after: float = 1.0) -> Collection:
        self.moment += after
        return self.collector.collect()

    def answer(
        self, *entries: Mapping[str, object], enqueued: int = 1, done: int = 1, **more: object
    ) -> None:
        """Have both recorders say this."""
        for recorder in self.recorders:
            recorder[NCCL] = {**reply(*entries, enqueued=enqueued, done=done), **more}

    def pulls(self) -> list[int]:
        return [sum(target != "/handler/" for target in each) for each in self.asked]

    def set_idle(
        self,
        *idle: float,
        states: Sequence[RankState] = (RUNNING, RUNNING),
        counted: Set[tuple[str, str, str]] = frozenset(),
        **more: Any,
    ) -> None:
        """Set how long (s) each rank has made no progress, of a timeout of ten seconds."""
        ranks = [
            _rank(self.directory / "job", states[rank], rank)._replace(
                last_progress=self.moment - seconds, timeout=10.0, **more
            )
            for rank, seconds in enumerate(idle)
        ]
        self.conditions.update({"job": ranks}, self.moment, {each.path: counted for each in ranks})


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with ExitStack() as stack:
        yield Node(tmp_path, stack)


def test_healthy_rank_is_asked_seldom(node: Node) -> None:
    """A pull copies its whole ring: once a minute. Where it stands matters to nobody, until it is late."""
    enqueued = "rankwatch_collective_last_enqueued"
    for _ in range(60):
        node.set_idle(0.1, 0.1)
        assert values(node.collect(), enqueued) == {}
    assert node.pulls() == [1, 1]
    node.set_idle(0.1, 6.0)
    assert values(node.collect(after=0.0), enqueued) == {("job", "1", *PLACE): 1.0}
    node.set_idle(0.1, 0.1)
    node.collect()
    assert node.pulls() == [2, 2]


def test_suspect_run_is_asked_often(node: Node) -> None:
    """All of its ranks, at once and then often: the late one must be told from those that wait."""
    node.set_idle(0.1, 0.1)
    node.collect()
    node.collect(after=10.0)
    assert node.pulls() == [1, 1]
    node.recorders[0] = {NCCL: reply(completed(0), entry(1), enqueued=2, done=1)}
    node.set_idle(5.5, 0.1)
    collection = node.collect()
    assert node.pulls() == [2, 2]
    oldest, late = "rankwatch_collective_oldest_incomplete", ("job", "0", *PLACE)
    assert values(collection, f"{oldest}_timestamp_seconds") == {late: 1001.0}
    assert list(values(collection, f"{oldest}_signature")) == [late]
    for _ in range(10):
        node.set_idle(6.0, 0.1)
        node.collect()
    assert node.pulls() == [4, 4]
    node.set_idle(0.1, 0.1)
    node.collect(after=10.0)
    assert node.pulls() == [4, 4]


def test_lost_rank_is_not_asked(node: Node) -> None:
    """Those that live are asked. The position of a lost one at the last pull is not where it ended."""
    node.set_idle(0.1, 0.1)
    node.collect()
    node.set_idle(0.1, 0.1, states=(RankState.LOST, RUNNING))
    collection = node.collect(after=10.0)
    assert node.pulls() == [1, 2]
    assert list(values(collection, "rankwatch_collective_last_enqueued")) == [("job", "1", *PLACE)]


def test_two_recorders(node: Node) -> None:
    """NCCL and other backends of a torch with CUDA each have one, with record ids of its own."""
    names = {"process_group": ["2", "cpu"], "profiling_name": "gloo:all_reduce"}
    gloo = completed(0, collective_seq_id=3, **names)
    node.recorders[0] = {OTHER: reply(gloo, enqueued=3, done=3), **node.recorders[0]}
    collection = node.collect()
    assert values(collection, "rankwatch_collective_last_completed") == {
        ("job", "0", *PLACE): 1.0,
        ("job", "0", "cpu", "", "flight_recorder"): 3.0,
        ("job", "1", *PLACE): 1.0,
    }


def test_nccl_wait_and_transfer(node: Node) -> None:
    """By timed entries: the last arriver spent the least time in it; sends take no part."""
    for recorder, milliseconds in zip(node.recorders, (5.0, 2.0), strict=True):
        send = completed(1, 9.0, is_p2p=True, profiling_name="nccl:send 0->1")
        recorder[NCCL] = reply(completed(0, milliseconds), send, enqueued=1, done=1)
    collection = node.collect()
    at = ("default_pg", "0-1", "all_reduce")
    assert values(collection, "rankwatch_collective_wait_seconds_total") == {
        ("job", "0", *at): pytest.approx(0.003),
        ("job", "1", *at): 0.0,
    }
    small = ("job", *at, "small")
    assert values(collection, "rankwatch_collective_transfer_seconds_total") == {small: 0.002}
    assert values(collection, "rankwatch_collective_bus_bytes_total") == {small: 4096.0}
    assert values(collection, "rankwatch_collectives_total")["job", "0", "default_pg", "0-1", "send"] == 1.0


def test_what_waits_to_be_compared_is_bounded(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank that is far ahead of the other keeps the newest; the ranks of one owner share."""
    monkeypatch.setattr("rankwatch_agent.training.collectives.collector._MOST_PENDING", 40)
    ahead = [completed(number, 1.0) for number in range(100)]
    node.recorders[0][NCCL] = reply(*ahead, enqueued=100, done=100)
    node.recorders[1][NCCL] = reply(completed(0, 1.0), enqueued=1, done=1)
    node.collect()
    kept = [list(group.completed) for rank in node.collector._ranks.values() for group in rank.groups]
    assert kept == [list(range(81, 101)), [1]]


def test_no_double_counting(node: Node) -> None:
    """What the black box counts is not exported twice: of two backends the whole counts, not the sample."""
    node.answer(completed(0, 2.0))
    node.set_idle(6.0, 6.0, counted=frozenset({("default_pg", "0-1", "all_reduce")}))
    collection = node.collect()
    for name in ("rankwatch_collectives_total", "rankwatch_collective_transfers_total"):
        assert values(collection, name) == {}
    assert values(collection, "rankwatch_collective_last_enqueued")


def test_what_is_incomplete_comes_from_one_source(node: Node) -> None:
    """Where the black box sees completions, it knows what is incomplete, and the recorder only knew."""
    node.answer(completed(0), entry(1), enqueued=2)
    oldest = "rankwatch_collective_oldest_incomplete_timestamp_seconds"
    node.set_idle(6.0, 6.0)
    assert len(values(node.collect(), oldest)) == 2
    node.set_idle(6.0, 6.0, counted=frozenset({("default_pg", "0-1", "barrier")}))
    collection = node.collect()
    assert values(collection, oldest) == {}
    assert len(values(collection, "rankwatch_collective_oldest_incomplete_signature")) == 2


def test_gloo_members(node: Node) -> None:
    """They are those of the black box: gloo's recorder leaves the configuration of groups empty."""
    node.answer(completed(0), pg_config={})
    node.set_idle(6.0, 6.0, groups=(GroupNow(1, "default_pg", "0-7", 8, 1, 0.0, "all_reduce"),))
    labels = set(values(node.collect(), "rankwatch_collective_last_enqueued"))
    assert labels == {("job", str(rank), "default_pg", "0-7", "flight_recorder") for rank in range(2)}


def test_silent_rank_has_no_position(node: Node) -> None:
    """Its peers go on: an old number would make it look behind."""
    node.collect()
    del node.recorders[0][NCCL]
    collection = node.collect(after=60.0)
    silent = values(collection, "rankwatch_flight_recorder_silent_seconds")
    assert silent == {("job", "0"): 60.0, ("job", "1"): 0.0}
    assert list(values(collection, "rankwatch_collective_last_enqueued")) == [("job", "1", *PLACE)]
    assert values(collection, "rankwatch_flight_recorder_pulls_total")["job", "0", "failure"] == 1.0
    assert values(collection, "rankwatch_collectives_total")["job", "0", *PLACE[:2], "all_reduce"] == 1.0


def test_forgotten_ranks(node: Node) -> None:
    """Ranks that are gone are forgotten. Their sockets are removed by those who served them."""
    node.collect()
    for path in node.directory.glob("*/*.sock"):
        path.unlink()
    with pytest.raises(NotApplicable):
        node.collect(after=10.0)


def test_long_stall_is_asked_less_often(node: Node) -> None:
    """Each answer copies a whole ring, and after ten minutes nothing in it is new."""
    for _ in range(3600):
        node.set_idle(7.0, 7.0)
        node.collect()
    assert 120 < node.pulls()[0] < 160, "12 in each minute would be 720"


def test_stale_sockets(tmp_path: Path) -> None:
    """A job that crashed and was started again all day leaves one with each run; the living are asked."""
    conditions = RunConditions()
    crashed = [tmp_path / f"crashed{number:02}" for number in range(70)]
    for run in crashed:
        run.mkdir()
        with socket.socket(socket.AF_UNIX) as gone:
            gone.bind(str(run / "0.sock"))
    with worker_server(tmp_path / "now" / "0.sock", lambda: {NCCL: reply()}) as asked:
        conditions.update({run.name: [_rank(run, RankState.LOST)] for run in crashed}, 1000.0)
        CollectivesCollector(directory=tmp_path, conditions=conditions, monotonic=lambda: 1000.0).collect()
    assert asked == ["/handler/", f"/handler/{NCCL}"]


def test_symlinked_run(tmp_path: Path) -> None:
    """Whoever may make a link would have the agent speak to any socket: it leads nowhere."""
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "job").symlink_to(tmp_path / "elsewhere")
    elsewhere = worker_server(tmp_path / "elsewhere" / "0.sock", lambda: {NCCL: reply()})
    with elsewhere as asked, pytest.raises(NotApplicable):
        CollectivesCollector(directory=tmp_path / "runs").collect()
    assert asked == []


def _rank(run: Path, state: RankState, number: int = 0) -> RankCondition:
    return RankCondition(number, run / f"{number}.blackbox", state, 990.0, None, None, 1)


def test_series_of_a_rank_are_bounded(node: Node) -> None:
    """A rank with thousands of operations leaves room to the ranks of other users, also for transfers."""
    groups = [f"{number}" for number in range(64)]
    entries = [
        completed(
            64 * at + number, 1.0, pg_id=number, process_group=[group, group], profiling_name=f"nccl:o{at}"
        )
        for at in range(64)
        for number, group in enumerate(groups)
    ]
    config = {group: {"name": group, "desc": "", "ranks": "[0]"} for group in groups}
    node.recorders[0][NCCL] = {**reply(*entries), "pg_config": config}
    series = node.collect().series
    assert len(series) < 4000
    shown = values(node.collect(), "rankwatch_collectives_total")
    assert sum(shown[labels] for labels in shown if labels[1] == "0") == len(entries)
