"""What an operator sees where a user of the node wants to hide a run of another, or to stand in for it."""

from __future__ import annotations

import itertools
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from rankwatch_agent.runtime.errors import UserError
from rankwatch_cli import runs
from rankwatch_cli.commands import ls
from rankwatch_cli.main import main
from rankwatch_cli.runs import find_runs, named_run
from support.processes.users import ALICE, BOB, CAROL, node_directory, run_as

__all__ = ["node_directory"]

pytestmark = pytest.mark.process

SCRIPT = """
def begin(run, age, short_name=b"team_train"):
    with open(box(run, 0, age=age), "r+b") as file:
        file.seek(layout.DECLARED_OFFSET)
        file.write(layout.DECLARED.pack(b"", 0.0, short_name))
"""
HONEST = f"{SCRIPT}begin('team_train-77', 60.0)"


@pytest.fixture
def node(node_directory: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A node with a run of ALICE, that of a script `team_train`, a minute old."""
    monkeypatch.setenv("RANKWATCH_DIR", str(node_directory))
    run_as(ALICE, node_directory, HONEST)
    return node_directory


def test_many_directories(
    node: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """However many directories somebody makes, those of others are looked at; that some are not is said."""
    run_as(BOB, node, "[(directory / f'{number}').mkdir() for number in range(300)]")
    run_as(ALICE, node, f"{SCRIPT}begin('older', 90.0); os.utime(directory / 'older', (1, 1))")
    monkeypatch.setattr(runs, "MOST_RUNS", 2)
    assert [each.run for each in find_runs(node)] == ["team_train-77"]
    assert capsys.readouterr().err == (
        f"looking at 2 of 302 directories in {node}, the newest ones of each user\n"
    )
    assert named_run("older", node) == node / "older"


def test_short_name_of_another(node: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No short name or newest run leads root to a run that says it started later; the full name does."""
    run_as(BOB, node, f"{SCRIPT}begin('other', -3600.0)")
    for arguments, meant in ((["team_train"], "'team_train'"), ([], "the newest run")):
        assert main(["blackbox", *arguments]) == 2
        printed = capsys.readouterr()
        assert printed.out == ""
        assert f"{meant} may be that of any of 2 users" in printed.err
        assert f"{node / 'other'} of user {BOB}" in printed.err
        assert f"{node / 'team_train-77'} of user {ALICE}" in printed.err
    assert named_run("team_train-77", node) == node / "team_train-77"
    assert named_run(str(node / "other"), node) == node / "other"


def test_full_name_of_another(node: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nobody takes a full name away by making it a short name; who asks for it hears of the others."""
    run_as(BOB, node, "box('team_train', 0)")
    run_as(CAROL, node, f"{SCRIPT}begin('third', 1.0, b'team_train-77')")
    for name, (owner, other, of_other) in {
        "team_train-77": (ALICE, "third", CAROL),
        "team_train": (BOB, "team_train-77", ALICE),
    }.items():
        assert main(["blackbox", name]) == 0
        printed = capsys.readouterr()
        assert f"run {name}," in printed.out
        assert printed.err == (
            f"{name!r} is the full name of {node / name} of user {owner}; "
            f"it is the short name of {node / other} of user {of_other}, too\n"
        )


def test_own_short_name(node: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An ordinary user means the own run by its short name, also where somebody else's is called so."""
    run_as(BOB, node, "box('team_train', 0)")
    monkeypatch.setattr("os.geteuid", lambda: ALICE)
    assert named_run("team_train", node) == node / "team_train-77"
    monkeypatch.setattr("os.geteuid", lambda: CAROL)
    assert named_run("team_train", node) == node / "team_train"


@pytest.mark.parametrize(("user", "run"), [(ALICE, "team_train-77"), (BOB, "other")])
def test_own_runs_first(node: Path, monkeypatch: pytest.MonkeyPatch, user: int, run: str) -> None:
    """An ordinary user means the own run, whatever others record. Who has none must say whose."""
    run_as(BOB, node, f"{SCRIPT}begin('other', 30.0)")
    monkeypatch.setattr("os.geteuid", lambda: user)
    assert named_run("team_train", node) == named_run(None, node) == node / run
    monkeypatch.setattr("os.geteuid", lambda: CAROL)
    with pytest.raises(UserError, match="any of 2 users"):
        named_run(None, node)


def test_one_user(node: Path) -> None:
    """Where nobody else has such a run, root gets the newest as ever."""
    run_as(ALICE, node, f"{SCRIPT}begin('team_train-78', 30.0)")
    assert named_run("team_train", node) == named_run(None, node) == node / "team_train-78"


def test_start_in_the_future(node: Path) -> None:
    """A header may claim any start, but none after the box was last changed."""
    run_as(BOB, node, "box('other', 0, age=-3600.0)")
    newest, _ = find_runs(node)
    assert newest.started <= (node / "other" / "0.blackbox").stat().st_ctime
    assert newest.ended is not None
    assert newest.ended <= time.time()


def test_link(node: Path) -> None:
    """A link has no run, and no name of one."""
    run_as(BOB, node, "(directory / 'linked').symlink_to('team_train-77')")
    with pytest.raises(UserError, match="'linked' is no run"):
        named_run("linked", node)
    assert [each.run for each in find_runs(node)] == ["team_train-77"]


def test_owners(node: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Where runs of several users stand, each has its owner; JSON always has it."""
    assert main(["ls"]) == 0
    assert "OWNER" not in capsys.readouterr().out
    run_as(BOB, node, "box('other', 0)")
    assert main(["ls"]) == 0
    head, *rows = capsys.readouterr().out.splitlines()
    assert head.split()[:3] == ["RUN", "OWNER", "NAME"]
    assert [row.split()[:3] for row in rows] == [
        ["other", str(BOB), "-"],
        ["team_train-77", str(ALICE), "team_train"],
    ]
    assert main(["ls", "--json"]) == 0
    assert [each["owner"] for each in json.loads(capsys.readouterr().out)] == [BOB, ALICE]


def test_name_like_a_row(node: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A name with the gaps of a table in it is one cell, and no row about a run of somebody else."""
    name = f"x{' ' * 79}team_train-77  {ALICE}  train  failed"
    run_as(BOB, node, f"box('short', 0, folder={name!r})")
    assert main(["ls"]) == 0
    _, first, _ = capsys.readouterr().out.splitlines()
    assert [each for each in first.split("  ") if each][1].strip() == str(BOB)


def test_time_for_verdicts(node: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Users take turns, so that nobody's many new runs take the verdicts of others away."""
    run_as(BOB, node, "[box(f'new-{number}', 0, age=9.0 - number) for number in range(9)]")
    judged = []

    def judge(_: object, directory: Path, seconds: float) -> None:
        judged.append(directory.name)

    monkeypatch.setattr(ls._Judge, "word", judge)
    clock = SimpleNamespace(monotonic=itertools.count().__next__, time=time.time)
    monkeypatch.setattr(ls, "time", clock)
    assert main(["ls"]) == 0
    assert judged[:3] == ["new-8", "team_train-77", "new-7"]


def test_run_that_takes_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """It costs its own verdict. Where the process cannot start, there is none, and that is no error."""
    program = "import time\nprint('ready', flush=True)\nwhile True:\n "
    program += "print('good', flush=True) if 'fast' in input() else time.sleep(1000)"
    monkeypatch.setattr(ls, "python", lambda *_: [sys.executable, "-c", program])
    with ls._Judge() as judge:
        assert judge.word(Path("fast"), 60.0) == "good"
        assert judge.word(Path("hung"), 0.1) is None
        assert judge.word(Path("fast"), 60.0) == "good"
    monkeypatch.setattr(ls, "python", lambda *_: [sys.executable, "-c", "import a_missing_module"])
    with ls._Judge() as judge:
        assert not judge.start()


def test_time_for_reading(
    node: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Users take turns: nobody's new or endless runs hide those of others. What was not read is counted."""
    run_as(BOB, node, "[box(f'new-{number}', 0, age=9.0 - number) for number in range(9)]")
    run_as(BOB, node, "[box('endless', rank) for rank in range(9)]")
    clock = SimpleNamespace(monotonic=itertools.count().__next__, time=time.time)
    monkeypatch.setattr(runs, "time", clock)
    found = {each.run for each in find_runs(node, 20.0)}
    assert "team_train-77" in found
    assert "new-8" in found
    assert "endless" not in found
    left = 11 - len(found)
    assert capsys.readouterr().err == (
        f"{left} of 11 directories in {node} could not be read in time, such as {node / 'endless'}: "
        "`rankwatch ls --seconds N` reads longer than 20 s, and `rankwatch summary DIRECTORY` reads one\n"
    )
