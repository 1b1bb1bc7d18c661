"""`python -m tests.bench.hang_scale`: hang diagnosis of many dumps beside PyTorch's `torchfrtrace`.

Both read the same files. `--ranks 1024 --entries 2000` is the size of a large job.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from support.training.recorder import completed, entry, recorder_pickle

from .process_usage import run
from .result import Result, Row, as_markdown

_TENSOR = 8
_TIMES_FASTER = 10.0
_START_NS = 1_758_610_505_000_000_000
_OURS = (sys.executable, "-m", "rankwatch_cli", "diagnose", "hang", "--json")
_THEIRS = (sys.executable, "-m", "torch.distributed.flight_recorder.fr_trace")


def compare(ranks: int, entries: int) -> Result:
    """Write dumps of a job in which one rank sleeps, and diagnose them with both programs."""
    with tempfile.TemporaryDirectory(prefix="rankwatch-hang-") as name:
        sleeper = ranks // 2 + 1
        for rank in range(ranks):
            document = dump(rank, ranks, entries, sleeper)
            (Path(name) / f"_dump_{rank}").write_bytes(recorder_pickle(document))
        ours, theirs = run((*_OURS, name)), run((*_THEIRS, name))
    verdict = json.loads(ours.output)
    right = verdict["state"] == "hang" and verdict["ranks"] == [sleeper]
    faster = theirs.seconds / ours.seconds
    rows = (
        Row("rankwatch diagnose hang", f"{ours.seconds:.1f} s, {ours.peak_bytes / 2**20:.0f} MiB"),
        Row("torchfrtrace", f"{theirs.seconds:.1f} s, {theirs.peak_bytes / 2**20:.0f} MiB"),
        Row("times faster", f"{faster:.1f}", target=f">= {_TIMES_FASTER:.0f}", met=faster >= _TIMES_FASTER),
        Row("the sleeping rank is named, and no other", "yes" if right else "no", target="yes", met=right),
    )
    return Result(
        title=f"Hang diagnosis of {ranks} dumps of {entries} entries",
        rows=rows,
        notes=("Wall-clock time of the whole program, its start included; both read the same files.",),
        samples={"ours_seconds": ours.seconds, "torchfrtrace_seconds": theirs.seconds},
    )


def dump(rank: int, ranks: int, entries: int, sleeper: int) -> dict[str, object]:
    """The recorder of one rank: tensor-parallel collectives, every 20th one data-parallel.

    The sleeper sleeps before its last collective. Its tensor-parallel neighbours wait there, all other ranks
    in the data-parallel collective after it.
    """
    block = rank // _TENSOR * _TENSOR
    groups = (
        ("0", "default_pg", range(ranks)),
        (f"{1 + rank // _TENSOR}", "TENSOR_MODEL_PARALLEL_GROUP", range(block, block + _TENSOR)),
        (f"{1000 + rank % _TENSOR}", "DATA_PARALLEL_GROUP", range(rank % _TENSOR, ranks, _TENSOR)),
    )
    waits_at = entries // 20 * 20 - 5
    if sleeper // _TENSOR != rank // _TENSOR:
        waits_at += 4  # the next data-parallel collective
    last = waits_at if rank == sleeper else waits_at + 1
    numbers = [0, 0, 0]
    found = []
    for index in range(last):
        local = 2 if index % 20 == 19 else 1
        numbers[local] += 1
        found.append(_entry(index, local, groups[local][:2], numbers[local], index < waits_at))
    names = [f"last_{each}_collective" for each in ("enqueued", "started", "completed")]
    status = {str(local): dict.fromkeys(names, number) for local, number in enumerate(numbers)}
    config = {name: {"name": name, "desc": text, "ranks": str(list(each))} for name, text, each in groups}
    return {"version": "2.9", "pg_config": config, "pg_status": status, "entries": found}


def _entry(index: int, local: int, group: tuple[str, str], number: int, done: bool) -> dict[str, object]:
    created, size, types = _START_NS + index * 1_000_000, [[4096, 1, 5120 + local]], ["BFloat16"]
    return (completed if done else entry)(
        index,
        pg_id=local,
        process_group=group,
        thread_name="python3",
        thread_id="140299556887424",
        collective_seq_id=number,
        p2p_seq_id=0,
        op_id=number,
        input_sizes=size,
        input_dtypes=types,
        output_sizes=size,
        output_dtypes=types,
        time_created_ns=created,
        time_discovered_started_ns=None,
        time_discovered_completed_ns=created + 900_000 if done else None,
    )


def main(arguments: Sequence[str]) -> int:
    """Print the table. Exit status 0 whatever the result is."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.hang_scale", description=__doc__)
    parser.add_argument("--ranks", type=int, default=64, help="a multiple of 8, at least 16 (default 64)")
    parser.add_argument("--entries", type=int, default=500, help="of each rank (default 500)")
    given = parser.parse_args(arguments)
    print(as_markdown(compare(given.ranks, given.entries)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
