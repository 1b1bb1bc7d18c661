"""`python -m tests.bench`, from the root of the repository: measure, print tables, write JSON.

Exit status 1 if a part could not be measured, else 0: a missed target shows in the table only.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from types import MappingProxyType

from .processes import exit_on_signals
from .result import BenchError, Result, as_json, as_markdown

PARTS: Mapping[str, str] = MappingProxyType(
    {
        "hot-path": ".hot_path",
        "training": ".training",
        "agent": ".agent",
        "node": ".node",
        "traces": ".traces",
        "checkpoint-verify": ".checkpoint_verify",
        "fingerprint": ".fingerprint",
        "zero-code": ".zero_code",
        "zero-code-cost": ".zero_code_cost",
    }
)
"""Part -> the module with its `measure(quick=...)`; imported only when chosen."""

_FAILED_STATUS = 1


def main(arguments: Sequence[str]) -> int:
    """Measure the chosen parts. Returns the exit status."""
    given = _parser().parse_args(arguments)
    exit_on_signals()
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
        (given.output / f"{part}.json").write_text(as_json(result, part, quick=given.quick))
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
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


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
