"""`rankwatch simulate`: write what a job with a known fault leaves behind, and the truth about it."""

from __future__ import annotations

import random
from argparse import ArgumentTypeError, Namespace
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rankwatch.conventions.states import Cause, SlowPhase
from rankwatch.errors import BlackBoxError
from rankwatch.settings import SentenceParser
from rankwatch_agent.runtime.errors import UserError
from rankwatch_cli.output import as_json, show_json
from rankwatch_diagnosis.simulation.hangs.fault import HangFault, HangKind, Naming, Plane
from rankwatch_diagnosis.simulation.shape import JobShape

_SLOWDOWNS = tuple(cause for cause in Cause if cause is not Cause.INCONCLUSIVE)
_PHASES = tuple(phase for phase in SlowPhase if phase is not SlowPhase.CHECKPOINT)
_LEVELS = ("clean", "real")
_BARRIERS = ("last_stage", "first_replica", "replica", "job")
_LEFT_OUT = ("sends", "receives", "groups")
_HANGS = tuple(kind for kind in HangKind if kind is not HangKind.NONE)
_TABLES = ("csv", "csv.gz", "jsonl", "parquet")
_DUMPS = ("pickle", "json")

DUMPS_FOLDER = "flight_recorder"
TRUTH_FILE = "truth.json"
RUN = "simulated"
"""Name of the run in black boxes."""

_HANG_STEP = 3
"""Late enough that the dumps show operations that went well."""


def main(arguments: Sequence[str]) -> int:
    """Write the job's files and print the truth; returns 0. Raises UserError."""
    given = _parser().parse_args(arguments)
    shape = JobShape(
        data_parallel=given.data_parallel,
        pipeline_parallel=given.pipeline_parallel,
        tensor_parallel=given.tensor_parallel,
        microbatches=given.microbatches,
    )
    hangs = given.fault in _HANGS
    forms = given.format or [_DUMPS[0] if hangs else _TABLES[0]]
    for form in forms:
        if form not in (expected := _DUMPS if hangs else _TABLES):
            raise UserError(f"--format is {form!r}, expected {' or '.join(expected)} for fault {given.fault}")
    if given.level == "real" and (hangs or given.black_boxes is not None):
        raise UserError("--as real writes tables of operations only, of slowdowns")
    _check_empty(given.output)
    if given.black_boxes is not None:
        _check_empty(given.black_boxes)
    truth = (_hang if hangs else _slowdown)(given, shape, forms)
    _write(lambda: (given.output / TRUTH_FILE).write_text(f"{as_json(truth, indent=2)}\n"), given.output)
    show_json(truth, indent=2)
    return 0


def _slowdown(given: Namespace, shape: JobShape, forms: Sequence[str]) -> dict[str, object]:
    # Only here: the simulation needs NumPy.
    from rankwatch_cli.commands.simulated_job import job_of
    from rankwatch_diagnosis.operations.writing import write_table
    from rankwatch_diagnosis.simulation.black_boxes import write_job_boxes
    from rankwatch_diagnosis.simulation.job import simulate

    ranks = _ranks(given, shape, needed=given.fault == Cause.SLOW_RANK)
    job = simulate(job_of(given, shape, ranks))
    if given.black_boxes is not None:
        boxes = partial(write_job_boxes, job.table, shape, given.black_boxes, run=RUN, seed=given.seed)
        _write(boxes, given.black_boxes)
    for form in forms:
        path = given.output / f"operations.{form}"
        _write(partial(write_table, job.table, path, form), given.output)
    return job.truth.as_json()


def _hang(given: Namespace, shape: JobShape, forms: Sequence[str]) -> dict[str, object]:
    from rankwatch_diagnosis.simulation.hangs.black_boxes import write_hang_boxes
    from rankwatch_diagnosis.simulation.hangs.job import HangJob, simulate_hang
    from rankwatch_diagnosis.simulation.hangs.snapshots import Recorder, write_snapshots

    fault = HangFault(
        kind=HangKind(given.fault),
        ranks=_ranks(given, shape, needed=True),
        plane=Plane(given.plane),
        step=min(_HANG_STEP, given.steps - 1) if given.first_step is None else given.first_step,
        occurrence=given.occurrence,
    )
    job = HangJob(
        shape=shape,
        fault=fault,
        recorder=Recorder(run_ahead=given.run_ahead, only_active=given.only_active),
        naming=Naming(given.group_names),
        steps=given.steps,
        seed=given.seed,
    )
    hang = simulate_hang(job)
    if given.black_boxes is not None:
        boxes = partial(write_hang_boxes, hang, job, given.black_boxes, run=RUN)
        _write(boxes, given.black_boxes)
    for form in forms:
        folder = given.output / (DUMPS_FOLDER if len(forms) == 1 else f"{DUMPS_FOLDER}_{form}")
        _write(partial(write_snapshots, hang.snapshots, folder, form), given.output)
    return hang.truth.as_json()


def _ranks(given: Namespace, shape: JobShape, *, needed: bool) -> tuple[int, ...]:
    if given.ranks is not None or not needed:
        return given.ranks or ()
    if not 1 <= given.rank_count <= shape.ranks:
        raise UserError(f"--rank-count is {given.rank_count}, expected 1 to {shape.ranks}")
    return tuple(sorted(random.Random(given.seed).sample(range(shape.ranks), given.rank_count)))


def _check_empty(output: Path) -> None:
    """Raises UserError: files of two jobs in one directory would be diagnosed as one."""
    if output.is_dir() and any(output.iterdir()):
        raise UserError(f"could not write to {output}: it is not empty")


def _write(write: Callable[[], Any], output: Path) -> None:
    try:
        output.mkdir(parents=True, exist_ok=True)
        write()
    except OSError as error:
        raise UserError(f"could not write to {output}: {error.strerror or error}") from error
    except BlackBoxError as error:
        raise UserError(str(error)) from error


def _parser() -> SentenceParser:
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
        choices=(*_TABLES, *_DUMPS),
        metavar="FORMAT",
        help=f"{', '.join(_TABLES)}; of dumps {', '.join(_DUMPS)}; can be repeated",
    )
    parser.add_argument(
        "--black-boxes",
        type=Path,
        metavar="DIR",
        help="write one black box for each rank, too: DIR/simulated/RANK.blackbox; new or empty directory",
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the random numbers (default 0)")
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
    flags.add_argument(
        "--as",
        dest="level",
        choices=_LEVELS,
        default=_LEVELS[0],
        help="the clean model, or what tables of real jobs have (default clean)",
    )
    flags.add_argument(
        "--chip-spread",
        type=float,
        metavar="X",
        help="how far healthy chips differ (sigma; default 0.004, of a real job 0.01)",
    )
    flags.add_argument(
        "--delayed",
        type=float,
        metavar="X",
        help="share of operations that are delayed (default 0.001, of a real job 0.01)",
    )
    flags.add_argument(
        "--drift", type=float, metavar="X", help="how far a chip drifts around its own mean (default 0.004)"
    )
    flags.add_argument(
        "--barriers",
        type=_barriers,
        metavar="WHO,WHO",
        help=f"of a real job: {', '.join(_BARRIERS)}, or none (default last_stage,replica)",
    )
    flags.add_argument(
        "--without",
        action="append",
        choices=_LEFT_OUT,
        default=[],
        metavar="WHAT",
        help=f"not recorded: {', '.join(_LEFT_OUT)}; can be repeated",
    )


def _fault_flags(parser: SentenceParser) -> None:
    flags = parser.add_argument_group("fault")
    flags.add_argument(
        "--fault",
        choices=(*map(str, _SLOWDOWNS), *map(str, _HANGS)),
        default=str(Cause.NONE),
        metavar="FAULT",
        help=f"slowdown: {', '.join(_SLOWDOWNS)}; hang: {', '.join(_HANGS)} (default none)",
    )
    flags.add_argument("--ranks", type=_numbers, metavar="N,N", help="faulty ranks (default: by chance)")
    flags.add_argument(
        "--rank-count", type=int, default=1, metavar="N", help="faulty ranks to draw (default 1)"
    )
    flags.add_argument(
        "--phase",
        choices=tuple(map(str, _PHASES)),
        default=str(SlowPhase.COMPUTE),
        metavar="PHASE",
        help=f"what takes longer on a slow rank: {', '.join(_PHASES)} (default compute)",
    )
    flags.add_argument("--stage", type=int, metavar="N", help="the heavy one, for fault slow_stage")
    flags.add_argument("--factor", type=float, default=1.2, metavar="X", help="how much slower (default 1.2)")
    flags.add_argument(
        "--probability", type=float, default=0.05, metavar="X", help="of a pause, for jitter (default 0.05)"
    )
    flags.add_argument("--first-step", type=int, metavar="N", help="of the fault (default 0; of a hang 3)")
    flags.add_argument("--duration", type=int, metavar="N", help="in steps (default: to the end)")
    flags.add_argument("--period", type=int, metavar="N", help="steps from one episode to the next")
    flags.add_argument(
        "--share-of-steps",
        type=float,
        default=1.0,
        metavar="X",
        help="part of these steps, here and there (default 1)",
    )
    flags.add_argument(
        "--unrecorded",
        action="store_true",
        help="of a slow rank, phase other: it is held up where nothing is recorded (--as real)",
    )
    flags.add_argument(
        "--also",
        action="append",
        default=[],
        metavar="FAULT,FIELD=X",
        help="another fault of the same job, such as slow_rank,ranks=3+5,factor=1.2; can be repeated",
    )


def _hang_flags(parser: SentenceParser) -> None:
    flags = parser.add_argument_group("hang")
    flags.add_argument(
        "--plane",
        choices=tuple(map(str, Plane)),
        default=str(Plane.DATA),
        metavar="PLANE",
        help=f"groups of the faulty operation: {', '.join(Plane)} (default data)",
    )
    flags.add_argument(
        "--occurrence",
        type=int,
        default=0,
        metavar="N",
        help="its index in the step (default 0)",
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


def _barriers(text: str) -> tuple[str, ...]:
    names = () if text == "none" else tuple(text.split(","))
    if not set(names) <= set(_BARRIERS):
        raise ArgumentTypeError(f"{text!r} is no list of {', '.join(_BARRIERS)}, nor none")
    return names
