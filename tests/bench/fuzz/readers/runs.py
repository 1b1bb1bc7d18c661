"""Directories of runs: black boxes with all that lies beside them, and evidence bundles."""

from __future__ import annotations

import contextlib
import io
import json
import os
import time
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from unittest import mock

from bench.simulation.black_boxes import BEGAN_MONOTONIC, write_job_boxes
from bench.simulation.hang import HangFault, HangKind
from bench.simulation.hang_job import HangJob, simulate_hang, write_hang_boxes, write_snapshots
from bench.simulation.job import Job, simulate
from bench.simulation.program import JobShape
from bench.simulation.workload import Fault
from rankwatch.blackbox import layout
from rankwatch.blackbox.reader import Reader as BoxReader
from rankwatch.conventions.states import Cause
from rankwatch.conventions.vocabulary import CHECKPOINT_OPERATIONS
from rankwatch.errors import BlackBoxError
from rankwatch.logs.lines import LineWriter, Source, read_lines_at
from rankwatch.sweep import sweep
from rankwatch.untrusted.folders import Folder
from rankwatch_agent.incidents.bundle import EvidenceError
from rankwatch_agent.incidents.rank_files import _json_lines, _last_records
from rankwatch_agent.runtime.exposition import Exposition, constant_labels
from rankwatch_agent.runtime.supervisor import Snapshot
from rankwatch_agent.training.collector import RanksCollector
from rankwatch_agent.training.life.failures import (
    TorchrunFiles,
    crash_in,
    find_now,
    left_behind,
    told_by_error_file,
    torchrun_paths,
)
from rankwatch_cli.commands import ls
from rankwatch_diagnosis.run.__main__ import print_words
from support.training.traced import Node, check_spans, train

from ..reader import COMMAND_REFUSES, Document, Reader, command, document, of_command

_SLOTS = 256
_STACK = '  File "/job/train.py", line 3, in <module>\n  File "/job/model.py", line 42, in forward\n'
_CRASH = "Fatal Python error: Aborted\n\nThread 0x00007fb5ddcb6b80 (most recent call first):\n" + _STACK
_STDERR = (
    "[rank0]:[E1123 ProcessGroupNCCL.cpp:685] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=42, OpType=ALLREDUCE) ran for 600012 ms\n"
    "terminate called after throwing an instance of 'c10::Error'\n"
    "  what():  CUDA error: out of memory\nFatal Python error: Segmentation fault\n\nCurrent thread 0x1:\n"
)


def _shrunk(box: bytes) -> bytes:
    """A box with a shorter ring: most of a real one is empty."""
    fields = list(layout.FIXED.unpack_from(box))
    assert fields[4:6] == [layout.NAME_COUNT, layout.DEFAULT_CAPACITY], fields[:10]
    fields[5], fields[9] = _SLOTS, layout.RING_OFFSET + _SLOTS * layout.RECORD_SIZE
    return layout.FIXED.pack(*fields) + box[layout.FIXED.size : fields[9]]


@cache
def _slow_run(base: Path) -> Document:
    shape = JobShape(data_parallel=2, pipeline_parallel=2, microbatches=2)
    fault = Fault(cause=Cause.SLOW_RANK, ranks=(2,), factor=1.3)
    job = simulate(Job(shape=shape, fault=fault, steps=16, with_work=True))
    write_job_boxes(job.table, shape, base / "slow", run="job")
    return document(base / "slow")


@cache
def _hung_bundle(base: Path) -> Document:
    """As an agent keeps it, with everything that a diagnosis looks at."""
    folder = base / "hung"
    job = HangJob(shape=JobShape(data_parallel=4), fault=HangFault(kind=HangKind.SLEEP, ranks=(2,)), steps=5)
    hang = simulate_hang(job)
    write_hang_boxes(hang, job, folder / "blackboxes", run="job")
    write_snapshots(hang.snapshots, folder / "flight_recorder", "json")
    process = {"pid": 7, "state": "D", "wait_channel": "nfs_wait", "cpu_wait_share": 0.5, "blocked": {"7": 9}}
    ranks = [
        {"rank": rank, "state": "running", "process": process, "flight_recorder_silent": rank == 3}
        for rank in range(4)
    ]
    shown = {"run": "job", "moment_monotonic_seconds": BEGAN_MONOTONIC + 60.0, "ranks": ranks}
    _write(folder / "ranks.json", json.dumps(shown))
    _write(folder / "stacks" / "2.crashed.txt", _CRASH)
    for page in ("before.prom", "after.prom"):
        _write(folder / "metrics" / page, _METRICS)
    _write(folder / "logs" / "1.lines.jsonl", "".join(map(_copied_line, range(6))))
    _write(folder / "manifest.json", json.dumps(MANIFEST))
    return document(folder)


MANIFEST = {
    "format": 1, "run": "job", "owner": 1000, "kind": "stall", "why": "none of the ranks made progress",
    "opened": "2026-11-01T00:00:00Z", "opened_timestamp_seconds": 1760000060.0, "node": "n0",
    "verdict": {"state": "hang", "ranks": [2]}, "files": [{"path": "ranks.json", "bytes": 10}],
    "missing": [{"what": "stacks/1.txt", "why": "py-spy is not on PATH"}],
}  # fmt: skip
_METRICS = """rankwatch_gpu_up{gpu="GPU-0"} 1
rankwatch_gpu_utilization_ratio{gpu="GPU-0"} 0.97
rankwatch_gpu_energy_joules_total{gpu="GPU-0"} 12345.5
rankwatch_gpu_clock_hertz{gpu="GPU-0",clock="sm"} 1.98e9
rankwatch_gpu_throttle_active{gpu="GPU-0",reason="power_brake"} 0
rankwatch_gpu_xid_errors_total{node="n0",gpu="3",xid="79"} 2
rankwatch_gpu_xid_last_timestamp_seconds{node="n0",gpu="3",xid="79"} 1e9
rankwatch_xid_info{xid="79",meaning="fell off the bus",severity="critical"} 1
rankwatch_host_oom_kills_total{node="n0"} 4
"""


def _copied_line(number: int) -> str:
    line = {"number": number, "time": 1.76e9 + number, "step": number, "severity": 9, "source": "log"}
    return json.dumps({**line, "text": f"step {number} loss 2.{number}"}) + "\n"


@cache
def _real_run(base: Path) -> Document:
    """Ranks that really ran and ended in three ways, one of them twice, with the files that they left."""
    runs = base / "real"
    for rank, how in enumerate(("lost", "failed", "lost")):
        train(runs, ranks=1, first=rank, world=3, steps=6, how=how)
    train(runs, ranks=1, world=3, steps=4, how="resumed", TORCHELASTIC_RESTART_COUNT="1")
    folder = runs / "job"
    for box in folder.rglob("*.blackbox"):
        box.write_bytes(_shrunk(box.read_bytes()))
    for rank in range(2):
        lines = LineWriter(Folder.open(folder), f"{rank}.lines")
        for number in range(30):
            lines.write(f"line {number} \x1b[31mred", source=Source(number % 3), severity=9, step=number)
    kinds = list(CHECKPOINT_OPERATIONS)
    entry = {"step": 5, "path": "/ck/step-5", "ended": 1.79e9, "failed": False, "error": ""}
    noted = [{"operation": each, **entry} for each in kinds]
    noted.append({**noted[0], "failed": True, "error": "OSError: no space left on device"})
    _write(folder / "0.checkpoints", json.dumps({"checkpoints": noted}))
    tracker = {"kind": "mlflow", "run": "a1", "url": "https://t/#/e/1", "endpoint": "https://t:5000"}
    _write(
        folder / "0.trackers", json.dumps({"trackers": [tracker, {"kind": "wandb", "run": "b", "url": ""}]})
    )
    _write(folder / "2.crashed", _CRASH)
    _write(folder / "1.terminated", _CRASH)
    _write(folder / "2.killed", "Memory cgroup out of memory: Killed process 77 (python3)")
    return document(runs)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def _all_runs(base: Path) -> list[Document]:
    return [_slow_run(base), _hung_bundle(base), _real_run(base)]


def _runs_only(base: Path) -> list[Document]:
    return [_slow_run(base), _real_run(base)]


def _with_lines(base: Path) -> list[Document]:
    lines = (".lines", ".jsonl")
    return [
        Document(files=each.files, changed=tuple(name for name in each.files if name.endswith(lines)))
        for each in (_hung_bundle(base), _real_run(base))
    ]


def _boxes(base: Path) -> list[Document]:
    found = [
        content
        for each in _all_runs(base)
        for name, content in each.files.items()
        if name.endswith(layout.SUFFIX)
    ]
    return [Document(files={"job/0.blackbox": each}) for each in found]


def _read_box(folder: Path) -> None:
    """All that a reader gives, and a second poll, as of a box that stays."""
    reader = BoxReader(folder / "job" / "0.blackbox")
    try:
        reader.writer_alive()
        now = reader.now()
        for columns in reader.read_to_end():
            for each in columns.records():
                reader.name(each.name)
        reader.poll()
        reader.header.wall(now.step_ended)
    finally:
        reader.close()
    list(_last_records(folder / "job" / "0.blackbox", time.monotonic()))


def _agent(folder: Path) -> None:
    """The agent's passes over the directory, with its page and its spans."""
    node = Node(folder)
    page = Exposition(constant_labels(node="n0", cluster="c"))
    for _ in range(2):
        page.render(Snapshot((node.read(),), ()), accept="", accept_encoding="")
    node.pass_time(2)
    node.traces.close()
    check_spans(node)


def _sweep(folder: Path) -> None:
    """What a training does first; nothing is old enough to be removed."""
    with Folder.open(folder) as boxes:
        sweep(boxes, kept_seconds=1e9)


def _notes(base: Path) -> list[Document]:
    real = _real_run(base).files
    return [Document(files={name: content}) for name, content in real.items() if name.endswith(".lines")]


def _accounts(base: Path) -> list[Document]:
    """A run, and the account that an agent has kept of its time."""
    run = _real_run(base)
    agent = RanksCollector(directory=base / "real", state_directory=base / "state")
    agent.collect()
    agent.ledgers.save()
    saved = {"goodput.json": (base / "state" / "goodput.json").read_bytes()}
    return [Document(files={**run.files, **saved}, changed=("goodput.json",))]


def _read_lines(folder: Path) -> None:
    """By a person, and into a bundle."""
    for path in folder.rglob("*.lines"):
        read_lines_at(path)
        b"".join(_json_lines(path, os.geteuid()))


def _left(base: Path) -> list[Document]:
    """What a dead rank leaves, with torchrun's error file, whose path is always the same."""
    extra = {"py_callstack": _STACK, "timestamp": "1763840000"}
    texts = (
        {"message": {"message": "torch.OutOfMemoryError: CUDA out of memory", "extraInfo": extra}},
        {"message": "KeyError: 'x'", "timestamp": 1763840001, "py_callstack": _STACK},
        {"message": "RuntimeError: [gloo/pair.cc] Connection closed by peer [10.0.0.1]:2033"},
    )
    found = []
    for text in texts:
        files = {"error.json": json.dumps(text), "0.crashed": _CRASH, "stderr.log": _STDERR}
        files["0.killed"] = "Out of memory: Killed process"
        found.append(Document(files={name: each.encode() for name, each in files.items()}))
    found.append(
        Document(files={each: found[0].files[each] for each in ("0.crashed", "stderr.log", "0.killed")})
    )
    return found


def _read_left(folder: Path) -> None:
    box = folder / "0.blackbox"
    pointer = folder / "0.error_file"
    pointer.write_text(str(folder / "error.json"))
    owner = os.geteuid()
    files = TorchrunFiles(*find_now(box, owner, torchrun_paths(box, owner)))
    failure = left_behind(box, owner, files)
    if failure is not None:
        told_by_error_file(box, files, failure)
        crash_in(folder / "0.crashed")
        assert failure.message.isprintable()
        json.dumps(failure._asdict())


def _of_run(
    name: str, *arguments: str, documents: Callable[[Path], Sequence[Document]] = _all_runs
) -> Reader:
    return Reader(name, documents, _command_on_run(*arguments), COMMAND_REFUSES, share=2)


def _command_on_run(*arguments: str) -> Callable[[Path], object]:
    """RUN stands for the directory of the run, or for the bundle."""

    def run(folder: Path) -> object:
        place = folder if (folder / "ranks.json").exists() else folder / "job"
        return command(*(each.replace("RUN", str(place)) for each in arguments))(folder)

    return run


def _list_runs(folder: Path) -> None:
    """What both processes of `rankwatch ls` do, without a new process for each input."""
    with mock.patch.object(ls, "_verdicts", lambda *_: {}):
        command("ls", "--directory", "{}")(folder)
    names = [json.dumps(str(each)) for each in sorted(folder.iterdir())]
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        print_words(names)
    assert len(printed.getvalue().splitlines()) == 1 + len(names)


READERS = (
    Reader("box", _boxes, _read_box, (BlackBoxError,), share=12),
    Reader("boxes by the agent", _runs_only, _agent, share=6),
    Reader("boxes by a training", _boxes, _sweep, share=4),
    Reader("lines", _notes, _read_lines, (BlackBoxError, EvidenceError), share=4),
    Reader("left by a dead rank", _left, _read_left, share=6),
    Reader("ls", _runs_only, _list_runs, COMMAND_REFUSES, share=2),
    _of_run("summary", "summary", "RUN"),
    _of_run("blackbox", "blackbox", "RUN", documents=_runs_only),
    _of_run("logs", "logs", "RUN", documents=_with_lines),
    _of_run("diagnose run", "diagnose", "run", "RUN", "--json"),
    _of_run("goodput", "goodput", "RUN", "--json"),
    of_command("account of time", _accounts, "goodput", "{}/job", "--account", "{}/goodput.json", "--json"),
    _of_run("report", "report", "RUN", "--evidence", "{}"),
    _of_run("trace", "trace", "RUN", "--chrome", "-"),
    _of_run("table", "table", "RUN"),
    _of_run("diagnose straggler of boxes", "diagnose", "straggler", "RUN", "--json"),
    _of_run("compare", "compare", "RUN", "RUN", "--json"),
)
