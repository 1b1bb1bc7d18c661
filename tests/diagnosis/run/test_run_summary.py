"""The card of a run, from black boxes that real runs of this process have written."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

import rankwatch
from rankwatch.conventions.states import Cause
from rankwatch.conventions.vocabulary import Capability, TrackerKind, Unseen
from rankwatch.trackers.finding import Tracker, write_note
from rankwatch.untrusted.folders import Folder
from rankwatch_agent.runtime.errors import UserError
from rankwatch_diagnosis.run.engine import diagnose_run
from rankwatch_diagnosis.run.report import as_json, lines
from rankwatch_diagnosis.run.summary import MOST_LINES, summary_lines
from rankwatch_diagnosis.straggler.verdict import Verdict
from support.diagnosis.run_boxes import recorded_run


def record(directory: Path, *, rank: int = 0, world: int = 1, pause: float = 0.0, save: bool = False) -> None:
    """A rank with 30 steps, each of which takes a millisecond in `forward`; `pause` is the length of one."""
    run = recorded_run(directory, rank=rank, world=world)
    for step in range(30):
        with run.step(), run.phase("forward"):
            time.sleep(pause if step == 20 else 0.001)
            run.work(tokens=1000)
    if save:
        with run.checkpoint("save") as operation:
            operation.bytes = 4096
    run.finish()


def test_save_in_the_background(tmp_path: Path) -> None:
    """Saves are counted on the rank that saves most; time beside training is told apart."""
    record(tmp_path, rank=1, world=2)
    run = recorded_run(tmp_path, world=2)
    began = time.monotonic()
    for step in range(3):
        run.checkpoint_log.operation("save", began, began + 4.0, step=step, blocked_seconds=1.0)
    run.finish()
    found = parts(tmp_path)["checkpoints"]
    assert "3 x save, a save takes 4 s and blocks training for 1 s, 0 failed" in found


def parts(directory: Path) -> dict[str, str]:
    head, *rest = summary_lines(directory)
    return {"": head, **{line.split()[0]: line for line in rest}}


def test_summary(tmp_path: Path) -> None:
    """It shows steps, phases, throughput, checkpoints and verdict; of one rank nothing about others."""
    record(tmp_path, save=True)
    found = parts(tmp_path)
    assert found[""].startswith("rankwatch: run job finished, 30 steps in ")
    assert "forward" in found["step"]
    steps, tokens = map(float, re.findall(r"([\d.]+) \w+/s", found["throughput"].replace(",", "")))
    assert tokens == pytest.approx(1000.0 * steps, rel=0.01)  # 1,000 in each step
    assert "1 x save" in found["checkpoints"]
    assert "4,096 bytes, 0 failed, the last good one of step 29" in found["checkpoints"]
    assert found["verdict"].startswith("  verdict      inconclusive: ")
    assert not {"ranks", "worst"} & set(found)


def test_attempts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Card and report say which start of the job this is, counted from 1, and how many there may be."""
    record(tmp_path / "first")
    assert "attempt" not in parts(tmp_path / "first")
    monkeypatch.setenv("TORCHELASTIC_MAX_RESTARTS", "2")
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    record(tmp_path)
    assert parts(tmp_path / "job")["attempt"].endswith(" 2 of at most 3")
    assert "run:         job, attempt 2 of at most 3, 1 of 1 ranks on 1 host" in lines(
        diagnose_run(tmp_path / "job")
    )


def test_other_nodes(tmp_path: Path) -> None:
    """It says how many of the ranks it has seen."""
    record(tmp_path, rank=0, world=4)
    record(tmp_path, rank=1, world=4)
    assert "2 of 4, those of this node" in parts(tmp_path)["ranks"]


def test_stall(tmp_path: Path) -> None:
    """A step that lost a second or more is shown with what it was in."""
    record(tmp_path, pause=1.3)
    assert ": step 20 lost 1." in parts(tmp_path)["stalls"]
    assert "in forward" in parts(tmp_path)["stalls"]


def test_interrupted_while_it_hangs(tmp_path: Path) -> None:
    """The pause before Ctrl-C is in no completed step, and is shown all the same."""
    run = recorded_run(tmp_path)
    with pytest.raises(KeyboardInterrupt), run:
        for step in range(6):
            with run.step(), run.phase("forward"):
                time.sleep(1.1 if step == 5 else 0.001)
                if step == 5:
                    raise KeyboardInterrupt
    assert "no progress in the last 1." in parts(tmp_path)["stalls"]
    assert "none of" not in parts(tmp_path)["stalls"]


def test_bounds(tmp_path: Path) -> None:
    """It stays short and printable, whatever the names in the boxes are."""
    names = [f"phase-{number}-{'x' * 40}" for number in range(30)]
    run = rankwatch.start(run="job", directory=tmp_path, phases=names, flight_recorder=False)
    with run.step(1):
        for name in names:
            with run.phase(name):
                run.work(**{f"unit\n\x1b{name}": 1})
    run.fail(ValueError("x" * 10_000))
    lines = summary_lines(tmp_path)
    assert len(lines) <= MOST_LINES
    assert all(len(line) <= 160 and line.isprintable() for line in lines)
    assert lines[0].endswith("...")


def test_nothing(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds no black box"):
        summary_lines(tmp_path)


def test_what_is_not_visible(tmp_path: Path) -> None:
    """Card and verdict say what zero-code recording does not see, and why; nothing where all is explicit."""
    run = recorded_run(tmp_path)
    with run, run.step():
        assert "not" not in parts(tmp_path)
        run.sees(Capability.STEPS)
        run.cannot_see(Capability.LOSS, Unseen.REPLACED)
        run.cannot_see(Capability.WORK, Unseen.UNKNOWN_FORMAT)
        run.cannot_see(Capability.GRADIENT_NORM, Unseen.REPLACED)
    replaced = f"loss, gradient_norm, because {Unseen.REPLACED.sentence}"
    unknown = f"work, because {Unseen.UNKNOWN_FORMAT.sentence}"
    assert parts(tmp_path)["not"].startswith(f"  not visible  {replaced}; work")
    verdict = diagnose_run(tmp_path)
    found = list(lines(verdict))
    at = found.index("visible:     steps")
    assert found[at - 1] == f"loss:        not visible, because {Unseen.REPLACED.sentence}"
    assert found[at + 1 : at + 3] == [f"not visible: {replaced}", f"             {unknown}"]
    assert as_json(verdict)["capabilities"] == {
        "steps": "visible", "loss": "replaced", "gradient_norm": "replaced", "work": "unknown_format",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (Verdict(cause=Cause.SLOW_RANK, ranks=(1,), slowdown=1.2), "slow_rank rank 1: 20.0% slower for it"),
        (
            Verdict(cause=Cause.SLOW_RANK, ranks=(1,), slowdown=1.001),
            "nothing that was found costs the run 1%",
        ),
        (
            Verdict(cause=Cause.NETWORK, slowdown=2.5, evidence={"slowdown_is_upper_bound": True}),
            "network: at most 150.0% slower for it",
        ),
    ],
    ids=["slow rank", "below 1 %", "bound"],
)
def test_verdict(found: Verdict, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It claims no more than the engine: a bound is called one, and what costs nothing names nobody."""
    monkeypatch.setattr("rankwatch_diagnosis.run.summary.judge_straggler", lambda *_: found)
    record(tmp_path)
    assert parts(tmp_path)["verdict"].split(maxsplit=1)[1] == words


def test_lack_of_cpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that waited for CPUs says so beside its verdict."""
    monkeypatch.setattr("rankwatch.hooks.RunQueueWait._waited", lambda _: time.monotonic() * 0.3)
    monkeypatch.setattr("rankwatch.hooks.SAMPLE_SECONDS", 0.0)
    record(tmp_path)
    assert parts(tmp_path)["cpus"].split(maxsplit=1)[1] == (
        "CPUs are contended: the ranks wait 30% of their time for one"
    )


def test_tracker(tmp_path: Path) -> None:
    """Card and verdict say where an experiment tracker shows the run, if there is a sensible note of it."""
    run = recorded_run(tmp_path)
    with run, run.step():
        pass
    assert "tracker" not in parts(tmp_path)
    page = "https://mlflow.example/#/experiments/1/runs/2"
    note = tmp_path / "job" / "0.trackers"
    trackers = [Tracker(TrackerKind.MLFLOW, "2", page), Tracker(TrackerKind.TENSORBOARD, "/logs", "")]
    write_note(Folder.open(tmp_path / "job"), note.name, trackers)
    assert parts(tmp_path)["tracker"].endswith(f"{page}, tensorboard /logs")
    verdict = diagnose_run(tmp_path)
    assert f"tracker:     {page}, tensorboard /logs" in lines(verdict)
    assert as_json(verdict)["trackers"] == [page, "tensorboard /logs"]
    note.write_text("nonsense")
    assert "tracker" not in parts(tmp_path)
