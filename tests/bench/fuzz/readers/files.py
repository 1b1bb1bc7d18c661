"""Files that a user hands over, or leaves where the agent looks: dumps, tables, traces, logs, prices."""

from __future__ import annotations

import gzip
import json
import pickle
import signal
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet

from bench.simulation.hang import HangFault, HangKind
from bench.simulation.hang_job import HangJob, simulate_hang, write_snapshots
from bench.simulation.program import JobShape
from rankwatch_agent.incidents.evidence import BundleStore
from rankwatch_agent.runtime.errors import UserError
from rankwatch_agent.training.cost.price_table import load_price_table
from rankwatch_diagnosis.hang.dump_files import read_source
from rankwatch_diagnosis.hang.engine import diagnose as diagnose_hang
from rankwatch_diagnosis.hang.worker import _Worker
from rankwatch_diagnosis.loss.detection import diagnose as diagnose_loss
from rankwatch_diagnosis.operations.reading import read_operations
from rankwatch_diagnosis.operations.writing import write_table
from rankwatch_diagnosis.review.incidents import incidents_of
from rankwatch_profiler_traces.reading import read_traces
from rankwatch_trainer.faults import FaultFile
from support.diagnosis.kineto import GpuJob, TraceForm, write_traces
from support.diagnosis.operations import SmallJob
from support.training.recorder import completed, entry, recorder_pickle, reply

from ..reader import (
    COMMAND_REFUSES,
    MOST_SECONDS,
    Document,
    Reader,
    RefusedError,
    command,
    document,
    of_command,
    single,
    watched,
)
from .runs import MANIFEST

REPLY = reply(*(completed(number, 1.5) for number in range(4)), entry(4), enqueued=5, done=4)


@cache
def _snapshots(base: Path) -> list[Path]:
    """Directories of dumps of hung jobs, as pickles and as JSON."""
    found = []
    shapes = {
        HangKind.SLEEP: JobShape(data_parallel=3),
        HangKind.OTHER_SIZE: JobShape(data_parallel=2, pipeline_parallel=2, microbatches=2),
    }
    for kind, shape in shapes.items():
        hang = simulate_hang(HangJob(shape=shape, fault=HangFault(kind=kind, ranks=(1,)), steps=5))
        for form in ("pickle", "json"):
            folder = base / f"dumps-{kind}-{form}"
            folder.mkdir()
            write_snapshots(hang.snapshots, folder, form)
            found.append(folder)
    return found


def _dumps(base: Path) -> list[Document]:
    contents = [path.read_bytes() for folder in _snapshots(base) for path in sorted(folder.iterdir())[:2]]
    contents += [
        recorder_pickle(_tuples(reply(*map(entry, range(4)), enqueued=4))),
        pickle.dumps(REPLY, 4),
        json.dumps(REPLY).encode(),
    ]
    return single(*contents, name="_dump_1")


def _tuples(value: Any) -> Any:
    """As the recorder has it: names of groups are tuples."""
    if isinstance(value, dict):
        return {key: tuple(each) if key == "process_group" else _tuples(each) for key, each in value.items()}
    return [_tuples(each) for each in value] if isinstance(value, list) else value


@cache
def _workers() -> list[_Worker]:
    """The worker that reads dumps, once there is one."""
    return []


def _read_dump(folder: Path) -> None:
    """By a worker that stays, as `read_dumps` has it; then by the engine."""
    workers = _workers()
    if not workers:
        workers.append(_Worker(None))
    with watched(workers[0]._process.pid):
        answer = workers[0].ask(1, folder / "_dump_1", MOST_SECONDS)
    if answer is None:
        ended = workers.pop()
        ended.end()
        if ended._process.returncode not in (-signal.SIGXCPU, -signal.SIGKILL):
            raise AssertionError(f"its worker ended with status {ended._process.returncode}")
        raise RefusedError("it takes too long")
    if answer.snapshot is None:
        raise RefusedError(answer.error)
    diagnose_hang([answer.snapshot])


def _json_files(base: Path) -> list[Document]:
    """All ranks of a job in one file: a list, an object by rank, lines with several snapshots of a rank."""
    documents = [json.loads(each.read_bytes()) for each in sorted(_snapshots(base)[1].iterdir())]
    wrapped = [{"rank": rank, "time_seconds": 1.76e9, "dump": each} for rank, each in enumerate(documents)]
    later = [{**each, "time_seconds": 1.76e9 + 60} for each in wrapped]
    return single(
        json.dumps(documents).encode(),
        json.dumps({"snapshots": {f"rank_{rank}": each for rank, each in enumerate(documents)}}).encode(),
        "".join(json.dumps(each) + "\n" for each in [*wrapped, *later]).encode(),
        name="snapshots.json",
    )


def _directories(base: Path) -> list[Document]:
    return [document(each) for each in _snapshots(base)]


def _read_source(folder: Path) -> None:
    found = read_source(folder / "snapshots.json")
    diagnose_hang(found.snapshots, broken=found.broken)


def _diagnose_table(folder: Path) -> object:
    return command("diagnose", "straggler", str(_only(folder)), "--json")(folder)


@cache
def _tables(base: Path) -> list[Document]:
    table = SmallJob(dp=3, pp=2, microbatches=2, steps=6).table()
    found = []
    for form in ("csv", "csv.gz", "jsonl", "parquet"):
        path = base / f"operations.{form}"
        write_table(table, path, form)
        found.append(Document(files={path.name: path.read_bytes()}))
    whole = pyarrow.parquet.read_table(base / "operations.parquet")
    for number, changed in enumerate(_casts(whole)):
        path = base / f"cast-{number}.parquet"
        pyarrow.parquet.write_table(changed, path, compression=("none", "zstd", "gzip")[number % 3])
        found.append(Document(files={"operations.parquet": path.read_bytes()}))
    return found


def _casts(table: pa.Table) -> list[pa.Table]:
    """The table with columns of other types, as other writers choose them."""
    step, names = table.column("step"), table.column("operation").cast(pa.string())

    def replaced(name: str, column: pa.ChunkedArray | pa.Array) -> pa.Table:
        return table.set_column(table.column_names.index(name), name, column)

    count = len(table)
    return [
        replaced("step", step.cast(pa.float64())),
        replaced("step", step.cast(pa.string())),
        replaced("rank", pa.array([None] * count, pa.int32())),
        replaced("rank", table.column("rank").cast(pa.decimal128(30, 3))),
        replaced("operation", names.dictionary_encode()),
        replaced("operation", names.cast(pa.large_binary())),
        replaced("group", pa.array([["a"]] * count)),
        replaced("kind", pa.array([{"a": 1}] * count)),
        replaced("start_seconds", pa.array(np.arange(count)).cast(pa.timestamp("us"))),
        replaced("duration_seconds", pa.array([True] * count)),
    ]


def _only(folder: Path) -> Path:
    return next(each for each in folder.iterdir())


@cache
def _traces(base: Path) -> list[Document]:
    job = GpuJob(ranks=2, steps=4, kernels=3, slow={1: 1.3})
    write_traces(base / "traces", job)
    write_traces(base / "packed", GpuJob(ranks=2, steps=3, kernels=2, blocking=True), packed=True)
    write_traces(base / "bare", job, TraceForm(annotate_steps=False, mark_phases=False))
    return [document(base / each) for each in ("traces", "packed", "bare")]


def _losses(_: Path) -> list[Document]:
    rows = [
        (number, 10.0 / (1 + number) + 0.01 * (number * 7 % 5), 1.0 + number % 3) for number in range(120)
    ]
    csv = "step,loss,grad_norm,loss_scale\n" + "".join(f"{a},{b:.4f},{c},65536\n" for a, b, c in rows)
    log = "".join(f"iteration {a}/ 500 | lm loss: {b:.4E} | grad norm: {c} |\n" for a, b, c in rows)
    lines = "".join(json.dumps({"step": a, "loss": b, "grad_norm": c}) + "\n" for a, b, c in rows)
    plain = {"loss.csv": csv, "train.log": log, "loss.jsonl": lines, "loss.tsv": csv.replace(",", "\t")}
    found = [{name: text.encode()} for name, text in plain.items()]
    found += [{f"{name}.gz": gzip.compress(plain[name].encode())} for name in ("loss.csv", "train.log")]
    return [Document(files=each) for each in found]


PRICES = b"""[[price]]
gpu_model = "NVIDIA H100*"
price_per_hour = 3.5
currency = "USD"
basis = "list"
valid_from = 2026-01-01
valid_until = 2026-07-01T00:00:00+02:00
source = "price list"

[[budget]]
run = "llama-*"
amount = 1000
currency = "EUR"
basis = "contracted"
"""


def _read_prices(folder: Path) -> None:
    table = load_price_table(folder / "document")
    table.of("NVIDIA H100 80GB HBM3", 1.77e9)
    table.budget(["llama-3", "x"])


def _bundles(_: Path) -> list[Document]:
    names = (f"2026110{day}T000000Z-job-stall/manifest.json" for day in (1, 2))
    return [Document(files=dict.fromkeys(names, json.dumps(MANIFEST).encode()))]


def _read_bundles(folder: Path) -> None:
    for each in incidents_of("job", folder)[0]:
        str(each.event())
    store = BundleStore(folder, max_bundles=8)
    store.make_room()


FAULTS = b"""# slow down
straggler:rank=2,factor=1.5,from=50,until=200
kill:rank=1
stall:seconds=2,from=+0,until=+5
"""


def _read_faults(folder: Path) -> None:
    for each in FaultFile(folder / "document", 4).faults(30):
        each.strikes(2, 51)


READERS = (
    Reader("dump", _dumps, _read_dump, (RefusedError,), share=8),
    of_command("diagnose hang of a directory", _directories, "diagnose", "hang", "{}"),
    Reader("snapshots in one file", _json_files, _read_source, (UserError,), share=4),
    Reader("table of operations", _tables, lambda at: read_operations(_only(at)), (UserError,), share=8),
    Reader("diagnose straggler of a table", _tables, _diagnose_table, COMMAND_REFUSES, share=2),
    Reader("traces of the profiler", _traces, read_traces, (UserError,), share=4),
    of_command("diagnose trace", _traces, "diagnose", "trace", "{}"),
    Reader("log of losses", _losses, lambda folder: diagnose_loss(_only(folder)), (UserError,), share=6),
    Reader("price table", lambda _: single(PRICES), _read_prices, (UserError,), share=4),
    Reader("manifests of incidents", _bundles, _read_bundles, share=3),
    Reader("fault file of the trainer", lambda _: single(FAULTS), _read_faults, share=2),
)
