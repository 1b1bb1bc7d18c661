"""`python -m tests.bench.group_by`: the group-by primitives of the straggler engine beside pandas and polars.

rankwatch depends on neither of the two: install them into an environment of their own. Times are CPU
times, the least of three in one run. The engine reads the largest table of `detection_scale`.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rankwatch_agent.incidents.diagnosis import LIMITS
from rankwatch_diagnosis.operations.groups import Groups, cumcount

from .detection_scale import STEPS, write_job
from .result import Result, Row, as_markdown

LIBRARIES = ("numpy", "pandas", "polars")
RANKS = 16_384
_ROUNDS = 3
_THREADS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "POLARS_MAX_THREADS")

Primitive = Callable[[], Any]


def main(arguments: Sequence[str]) -> int:
    """Print the table; exit status 0 whatever the result is."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.group_by", description=__doc__)
    parser.add_argument("--one", nargs=2, metavar=("LIBRARY", "FILE"), help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.one is not None:
        print(json.dumps(_engine(*given.one)))
        return 0
    rows = [*_primitive_rows(), *_import_rows(), *_engine_rows()]
    print(as_markdown(Result(title=f"Group-by over {2 * RANKS * STEPS:,} rows", rows=tuple(rows))))
    return 0


def _primitive_rows() -> list[Row]:
    rows = []
    for name, by_library in _primitives().items():
        seconds = {library: min(_cpu(primitive) for _ in range(_ROUNDS)) for library, primitive in by_library}
        rows.append(
            Row(name, ", ".join(f"{library} {1e3 * each:.0f} ms" for library, each in seconds.items()))
        )
    return rows


def _primitives() -> Mapping[str, tuple[tuple[str, Primitive], ...]]:
    import pandas
    import polars

    columns = {
        "step": np.tile(np.repeat(np.arange(STEPS), RANKS), 2),
        "rank": np.tile(np.arange(RANKS), 2 * STEPS),
        "operation": np.repeat([0, 1], RANKS * STEPS),
        "seconds": np.random.default_rng(0).random(2 * RANKS * STEPS),
    }
    columns["cell"] = columns["step"] * RANKS + columns["rank"]
    pd, pl = pandas.DataFrame(columns), polars.DataFrame(columns)
    keys, values, cell = ("step", "rank", "operation"), columns["seconds"], columns["cell"]
    cells = Groups(cell, RANKS * STEPS)
    col = polars.col

    def reduction(name: str) -> tuple[tuple[str, Primitive], ...]:
        return (
            ("numpy", lambda: getattr(cells, name)(values)),
            ("pandas", lambda: getattr(pd.groupby("cell").seconds, name)().to_numpy()),
            ("polars", lambda: pl.group_by("cell").agg(getattr(col("seconds"), name)()).sort("cell")),
        )

    return {
        "groups by 3 keys": (
            ("numpy", lambda: Groups.by(*(columns[key] for key in keys))),
            ("pandas", lambda: pd.groupby(list(keys)).ngroup().to_numpy()),
            ("polars", lambda: pl.select(polars.struct(*keys).rank("dense")).to_series().to_numpy()),
        ),
        "cumcount": (
            ("numpy", lambda: cumcount(cell)),
            ("pandas", lambda: pd.groupby("cell").cumcount().to_numpy()),
            ("polars", lambda: pl.select(polars.int_range(polars.len()).over("cell")).to_series().to_numpy()),
        ),
        **{f"grouped {name}": reduction(name) for name in ("median", "sum", "mean", "min", "first")},
    }


def _cpu(primitive: Primitive) -> float:
    began = time.process_time()
    primitive()
    return time.process_time() - began


def _import_rows() -> list[Row]:
    limit = LIMITS.memory_bytes
    rows = []
    for library in LIBRARIES:
        script = f"import resource, {library}; print(open('/proc/self/status').read())"
        began = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
        status = _child("-c", script)
        seconds = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - began
        space, resident = (
            int(re.findall(rf"{key}:\s+(\d+)", status)[0]) >> 10 for key in ("VmPeak", "VmHWM")
        )
        within = "fits" if space < limit >> 20 else "does not fit"
        rows.append(
            Row(f"import {library}", f"{seconds:.2f} s, {resident} MiB, address space {space} MiB", within)
        )
    rows.append(Row("address space of the agent's verdict process", f"{limit >> 20} MiB"))
    return rows


def _engine_rows() -> list[Row]:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "job.parquet"
        write_job(path, RANKS, STEPS)
        rounds = [
            (library, json.loads(_child("-m", "tests.bench.group_by", "--one", library, str(path))))
            for _ in range(_ROUNDS)
            for library in ("numpy", "pandas")
        ]
    rows = []
    for library in ("numpy", "pandas"):
        best = min((each for name, each in rounds if name == library), key=lambda each: each["seconds"])
        rows.append(Row(f"engine on {library}", f"{best['seconds']:.2f} s, {best['peak_bytes'] >> 20} MiB"))
    return rows


def _engine(library: str, path: str) -> dict[str, Any]:
    """CPU seconds of one diagnosis; for pandas with its primitives instead of ours."""
    from rankwatch_diagnosis.operations.reading import read_operations
    from rankwatch_diagnosis.straggler.engine import diagnose

    if library == "pandas":
        _use_pandas()
    table = read_operations(Path(path)).table
    seconds = _cpu(lambda: diagnose(table))
    return {"seconds": seconds, "peak_bytes": 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss}


def _use_pandas() -> None:
    import pandas

    def by(*keys: Any) -> Groups:
        groups = pandas.DataFrame(dict(enumerate(keys))).groupby(list(range(len(keys))))
        return Groups(groups.ngroup().to_numpy(), groups.ngroups)

    def median(groups: Groups, values: Any) -> Any:
        found = pandas.Series(values).groupby(groups.number).median()
        return found.reindex(range(groups.count)).to_numpy()

    def counted(key: Any, order: Any = None) -> Any:
        order = np.arange(len(key)) if order is None else order
        number = np.empty(len(key), dtype=np.int64)
        number[order] = pandas.Series(key[order]).groupby(key[order], sort=False).cumcount().to_numpy()
        return number

    for name, method in {"by": staticmethod(by), "median": median}.items():
        setattr(Groups, name, method)
    for module in [each for each in sys.modules.values() if each.__name__.startswith("rankwatch_diagnosis.")]:
        if hasattr(module, "cumcount"):
            module.cumcount = counted  # type: ignore[attr-defined]


def _child(*arguments: str) -> str:
    environ = {**os.environ, **dict.fromkeys(_THREADS, "1")}
    return subprocess.run(
        [sys.executable, *arguments], env=environ, capture_output=True, text=True, check=True
    ).stdout


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
