"""Bundles of real ranks: their content, and failures of single parts."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rankwatch.blackbox.reader import Reader
from rankwatch.checkpoint_paths import read_checkpoints
from rankwatch.conventions.states import EvidenceFault, IncidentKind, RankState
from rankwatch.conventions.vocabulary import TrackerKind
from rankwatch.logs.lines import FILE_BYTES
from rankwatch.trackers.finding import Tracker, parse_note, write_note
from rankwatch.untrusted.folders import Folder
from rankwatch_agent.incidents.bundle import EvidenceError
from rankwatch_agent.incidents.episodes import RootCause
from rankwatch_agent.incidents.metrics_history import MetricsHistory
from rankwatch_agent.incidents.writer import BundleResult, BundleWriter
from rankwatch_agent.training.conditions import RankCondition
from support.agent.process import DEADLINE_SECONDS, until
from support.incidents.incidents import boxed, condition, incident, writer
from support.servers.loopback import listening_at
from support.training.checkpoint import note
from support.training.ranks import go_on, rank
from support.training.recorder import entry, reply, worker_server

pytestmark = pytest.mark.process

STAND = "steps(3)\nwith run.phase('data_wait'):\n    ready()\n    time.sleep(1000)"


def write(made: BundleWriter, tmp_path: Path, *ranks: RankCondition, **how: Any) -> tuple[BundleResult, Path]:
    """A bundle of these ranks."""
    path = tmp_path / "bundle"
    path.mkdir()
    return made.write(incident(ranks, **how), path), path


def missing(bundle: Path) -> dict[str, str]:
    """What the manifest says the bundle lacks, and why."""
    found = json.loads((bundle / "manifest.json").read_text())["missing"]
    return {each["what"]: each["why"] for each in found}


def saved(bundle: Path) -> dict[str, Any]:
    """What the bundle says of its first rank."""
    return json.loads((bundle / "ranks.json").read_text())["ranks"][0]  # type: ignore[no-any-return]


@pytest.fixture
def standing(tmp_path: Path) -> Iterator[RankCondition]:
    """A rank that stands in data_wait."""
    with rank(tmp_path / "boxes", STAND):
        yield boxed(tmp_path / "boxes" / "job" / "0.blackbox")


def test_content_of_a_bundle(tmp_path: Path, standing: RankCondition) -> None:
    """Black box, final state, process, metrics, verdict, and a manifest that lists what is missing."""
    pages = MetricsHistory()
    pages.set_source(lambda: gzip.compress(b"rankwatch_host_cpus 1\n"))
    pages.keep()
    written, bundle = write(writer(history=pages), tmp_path, standing)
    copy = Reader(bundle / "blackboxes" / "job" / "0.blackbox")
    assert copy.now().steps_completed == 3
    copy.close()
    words = (bundle / "stacks" / "0.final_state.txt").read_text()
    assert "rank 0: running" in words and "phase forward" in words and "step " in words
    assert f"Pid:\t{standing.pid}\n" in (bundle / "stacks" / "0.process.txt").read_text()
    for name in ("before", "after"):
        assert (bundle / "metrics" / f"{name}.prom").read_text() == "rankwatch_host_cpus 1\n"
    manifest = json.loads((bundle / "manifest.json").read_text())
    assert manifest["why"].startswith("rank 0 made no progress for ")
    assert manifest["verdict"] == {"state": "hang", "ranks": [1]}
    assert {each["path"] for each in manifest["files"]} == {
        str(path.relative_to(bundle)) for path in bundle.rglob("*") if path.is_file()
    } - {"manifest.json"}
    assert missing(bundle) == {
        "flight_recorder/0.json": "the rank serves no flight recorder",
        "logs/0.lines.jsonl": "the rank keeps no log lines",
        "stacks/0.txt": "py-spy is not on PATH",
    }
    noted = [saved(bundle)[each] for each in ("state", "open_phase", "pid_on_node")]
    assert noted == ["running", "forward", standing.pid]
    assert (written.root_causes, sum(written.faults.values())) == ((RootCause(1, "hang", ""),), 0)


def test_lost_rank_is_the_root_cause(tmp_path: Path, standing: RankCondition) -> None:
    lost = standing._replace(state=RankState.LOST)
    written, bundle = write(writer(), tmp_path, lost, kind=IncidentKind.LOST_RANK)
    assert written.root_causes == (RootCause(0, "lost", "forward"),)
    assert missing(bundle)["stacks/0.txt"] == "the rank is lost"
    assert (bundle / "stacks" / "0.final_state.txt").exists()


def test_py_spy(tmp_path: Path, standing: RankCondition) -> None:
    """The process is not paused, and the output becomes the file."""
    environ = py_spy(tmp_path / "bin", 'echo "called: $*"')
    _, bundle = write(writer(environ=environ), tmp_path, standing)
    called = (bundle / "stacks" / "0.txt").read_text()
    assert called == f"called: dump --nonblocking --pid {standing.pid}\n"


def py_spy(folder: Path, script: str) -> dict[str, str]:
    """An environment whose PATH has a fake py-spy that runs this shell script."""
    folder.mkdir()
    program = folder / "py-spy"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    for name in ("sleep", "cat"):
        (folder / name).symlink_to(f"/bin/{name}")
    return {"PATH": str(folder)}


@pytest.mark.parametrize(
    ("script", "seconds", "why"),
    [
        ("echo no permission >&2; exit 1", DEADLINE_SECONDS, "py-spy ended with status 1: no permission"),
        ("sleep 1000 & wait", 0.5, "py-spy did not end within 0.5 s"),
        ("exit 0", DEADLINE_SECONDS, "py-spy printed nothing"),
        ("exec cat /dev/zero", DEADLINE_SECONDS, "py-spy printed more than 1048576 bytes"),
    ],
    ids=["fails", "hangs", "silent", "endless"],
)
def test_py_spy_failure(
    tmp_path: Path, standing: RankCondition, script: str, seconds: float, why: str
) -> None:
    made = writer(environ=py_spy(tmp_path / "bin", script), stack_seconds=seconds)
    written, bundle = write(made, tmp_path, standing)
    assert missing(bundle)["stacks/0.txt"].startswith(why)
    assert written.faults == {EvidenceFault.STACKS: 1}
    assert not (bundle / "stacks" / "0.txt").exists()


def test_flight_recorders(tmp_path: Path, standing: RankCondition) -> None:
    """Kept byte for byte. Of two recorders the one with entries is the rank's main one."""
    full, empty = reply(entry(0), enqueued=1), reply()
    answers = {"fr_trace_json": empty, "dump_nccl_trace_json": full}
    with worker_server(standing.path.with_suffix(".sock"), lambda: answers):
        _, bundle = write(writer(), tmp_path, standing)
    assert json.loads((bundle / "flight_recorder" / "0.json").read_bytes()) == full
    assert json.loads((bundle / "flight_recorder_fr_trace_json" / "0.json").read_bytes()) == empty


def test_hung_flight_recorder(tmp_path: Path, standing: RankCondition) -> None:
    """One that takes the question and gives no answer is evidence, too."""
    other = standing._replace(rank=1, path=standing.path.with_name("1.blackbox"))
    (standing.path.with_name("1.sock")).symlink_to(standing.path.with_suffix(".sock"))
    with listening_at(standing.path.with_suffix(".sock")):
        written, bundle = write(writer(recorder_seconds=0.3), tmp_path, standing, other)
    found = missing(bundle)
    assert "timed out" in found["flight_recorder/0.json"]
    assert found["flight_recorder/1.json"] == "the rank serves no flight recorder"
    assert written.faults[EvidenceFault.FLIGHT_RECORDER] == 1
    assert (bundle / "blackboxes" / "job" / "0.blackbox").exists()
    assert saved(bundle)["flight_recorder_silent"] is True


@pytest.mark.parametrize("content", [b"", b"x" * 5000, None], ids=["empty", "garbage", "cut short"])
def test_hostile_black_box(tmp_path: Path, standing: RankCondition, content: bytes | None) -> None:
    hostile = standing.path.with_name("1.blackbox")
    hostile.write_bytes(standing.path.read_bytes()[:70000] if content is None else content)
    link = standing.path.with_name("2.blackbox")
    link.symlink_to("/etc/hostname")
    ranks = [standing, *(condition(number, path=path) for number, path in ((1, hostile), (2, link)))]
    written, bundle = write(writer(), tmp_path, *ranks)
    boxes = bundle / "blackboxes" / "job"
    assert sorted(each.name for each in boxes.iterdir()) == ["0.blackbox", "1.blackbox"]
    assert (boxes / "1.blackbox").read_bytes() == hostile.read_bytes()
    assert "cannot be read" in (bundle / "stacks" / "1.final_state.txt").read_text()
    assert written.faults == {EvidenceFault.BLACK_BOX: 1}  # the copy of the link


def test_small_bundle(tmp_path: Path, standing: RankCondition) -> None:
    """The black box does not fit, the verdict and the manifest do."""
    written, bundle = write(writer(max_bytes=1 << 20), tmp_path, standing)
    assert "too large" in missing(bundle)["blackboxes/job/0.blackbox"]
    assert written.faults == {EvidenceFault.SIZE: 1}
    assert json.loads((bundle / "verdict.json").read_text())["state"] == "stalled"
    assert sum(path.stat().st_size for path in bundle.rglob("*") if path.is_file()) <= 1 << 20


@pytest.mark.parametrize(
    ("command", "why"),
    [
        (("/nowhere/python",), "could not start python: "),
        (
            ("/bin/sh", "-c", "echo could not read it: no numpy >&2; exit 2"),
            "sh ended with status 2: could not",
        ),
        (("/bin/sh", "-c", "echo not JSON"), "the diagnosis printed no JSON: "),
        (("/bin/sh", "-c", "echo 7"), "the diagnosis printed no JSON object"),
        (("/bin/sh", "-c", "printf '[%.0s' $(seq 100000)"), "the diagnosis printed no JSON: "),
    ],
)
def test_diagnosis_failure(
    tmp_path: Path, standing: RankCondition, command: tuple[str, ...], why: str
) -> None:
    written, bundle = write(writer(diagnosis=command), tmp_path, standing)
    assert json.loads((bundle / "verdict.json").read_text())["error"].startswith(why)
    assert missing(bundle)["verdict"].startswith(why)
    assert (written.root_causes, written.faults) == ((), {EvidenceFault.VERDICT: 1})


@pytest.mark.parametrize(
    ("answer", "named"),
    [
        ('{"state": "x", "ranks": [], "hang": {"state": "desync", "ranks": [3, 2, 3]}}', [2, 3]),
        ('{"state": "lost", "ranks": [5], "hang": {"ranks": []}}', [5]),
        ('{"state": "running", "ranks": [5], "hang": {"ranks": []}}', []),
        ('{"state": "lost", "ranks": [1, -1]}', []),
        ('{"state": "lost", "ranks": ["1"]}', []),
        ('{"state": "lost", "ranks": [true]}', []),
        ('{"state": "lost", "ranks": {"1": 2}, "hang": []}', []),
        (json.dumps({"state": "lost", "ranks": [*range(17)]}), []),
    ],
)
def test_root_causes_of_the_diagnosis(
    tmp_path: Path, standing: RankCondition, answer: str, named: list[int]
) -> None:
    written, _ = write(writer(diagnosis=("/bin/sh", "-c", f"echo '{answer}'")), tmp_path, standing)
    assert [each.rank for each in written.root_causes] == named


def test_number_of_ranks_is_bounded(tmp_path: Path, standing: RankCondition) -> None:
    """A training process can create any number of black boxes."""
    boxes = [standing.path.with_name(f"{number}.blackbox") for number in range(3000)]
    ranks = [standing._replace(rank=number, path=path) for number, path in enumerate(boxes)]
    _, bundle = write(writer(max_bytes=1 << 30), tmp_path, *ranks)
    assert missing(bundle)["2936 ranks"] == "a bundle holds 64"


def test_no_manifest(tmp_path: Path, standing: RankCondition) -> None:
    """A bundle without a manifest fails, and the caller gets the reason."""
    path = tmp_path / "bundle"
    path.mkdir()
    (path / "manifest.json").mkdir()
    with pytest.raises(EvidenceError, match=r"could not write manifest.json: File exists"):
        writer().write(incident([standing]), path)


def test_stopped_rank(tmp_path: Path, standing: RankCondition) -> None:
    """The bundle says that its process is stopped, for the diagnosis, and nobody waits for its recorder."""
    with listening_at(standing.path.with_suffix(".sock")) as listening:
        os.kill(standing.pid, signal.SIGSTOP)
        until(lambda: "State:\tT" in Path(f"/proc/{standing.pid}/status").read_text(), "it is stopped")
        _, bundle = write(writer(), tmp_path, standing)
        listening.setblocking(False)
        with pytest.raises(BlockingIOError):
            listening.accept()
    assert "State:\tT" in (bundle / "stacks" / "0.process.txt").read_text()
    assert (bundle / "blackboxes" / "job" / "0.blackbox").exists()
    process = saved(bundle)["process"]
    assert (process["pid"], process["state"]) == (standing.pid, "T")
    assert missing(bundle)["flight_recorder/0.json"] == "the process of the rank is stopped (state T)"


@pytest.mark.parametrize(
    ("code", "name", "begins"),
    [
        ("os.kill(os.getpid(), signal.SIGTERM)", "0.terminated.txt", "Current thread "),
        ("os.abort()", "0.crashed.txt", "Fatal Python error: Aborted"),
    ],
)
def test_own_stacks(code: str, name: str, begins: str, tmp_path: Path) -> None:
    """What a rank wrote itself when it received SIGTERM, or crashed."""
    with rank(tmp_path / "boxes", f"import signal; steps(1); ready(); {code}") as process:
        go_on(process)
        process.wait()
        _, bundle = write(writer(), tmp_path, boxed(tmp_path / "boxes" / "job" / "0.blackbox"))
    assert (bundle / "stacks" / name).read_text().startswith(begins)


def test_log_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The newest lines of each rank, also of the attempt before; without credentials that a rank prints, and
    with nothing raw in it that would steer the terminal of who looks at the file."""
    monkeypatch.setenv("RANKWATCH_LOG_LINES", "1")
    said = "no answer of https://u:pw@store/ck?sig=x \\x9b\\u202e"
    code = f"import logging\nlogging.basicConfig()\nlogging.error('{said}')\nready()\ntime.sleep(1000)"
    with rank(tmp_path / "boxes", code):
        pass
    with rank(tmp_path / "boxes", code):
        box = tmp_path / "boxes" / "job" / "0.blackbox"
        result, bundle = write(writer(), tmp_path, boxed(box))
    for suffix in ("lines", "lines-before"):
        text = (bundle / "logs" / f"0.{suffix}.jsonl").read_text()
        assert text.replace("\n", "").isprintable()
        entry, _ = map(json.loads, text.splitlines())
        assert entry["text"] == "root: no answer of https://store/ck \x9b\u202e"
        assert (entry["severity"], entry["source"]) == (17, "log")
    assert not result.faults


def test_notes(tmp_path: Path, standing: RankCondition) -> None:
    """What lies beside a box comes along, for `diagnose run`; no note that says nothing, and no link."""
    folder, killed = Folder.open(standing.path.parent), standing.path.with_suffix(".killed")
    for suffix in (".trackers", ".checkpoints"):
        standing.path.with_suffix(suffix).write_text("nonsense")
    killed.symlink_to("/etc/passwd")
    _, bundle = write(writer(), tmp_path, standing)
    kept = bundle / "blackboxes" / "job"
    assert [each.name for each in kept.iterdir()] == ["0.blackbox"]
    page = "https://mlflow.example/#/experiments/1/runs/2"
    write_note(folder, "0.trackers", [Tracker(TrackerKind.MLFLOW, "2", page)])
    note(standing.path, ("/data/step-3", 3, 1.0))
    killed.unlink()
    killed.write_text("Memory cgroup out of memory: Killed process 7 (python3)")
    shutil.rmtree(bundle)
    write(writer(), tmp_path, standing)
    assert parse_note((kept / "0.trackers").read_bytes())[0].url == page
    assert read_checkpoints(kept / "0.checkpoints")[0].path == "/data/step-3"
    assert (kept / "0.killed").read_text() == killed.read_text()


@pytest.mark.parametrize("content", [b"no lines", b"\0" * FILE_BYTES, None])
def test_hostile_log_lines(tmp_path: Path, standing: RankCondition, content: bytes | None) -> None:
    """A file that is no ring of lines, or a link to another, is not copied, and the bundle says why."""
    path = standing.path.with_suffix(".lines")
    if content is None:
        path.symlink_to("/etc/passwd")
    else:
        path.write_bytes(content)
    result, bundle = write(writer(), tmp_path, standing)
    assert result.faults == {EvidenceFault.LOG_LINES: 1}
    assert not (bundle / "logs" / "0.lines.jsonl").exists()
    assert "logs/0.lines.jsonl" in missing(bundle)
