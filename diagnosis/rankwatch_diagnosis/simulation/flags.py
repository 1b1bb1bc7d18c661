"""The flags of `rankwatch simulate`. Needs no NumPy."""

from __future__ import annotations

from argparse import ArgumentTypeError
from pathlib import Path

from rankwatch.conventions import Cause, SlowPhase
from rankwatch.settings import SentenceParser
from rankwatch_diagnosis.simulation.hangs.fault import HangKind, Plane
from rankwatch_diagnosis.simulation.hangs.groups import Naming

SLOWDOWNS = tuple(cause for cause in Cause if cause is not Cause.INCONCLUSIVE)
PHASES = tuple(phase for phase in SlowPhase if phase is not SlowPhase.CHECKPOINT)
HANGS = tuple(kind for kind in HangKind if kind is not HangKind.NONE)
TABLES = ("csv", "csv.gz", "jsonl", "parquet")
DUMPS = ("pickle", "json")


def simulate_parser() -> SentenceParser:
    """Flags for the shape of the job, for its fault, and for the files."""
    parser = SentenceParser(
        prog="rankwatch simulate",
        description=(
            "Simulate a training job with a known fault. A slowdown writes a table of operations, a hang\n"
            "one flight-recorder dump for each rank. The truth is printed, and written to truth.json."
        ),
    )
    parser.add_argument("output", type=Path, metavar="DIR", help="new or empty directory for the files")
    parser.add_argument(
        "--format",
        action="append",
        choices=(*TABLES, *DUMPS),
        metavar="FORMAT",
        help=f"{', '.join(TABLES)}; of dumps {', '.join(DUMPS)}; can be repeated",
    )
    parser.add_argument(
        "--black-boxes",
        type=Path,
        metavar="DIR",
        help="write one black box for each rank, too: DIR/simulated/RANK.blackbox; new or empty directory",
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="the same job again (default 0)")
    _shape_flags(parser)
    _fault_flags(parser)
    _hang_flags(parser)
    return parser


def _shape_flags(parser: SentenceParser) -> None:
    flags = parser.add_argument_group("job")
    for name, default, text in (
        ("data-parallel", 8, "replicas"),
        ("pipeline-parallel", 1, "stages"),
        ("tensor-parallel", 1, "shards of a stage"),
        ("microbatches", 4, "microbatches of a replica in a step"),
        ("steps", 40, "steps"),
    ):
        flags.add_argument(
            f"--{name}", type=int, default=default, metavar="N", help=f"{text} (default {default})"
        )
    flags.add_argument(
        "--sigma", type=float, default=0.03, metavar="X", help="log-normal noise of compute (default 0.03)"
    )
    flags.add_argument("--work", action="store_true", help="put work units into the table")


def _fault_flags(parser: SentenceParser) -> None:
    flags = parser.add_argument_group("fault")
    flags.add_argument(
        "--fault",
        choices=(*map(str, SLOWDOWNS), *map(str, HANGS)),
        default=str(Cause.NONE),
        metavar="FAULT",
        help=f"slowdown: {', '.join(SLOWDOWNS)}; hang: {', '.join(HANGS)} (default none)",
    )
    flags.add_argument("--ranks", type=_numbers, metavar="N,N", help="culprits (default: by chance)")
    flags.add_argument("--culprits", type=int, default=1, metavar="N", help="how many, by chance (default 1)")
    flags.add_argument(
        "--phase",
        choices=tuple(map(str, PHASES)),
        default=str(SlowPhase.COMPUTE),
        metavar="PHASE",
        help=f"what takes longer on a slow rank: {', '.join(PHASES)} (default compute)",
    )
    flags.add_argument("--stage", type=int, metavar="N", help="the heavy one, for fault slow_stage")
    flags.add_argument("--factor", type=float, default=1.2, metavar="X", help="how much slower (default 1.2)")
    flags.add_argument(
        "--probability", type=float, default=0.05, metavar="X", help="of a pause, for jitter (default 0.05)"
    )
    flags.add_argument("--first-step", type=int, metavar="N", help="default 0; of a hang 3")
    flags.add_argument("--duration", type=int, metavar="N", help="in steps (default: to the end)")
    flags.add_argument("--period", type=int, metavar="N", help="come and go, every so many steps")


def _hang_flags(parser: SentenceParser) -> None:
    flags = parser.add_argument_group("hang")
    flags.add_argument(
        "--plane",
        choices=tuple(map(str, Plane)),
        default=str(Plane.DATA),
        metavar="PLANE",
        help=f"groups of the struck operation: {', '.join(Plane)} (default data)",
    )
    flags.add_argument(
        "--occurrence", type=int, default=0, metavar="N", help="which operation of the step there (default 0)"
    )
    flags.add_argument(
        "--run-ahead",
        type=int,
        default=0,
        metavar="N",
        help="operations that hosts queue ahead of their devices (default 0)",
    )
    flags.add_argument("--only-active", action="store_true", help="dump what has not completed, nothing else")
    flags.add_argument(
        "--group-names",
        choices=tuple(map(str, Naming)),
        default=str(Naming.MEGATRON),
        metavar="STYLE",
        help=f"{', '.join(Naming)} (default megatron)",
    )


def _numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise ArgumentTypeError(f"{text!r} is no list of ranks such as 3,5") from error
