"""`rankwatch trace` writes a run in the Trace Event Format, as Perfetto and chrome://tracing want it."""

from __future__ import annotations

import gzip
import json
import shutil
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

import rankwatch
from rankwatch_cli.main import main
from rankwatch_diagnosis.chrome_trace import MOST_LANES, Run, Slice, in_lanes
from support.training.ranks import rank

EVENT_KEYS = {
    "M": {"name", "ph", "pid", "args"},
    "X": {"name", "cat", "ph", "pid", "tid", "ts", "dur", "args"},
    "i": {"name", "ph", "pid", "tid", "ts", "s", "args"},
    "C": {"name", "ph", "pid", "ts", "args"},
}
"""What each kind of event must have. Metadata of threads has `tid` as well."""


def events_of(run: Path, output: Path, *arguments: str) -> list[dict[str, Any]]:
    """The events of the trace of a run, each checked against the format."""
    assert main(["trace", str(run), "--chrome", str(output), *arguments]) == 0
    text = gzip.decompress(output.read_bytes()) if output.suffix == ".gz" else output.read_bytes()
    document = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert document.keys() == {"displayTimeUnit", "traceEvents"}
    events: list[dict[str, Any]] = document["traceEvents"]
    check(events)
    return events


def check(events: list[dict[str, Any]]) -> None:
    """Metadata first, names for every process and thread, times sorted, slices that follow or contain each
    other on each thread. To the nanosecond: Perfetto drops a slice that ends after the one it began in."""
    named_processes, named_threads = set(), set()
    tracks = defaultdict(list)
    last = -1.0
    for event in events:
        kind = event["ph"]
        assert EVENT_KEYS[kind] <= event.keys() <= EVENT_KEYS[kind] | {"tid"}
        assert type(event["pid"]) is int and event["pid"] >= 0
        if kind == "M":
            assert last < 0, "metadata comes first"
            if event["name"] == "process_name":
                assert event["pid"] not in named_processes
                named_processes.add(event["pid"])
            elif event["name"] == "thread_name":
                named_threads.add((event["pid"], event["tid"]))
            continue
        assert event["ts"] >= max(last, 0.0)
        last = event["ts"]
        assert event["pid"] in named_processes
        if kind == "X":
            assert event["dur"] >= 0.0
            began = round(1000 * event["ts"])
            tracks[event["pid"], event["tid"]].append((began, began + round(1000 * event["dur"])))
    assert tracks.keys() <= named_threads
    for spans in tracks.values():
        open_ends: list[int] = []
        for began, ended in spans:
            while open_ends and open_ends[-1] <= began:
                open_ends.pop()
            assert not open_ends or ended <= open_ends[-1]
            open_ends.append(ended)


def slices(events: list[dict[str, Any]], category: str) -> list[dict[str, Any]]:
    return [each for each in events if each.get("cat") == category]


def test_ranks_and_tracks(slow_run: Path, tmp_path: Path) -> None:
    """Each rank is a process, with its steps, phases and collectives as tracks."""
    events = events_of(slow_run, tmp_path / "out.json")
    names = {each["pid"]: each["args"]["name"] for each in events if each["name"] == "process_name"}
    assert {pid for pid in names if pid < 8} == set(range(8))
    assert names[5].startswith("rank 5")
    assert {each["args"]["step"] for each in slices(events, "step")} == set(range(40))
    assert {"forward", "backward"} <= {each["name"] for each in slices(events, "phase")}
    assert all(each["args"]["group"] for each in slices(events, "collective"))


def test_critical_rank(slow_run: Path, tmp_path: Path) -> None:
    """While rank 5 is slow_run, its steps are marked, and the row above the ranks names it for each step."""
    events = events_of(slow_run, tmp_path / "out.json")
    named = {each["args"]["step"]: each["name"] for each in slices(events, "critical")}
    late = [step for step in named if step >= 20]
    assert len(late) == 20
    assert sum(named[step].startswith("rank 5: ") for step in late) >= 18
    marked = {
        (each["pid"], each["args"]["step"]) for each in slices(events, "step") if "critical" in each["args"]
    }
    assert {f"rank {pid}" for pid, step in marked if step == late[-1]} == {named[late[-1]].partition(":")[0]}
    assert len(marked) == len(named)


def test_window(slow_run: Path, tmp_path: Path) -> None:
    """Only the steps asked for, with what belongs to them; compressed where the name says so."""
    events = events_of(slow_run, tmp_path / "out.json.gz", "--steps=-3:")
    steps = slices(events, "step")
    assert {each["args"]["step"] for each in steps} == {37, 38, 39}
    ends = {rank: max(each["ts"] + each["dur"] for each in steps if each["pid"] == rank) for rank in range(8)}
    for each in slices(events, "phase"):
        assert each["ts"] <= ends[each["pid"]]


def test_bundle(slow_run: Path, tmp_path: Path) -> None:
    """The boxes of an evidence bundle have the same trace."""
    shutil.copytree(slow_run, tmp_path / "bundle" / "blackboxes" / "job")
    copied = events_of(tmp_path / "bundle", tmp_path / "copied.json", "--steps=-3:")
    assert slices(copied, "step") == slices(events_of(slow_run, tmp_path / "out.json", "--steps=-3:"), "step")


def test_stdout(slow_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`-` prints the trace, and nothing else, to standard output."""
    assert main(["trace", str(slow_run), "--chrome", "-", "--steps", "5"]) == 0
    printed = capsys.readouterr()
    check(json.loads(printed.out)["traceEvents"])
    assert printed.err.startswith("steps 5 to 5 of 8 ranks: ")


def test_bounded(slow_run: Path) -> None:
    """Beyond the limit the oldest events are left out, and the trace stays whole."""
    trace = Run(slow_run).trace(None, most_events=500)
    check(trace.events)
    assert trace.left_out > 0
    assert sum(each["ph"] != "M" for each in trace.events) == 500
    assert trace.last_step == 39


@pytest.mark.process
def test_living_rank(tmp_path: Path) -> None:
    """Checkpoints with stages, loss, lifecycle, and the step and the phase that are still open."""
    code = (
        "with run.checkpoint('save', step=1) as operation:\n"
        "    with operation.stage('write'): pass\n"
        "steps(3)\nrun.scalar('loss', float('nan'))\nrun.begin_step()\nrun.begin_phase('backward')\nready()"
    )
    with rank(tmp_path, code):
        events = events_of(tmp_path / "job", tmp_path / "out.json")
    assert {each["name"] for each in slices(events, "checkpoint")} == {"save", "save write"}
    assert [each["args"]["loss"] for each in events if each["ph"] == "C"] == [2.0, 2.0, 2.0]
    assert [each["name"] for each in events if each["ph"] == "i"] == ["started"]
    still_open = [each["name"] for each in events if each["args"].get("open")]
    assert sorted(still_open) == ["backward", "step 3"]
    assert not slices(events, "critical"), "a single rank waits for nobody"


def test_overlapping_slices() -> None:
    """Those of several threads get lanes of their own, as far as lanes go."""
    nested = [Slice(0, 10, "", "a", {}), Slice(1, 4, "", "b", {}), Slice(4, 9, "", "c", {})]
    crossing = [Slice(2, 12, "", "d", {}), Slice(11, 13, "", "e", {})]
    lanes = {each.name: lane for lane, each in in_lanes([*crossing, *nested])}
    assert lanes == {"a": 0, "b": 0, "c": 0, "d": 1, "e": 0}
    staircase = [Slice(number, number + 1000, "", "", {}) for number in range(100)]
    assert [lane for lane, _ in in_lanes(staircase)] == list(range(MOST_LANES))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--chrome", "x", "--steps", "3:1"], "--steps is '3:1', expected A:B with A below B"),
        (
            ["--chrome", "x", "--steps", "400:"],
            "no step of 400: is in the black boxes, which hold steps 0 to 39",
        ),
        (["--chrome", "/nowhere/out.json"], "could not write /nowhere/out.json: No such file or directory"),
        ([], "the following arguments are required: --chrome"),
    ],
)
def test_wrong_use(
    slow_run: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """One sentence and exit status 2."""
    try:
        status = main(["trace", str(slow_run), *arguments])
    except SystemExit as exit_:
        status = int(exit_.code or 0)
    assert status == 2
    assert message in capsys.readouterr().err


def test_without_steps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A run that has not made a step has a trace, of its start; a window of its steps is a mistake."""
    run = rankwatch.start(run="job", directory=tmp_path, rank=0)
    assert [each["name"] for each in events_of(tmp_path / "job", tmp_path / "out.json")][-1] == "started"
    assert main(["trace", str(tmp_path / "job"), "--chrome", "-", "--steps", "1"]) == 2
    assert "holds no complete step yet" in capsys.readouterr().err
    run.finish()
