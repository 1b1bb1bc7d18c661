"""A directory of black boxes that other users of the node fill: an honest run keeps its series. The users are
real, and so are their files; only root can start their programs."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rankwatch.blackbox.layout import Now
from rankwatch.blackbox.writer import Writer
from rankwatch.conventions.states import BoxFault
from rankwatch.identity import Identity
from rankwatch_agent.training import collector as ranks_collector
from rankwatch_agent.training.boxes.discovery import MAX_BOXES, POLL_SECONDS
from rankwatch_agent.training.boxes.follower import RankFollower
from rankwatch_agent.training.collectives.collector import CollectivesCollector
from rankwatch_agent.training.collector import RanksCollector
from rankwatch_agent.training.conditions import RunConditions
from rankwatch_agent.training.goodput import run_ledgers
from rankwatch_agent.training.goodput.run_ledgers import RunLedger, RunLedgers
from rankwatch_agent.training.life import attempts
from rankwatch_agent.training.life.attempts import RunAttempts
from rankwatch_agent.training.life.series import LifeCounters
from rankwatch_agent.training.series.ranks import RankSeries
from rankwatch_agent.training.tracked_runs import TrackedRuns
from support.agent.process import ManualClock
from support.paths import TESTS
from support.processes.mounts import run_beside_dead_server
from support.processes.users import ALICE, BOB, CAROL, become, node_directory, program_of, run_as
from support.training.ranks import faults, rank, settled, state, values
from support.training.recorder import completed, reply, worker_server

__all__ = ["node_directory"]

pytestmark = pytest.mark.process


def test_sparse_boxes(node_directory: Path) -> None:
    """A thousand sparse boxes of two users take neither all descriptors nor an honest run's place."""
    code = "for n in range(550): box(f'r{uid}-{n // 10}', n % 10)"
    collector = RanksCollector(directory=node_directory)
    before = open_files()
    run_as(ALICE, node_directory, code)
    run_as(BOB, node_directory, code)
    collector.collect()
    assert open_files() - before <= MAX_BOXES
    with rank(node_directory, "steps(2)\nready()", before=become(CAROL)):
        collection = collector.collect()
        assert ("job", "0", "running") in values(collection, "rankwatch_rank_state")
        assert open_files() - before <= MAX_BOXES + 2  # and the two pipes to the rank
    assert faults(collection)[BoxFault.TOO_MANY_RUNS] + faults(collection)[BoxFault.TOO_MANY_BOXES] > 0


def open_files() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def test_boxes_of_one_run(node_directory: Path) -> None:
    """A run has few ranks on one node; the others are counted."""
    run_as(ALICE, node_directory, "for n in range(300): box('big', n, capacity=256)")
    collection = RanksCollector(directory=node_directory).collect()
    assert values(collection, "rankwatch_blackboxes") == {(): 256}
    assert faults(collection) == {BoxFault.TOO_MANY_RANKS: 1}


def test_ended_runs_give_way(node_directory: Path) -> None:
    """A job that crashes in a loop hides no new run, neither its own nor that of another user."""
    collector = RanksCollector(directory=node_directory, max_runs=4)
    code = "for n in range(4): box(f'crash{n}', 0, capacity=256)"
    run_as(ALICE, node_directory, code)
    assert len(values(collector.collect(), "rankwatch_rank_state")) == 4
    with (
        rank(node_directory, "steps(1)\nready()", run="own", before=become(ALICE)),
        rank(node_directory, "steps(1)\nready()", run="other", before=become(BOB)),
    ):
        collection = collector.collect()
        shown = {labels[0] for labels in values(collection, "rankwatch_rank_state")}
        assert shown >= {"own", "other"} and len(shown) == 4
        run_as(ALICE, node_directory, code.replace("crash", "later"))
        for _ in range(3):  # the new ones count as living until they are read
            shown = {labels[0] for labels in values(collector.collect(), "rankwatch_rank_state")}
        assert shown >= {"own", "other"}
    assert faults(collection)[BoxFault.TOO_MANY_RUNS] == 2


def test_displaced_runs_are_removed(node_directory: Path) -> None:
    """The files of an ended run that gave up its place are removed in time too: they occupy memory."""
    moment = [time.monotonic()]
    collector = RanksCollector(
        directory=node_directory, max_runs=1, retention_seconds=100.0, monotonic=lambda: moment[0]
    )
    for name in ("first", "second"):
        run_as(ALICE, node_directory, f"box('{name}', 0, capacity=256)")
        collector.collect()
    moment[0] += 200.0
    for _ in range(3):
        collector.collect()
    assert list(node_directory.iterdir()) == []


def test_deleted_files_free_their_places(node_directory: Path) -> None:
    """At once, if the rank has ended; a living rank whose file somebody removed is read on."""
    collector = RanksCollector(directory=node_directory, max_runs=1)
    run_as(ALICE, node_directory, "box('old', 0, capacity=256)")
    assert state(collector.collect()) == {"0": "lost"}
    shutil.rmtree(node_directory / "old")
    assert state(collector.collect()) == {}
    with rank(node_directory, "steps(1)\nready()"):
        assert state(collector.collect()) == {"0": "running"}
        shutil.rmtree(node_directory / "job")
        assert state(collector.collect()) == {"0": "running"}
    assert state(collector.collect()) == {"0": "lost"}
    assert state(collector.collect()) == {}


def test_closed_folder(node_directory: Path) -> None:
    """An agent that may not look into a folder any more follows what it has open, and the runs of others."""
    run_as(ALICE, node_directory, "box('closed', 0, capacity=256)")
    collector = RanksCollector(directory=node_directory)
    with rank(node_directory, "steps(1)\nready()", before=become(BOB)):
        collector.collect()
        (node_directory / "closed").chmod(0o700)
        os.seteuid(CAROL)
        try:
            for _ in range(3):
                shown = values(collector.collect(), "rankwatch_rank_state")
        finally:
            os.seteuid(0)
    assert ("job", "0", "running") in shown


def test_links_without_an_end(node_directory: Path) -> None:
    """A link to a name that no file can have is a fault of its own place."""
    run_as(ALICE, node_directory, "box('linked', 0, capacity=256)")
    collector = RanksCollector(directory=node_directory)
    with rank(node_directory, "steps(1)\nready()", before=become(BOB)):
        collector.collect()
        (node_directory / "linked" / "0.blackbox").unlink()
        (node_directory / "linked" / "0.blackbox").symlink_to("x" * 300)
        (node_directory / "x").symlink_to("x" * 300)
        for _ in range(3):
            assert ("job", "0", "running") in values(collector.collect(), "rankwatch_rank_state")


_LOOKS = f"""
import os, subprocess
sys.path[:0] = [{str(TESTS)!r}]
from rankwatch.profiling import traces_beside
from rankwatch_agent.sources.nccl_ras.collector import local_runs
from rankwatch_agent.training.collector import RanksCollector
from support.processes.users import ALICE, run_as
boxes = directory / "boxes"
boxes.mkdir()
boxes.chmod(0o1777)
run_as(ALICE, boxes, "box('linked', 0, capacity=256)")
collector = RanksCollector(directory=boxes)
collector.collect()
subprocess.run(["sh", "-ec", link, str(dead)], cwd=boxes, check=True)
for path in boxes.rglob("*"):
    os.lchown(path, ALICE, ALICE)
for _ in range(3):
    collector.collect()
local_runs(boxes)
traces_beside(boxes / "linked" / "0.blackbox")
print("came back")
"""
_SUFFIXES = "error_file crashed killed terminated lines checkpoints trackers profile sock"
_LINKS = {
    "the box": "cd linked; rm 0.blackbox; ln -s $0/x 0.blackbox",
    "its folder": "mv linked old; ln -s $0 linked",
    "a folder beside it": "ln -s $0 x; ln -s $0 linked/earlier",
    "files beside it": f"cd linked; for each in {_SUFFIXES}; do ln -s $0/x 0.$each; done",
}


@pytest.mark.parametrize("link", _LINKS)
def test_links_to_a_dead_file_server(node_directory: Path, link: str) -> None:
    """Nobody waits for it: what a user may link to is looked at without following."""
    found = run_beside_dead_server(node_directory, f"link = {_LINKS[link]!r}\n{_LOOKS}")
    assert found == "came back\n"


def test_two_users_one_name(node_directory: Path) -> None:
    """Boxes of two users are two runs, so a forged box of a dead rank changes nothing about the run."""
    collector = RanksCollector(directory=node_directory)
    with rank(node_directory, "steps(1)\nready()", world=2, before=become(ALICE)):
        (node_directory / "job").chmod(0o777)
        run_as(BOB, node_directory, "box('job', 1)")
        collection = collector.collect()
    assert values(collection, "rankwatch_rank_state") == {
        ("job", "0", "running"): 1,
        (f"job-uid{BOB}", "1", "lost"): 1,
    }
    assert values(collection, "rankwatch_run_info") == {
        ("job", "python", "", str(ALICE), "", ""): 1,
        (f"job-uid{BOB}", "", "", str(BOB), "", ""): 1,
    }
    assert faults(collection) == {BoxFault.FOREIGN_OWNER: 1}


def test_forged_owner_in_a_name(node_directory: Path) -> None:
    """A directory that is named after another user's run gets its real owner's id too."""
    run_as(BOB, node_directory, f"box('job-uid{ALICE}', 0)")
    run_as(ALICE, node_directory, f"box('job-uid{ALICE}-2', 0)")
    found = values(RanksCollector(directory=node_directory).collect(), "rankwatch_rank_state")
    assert {run for run, *_ in found} == {f"job-uid{ALICE}-uid{BOB}", f"job-uid{ALICE}-2"}


def test_box_taken_over_by_another_user(node_directory: Path) -> None:
    """The rank of one user does not go on as that of another: its totals are not mixed."""
    collector = RanksCollector(directory=node_directory)
    run_as(ALICE, node_directory, "box('job', 0)")
    collector.collect()
    (node_directory / "job").chmod(0o777)
    run_as(BOB, node_directory, "(directory / 'job' / '0.blackbox').unlink(); box('job', 0)")
    for _ in range(2):
        collection = collector.collect()
    assert {labels[0] for labels in values(collection, "rankwatch_rank_state")} == {f"job-uid{BOB}"}


def test_boxes_that_take_long(node_directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Boxes of one user that use up the time of a pass cost another user's run nothing."""
    run_as(ALICE, node_directory, "for n in range(20): box('slow', n, capacity=256)")
    clock, read = ManualClock(), []
    sound = RankFollower.poll

    def poll(self: RankFollower, moment: float) -> None:
        read.append(self.path.parent.name)
        clock.now += 0.3 * POLL_SECONDS if self.owner == ALICE else 0.001
        sound(self, moment)

    monkeypatch.setattr(RankFollower, "poll", poll)
    with rank(node_directory, "steps(2)\nready()", before=become(BOB)):
        collector = RanksCollector(directory=node_directory, monotonic=clock)
        for _ in range(6):
            collection = collector.collect()
            assert ("job", "0", "running") in values(collection, "rankwatch_rank_state")
    assert read.count("job") == 6
    assert read.count("slow") <= 6 * 5
    slow = [labels for labels in values(collection, "rankwatch_rank_state") if labels[0] == "slow"]
    assert len(slow) == 20


def test_too_many_series(node_directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Boxes of one user that fill the exposition take no series from another user's run."""
    monkeypatch.setattr(ranks_collector, "MAX_SERIES", 200)
    run_as(ALICE, node_directory, "for n in range(20): box('wide', n, capacity=256)")
    with rank(node_directory, "steps(2)\nready()", before=become(BOB)):
        collection = RanksCollector(directory=node_directory).collect()
    runs = [labels[0] for labels in values(collection, "rankwatch_rank_state")]
    assert "job" in runs and 0 < runs.count("wide") < 20
    assert faults(collection)[BoxFault.TOO_MANY_SERIES] > 0


def test_many_directories(node_directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user who makes directories without end slows the search down, and hides no run."""
    monkeypatch.setattr("rankwatch_agent.training.boxes.run_directories.MAX_RUNS_OF_OWNER", 10)
    with rank(node_directory, "steps(2)\nready()", before=become(BOB)):
        run_as(ALICE, node_directory, "for n in range(500): (directory / f'd{n}').mkdir()")
        collection = RanksCollector(directory=node_directory).collect()
    assert state(collection) == {"0": "running"}


def test_living_boxes_of_a_hostile_user(node_directory: Path) -> None:
    """A user with many living boxes displaces only their own."""
    code = """
held = []
for n in range(30):
    file = open(box(f"run{n}", 0, capacity=256), "r+b")
    fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    held.append(file)
done()
"""
    with rank(node_directory, "steps(2)\nready()", before=become(BOB)):
        pass  # killed: its state is the evidence of an alert
    collector = RanksCollector(directory=node_directory, max_runs=10)
    assert state(collector.collect()) == {"0": "lost"}
    with program_of(ALICE, node_directory, code):
        for _ in range(3):
            shown = values(collector.collect(), "rankwatch_rank_state")
        assert ("job", "0", "lost") in shown and len(shown) == 10


def pulls(directory: Path, **how: Any) -> float:
    """How often the flight recorder of the only rank answers while the agent asks once."""
    recorders = {"fr_trace_json": reply(completed(0, 5.0), enqueued=1, done=1)}
    with worker_server(directory / "job" / "0.sock", lambda: recorders):
        collection = CollectivesCollector(directory=directory, **how).collect()
    return values(collection, "rankwatch_flight_recorder_pulls_total")["job", "0", "success"]


def test_sockets_that_never_answer(node_directory: Path) -> None:
    """64 sockets of one user, first by name, do not keep the agent from asking the rank of another user."""
    code = """
(directory / "!a").mkdir()
os.chdir(directory / "!a")
held = []
for n in range(64):
    held.append(socket.socket(socket.AF_UNIX))
    held[-1].bind(f"{n}.sock")
    held[-1].listen()
done()
"""
    with program_of(ALICE, node_directory, code):
        assert pulls(node_directory, timeout_seconds=2.0) == 1


def test_locks_on_all_that_can_be_read(node_directory: Path) -> None:
    """Whoever may read a rank's box may lock it, and stops neither questions nor captures by it."""
    code = """
held = []
for path in (directory / "job").iterdir():
    try:
        held.append(path.open("rb"))
    except OSError:
        continue
    fcntl.flock(held[-1], fcntl.LOCK_EX)
assert [each.name for each in held] == [str(directory / "job" / "0.blackbox")], held
done()
"""
    writer = Writer(node_directory, Identity(run="job"), phases=())
    writer.expect_questions()
    with program_of(ALICE, node_directory, code):
        assert pulls(node_directory) == 1
        writer.integers[Now.CAPTURING] = 1
        assert writer.wait_for_questions()


def test_clock_of_a_box(node_directory: Path) -> None:
    """A box from next month ages no run of others: each keeps its series and its time over a restart."""
    state_directory = node_directory.parent / "state"
    ahead = "import time as clock; time = types.SimpleNamespace(monotonic=clock.monotonic); \
time.time = lambda: clock.time() + 30 * 86400; box('zz', 0, capacity=256)"
    with rank(node_directory, "steps(2)\nready()", before=become(CAROL)):
        collector = RanksCollector(directory=node_directory, state_directory=state_directory)
        collector.collect()
        run_as(ALICE, node_directory, ahead)
        for _ in range(2):
            shown = values(collector.collect(), "rankwatch_goodput_seconds_total")
            assert ("job", "productive") in shown and ("zz", "productive") in shown
    collector.ledgers.save()
    assert RunLedgers(state_directory, 0.0).runs.keys() == {"job", "zz"}


def test_runs_that_come_and_go(node_directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They cost somebody else's run nothing of what is known of it, and take no memory for ever."""
    monkeypatch.setattr(run_ledgers, "_MOST_KEPT", 100)
    monkeypatch.setattr(attempts, "_MOST_GONE", 10)
    collector = RanksCollector(directory=node_directory)
    run_as(CAROL, node_directory, "box('honest', 0, capacity=256)")
    collector.collect()
    shutil.rmtree(node_directory / "honest")
    for n in range(4):
        run_as(ALICE, node_directory, f"for n in range(6): box(f'fake{n}-{{n}}', 0, capacity=256)")
        collector.collect()
        for path in node_directory.iterdir():
            shutil.rmtree(path)
    collector.collect()
    assert "honest" in collector.ledgers.runs
    assert len(collector.ledgers.runs) == 100 // 9  # a rank with one attempt counts as nine
    followed = collector.attempts.all()
    assert ("honest", 0) in followed and len(followed) == 10


def test_box_that_cannot_be_followed(node_directory: Path) -> None:
    """Nothing is kept of a run whose boxes nobody can read."""
    collector = RanksCollector(directory=node_directory)
    run_as(ALICE, node_directory, "box('other', 0, folder='named').write_bytes(b'x' * 100_000)")
    collector.collect()
    assert collector.ledgers.runs == {}


def test_ranks_that_come_and_go(node_directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of one living run take no memory for ever either."""
    monkeypatch.setattr(run_ledgers, "MOST_RANKS", 5)
    monkeypatch.setattr(attempts, "_MOST_RANKS", 5)
    collector = RanksCollector(directory=node_directory)
    for n in range(4):
        run_as(ALICE, node_directory, f"for n in range(3): box('job', 3 * {n} + n, capacity=256)")
        collector.collect()
        for path in (node_directory / "job").iterdir():
            path.unlink()
    collector.collect()
    ledger = collector.ledgers.of("job")
    assert len(ledger.ranks) == 5 and ledger.ranks.keys() > {9, 10, 11}
    assert [len(role.ranks) for role in ledger.roles.values()] == [5]
    (attempt,) = collector.attempts.of("job")
    assert len(attempt.ends) == 5


def test_gpu_of_another_user(node_directory: Path) -> None:
    """A rank that names the GPU on which somebody else computes does not have it, and pays for none of it."""
    conditions, users = RunConditions(), {"GPU-0": {CAROL}, "GPU-1": {ALICE}}
    collector = RanksCollector(directory=node_directory, conditions=conditions, gpu_users=lambda: users)
    code = "steps(1)\nready()"
    with (
        rank(node_directory, code, gpu="GPU-0", before=become(CAROL)),
        rank(node_directory, code, gpu="GPU-0", run="forged", before=become(ALICE)),
        rank(node_directory, code, gpu="GPU-1", run="own", before=become(ALICE)),
        rank(node_directory, code, gpu="GPU-2", run="unknown", before=become(ALICE)),
    ):
        collection = collector.collect()
    shown = {"job": "GPU-0", "own": "GPU-1", "unknown": "GPU-2"}
    for name in ("rankwatch_rank_gpu_info", "rankwatch_rank_gpu_start_timestamp_seconds"):
        assert {run: gpu for run, _, gpu in values(collection, name)} == shown, name
    charged = {run: each.ranks[0].gpu for run, each in conditions.runs.items()}
    assert charged == {**shown, "forged": ""}


def test_work_beyond_all_numbers(node_directory: Path) -> None:
    """Two ranks with 1e308 tokens each cost no other run its series: their sum is no number."""
    code = "steps(1)\nwith run.step(): run.work(tokens=1e308)\nsteps(1)\nready()"
    with (
        rank(node_directory, code, run="huge", number=0, world=2, before=become(ALICE)),
        rank(node_directory, code, run="huge", number=1, world=2, before=become(ALICE)),
        rank(node_directory, "steps(2)\nready()", before=become(CAROL)),
    ):  # the last step of each is complete a moment later
        collector, wanted = (
            RanksCollector(directory=node_directory),
            {("huge", ""): 256.0, ("job", ""): 128.0},
        )
        settled(collector, lambda each: values(each, "rankwatch_node_tokens_total") == wanted)


ARITHMETIC, CLOSED = OverflowError("math range error"), PermissionError(13, "Permission denied")


@pytest.mark.parametrize(
    ("owner", "broken", "is_bad", "error", "fault"),
    [
        (RankFollower, "poll", lambda rank, *_: rank.run == "bad", CLOSED, BoxFault.UNREADABLE),
        *(
            (*each, ARITHMETIC, BoxFault.GARBAGE)
            for each in (
                (RankFollower, "poll", lambda rank, *_: rank.run == "bad"),
                (RankFollower, "judge_gpu", lambda rank, *_: rank.run == "bad"),
                (ranks_collector, "_condition", lambda rank: rank.run == "bad"),
                (RunAttempts, "_take", lambda _, rank, *__: rank.run == "bad"),
                (RunAttempts, "_conclude", lambda _, run, *__: run == "bad"),
                (LifeCounters, "_class", lambda _, __, user, *___: user == ALICE),
                (TrackedRuns, "_read", lambda _, box, *__: box.parent.name == "bad"),
                (RunLedger, "charge_ended", lambda _, __, living: not living),
                (RankSeries, "_compared", lambda _, rank, *__: rank.run == "bad"),
            )
        ),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_box_that_breaks_something(
    node_directory: Path,
    monkeypatch: pytest.MonkeyPatch,
    owner: object,
    broken: str,
    is_bad: Callable[..., bool],
    error: Exception,
    fault: BoxFault,
) -> None:
    """An error by one box costs that box, whatever it was, and is counted."""
    whole = getattr(owner, broken)

    def break_one(self: object, *given: Any) -> object:
        if is_bad(self, *given):
            raise error
        return whole(self, *given)

    monkeypatch.setattr(owner, broken, break_one)
    run_as(ALICE, node_directory, "box('bad', 0, capacity=256)")
    with rank(node_directory, "steps(2)\nready()", before=become(CAROL)):
        collector = RanksCollector(directory=node_directory)
        for _ in range(2):
            collection = collector.collect()
            assert ("job", "0", "running") in values(collection, "rankwatch_rank_state")
            assert ("job",) in values(collection, "rankwatch_run_attempt_start_timestamp_seconds")
            assert ("job", "startup") in values(collection, "rankwatch_goodput_seconds_total")
    assert faults(collection) == {fault: 1}
