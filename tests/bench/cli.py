"""The command line of the benchmarks. Exit status 1 where a part could not be measured, else 0."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from types import MappingProxyType

from .errors import BenchError
from .interruption import leave_on_signals
from .machine import describe_machine
from .result import Result
from .table import as_markdown

PARTS: Mapping[str, str] = MappingProxyType(
    {
        "hot-path": ".hot_path",
        "training": ".training",
        "agent": ".agent",
        "node": ".node",
    }
)
"""Part -> the module with its `measure(quick=...)`; imported only when chosen."""

_FAILED_STATUS = 1


def main(arguments: Sequence[str]) -> int:
    """Measure the parts chosen. A target that is missed is shown, and no failure."""
    given = _parser().parse_args(arguments)
    leave_on_signals()
    given.output.mkdir(parents=True, exist_ok=True)
    status = 0
    for part in given.parts or PARTS:
        measure: Callable[..., Result] = import_module(PARTS[part], __package__).measure
        try:
            result = measure(quick=given.quick)
        except BenchError as error:
            print(f"bench {part}: {error}", file=sys.stderr)
            status = _FAILED_STATUS
            continue
        print(as_markdown(result), flush=True)
        (given.output / f"{part}.json").write_text(_as_json(part, result, quick=given.quick))
    return status


def _as_json(part: str, result: Result, *, quick: bool) -> str:
    document = {
        "part": part,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "quick": quick,
        "machine": describe_machine(),
        **asdict(result),
        "rows": [row._asdict() for row in result.rows],
    }
    return json.dumps(document, indent=2) + "\n"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument(
        "parts", nargs="*", metavar="PART", type=_part, help=f"{', '.join(PARTS)}; default all"
    )
    parser.add_argument("--quick", action="store_true", help="a short form, to see that everything runs")
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("bench-results"),
        metavar="DIR",
        help="where the JSON goes (default bench-results)",
    )
    return parser


def _part(name: str) -> str:
    if name not in PARTS:
        raise argparse.ArgumentTypeError(f"part is {name!r}, expected one of {', '.join(PARTS)}")
    return name
