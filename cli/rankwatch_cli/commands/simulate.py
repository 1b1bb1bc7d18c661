"""`rankwatch simulate`: write what a job with a known fault leaves behind, and the truth about it."""

from __future__ import annotations

import json
import random
from argparse import Namespace
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rankwatch.conventions import Cause, SlowPhase
from rankwatch.errors import BlackBoxError
from rankwatch_agent.runtime.errors import UserError
from rankwatch_diagnosis.simulation.flags import DUMPS, HANGS, TABLES, simulate_parser
from rankwatch_diagnosis.simulation.hangs.fault import HangFault, HangKind, Plane
from rankwatch_diagnosis.simulation.hangs.groups import Naming
from rankwatch_diagnosis.simulation.shape import JobShape

DUMPS_FOLDER = "flight_recorder"
TRUTH_FILE = "truth.json"
RUN = "simulated"
"""Name of the run in black boxes."""

_HANG_STEP = 3
"""Late enough that the dumps show operations that went well."""


def main(arguments: Sequence[str]) -> int:
    """Write the job's files and print the truth; returns 0. Raises UserError."""
    given = simulate_parser().parse_args(arguments)
    shape = JobShape(
        data_parallel=given.data_parallel,
        pipeline_parallel=given.pipeline_parallel,
        tensor_parallel=given.tensor_parallel,
        microbatches=given.microbatches,
    )
    hangs = given.fault in HANGS
    forms = given.format or [DUMPS[0] if hangs else TABLES[0]]
    for form in forms:
        if form not in (expected := DUMPS if hangs else TABLES):
            raise UserError(f"--format is {form!r}, expected {' or '.join(expected)} for fault {given.fault}")
    _check_empty(given.output)
    if given.black_boxes is not None:
        _check_empty(given.black_boxes)
    truth = (_hang if hangs else _slowdown)(given, shape, forms)
    text = json.dumps(truth, indent=2)
    _write(lambda: (given.output / TRUTH_FILE).write_text(text + "\n"), given.output)
    print(text)
    return 0


def _slowdown(given: Namespace, shape: JobShape, forms: Sequence[str]) -> dict[str, object]:
    # Only here: the simulation needs NumPy.
    from rankwatch_diagnosis.simulation.black_boxes_of_jobs import write_job_boxes
    from rankwatch_diagnosis.simulation.fault import Fault
    from rankwatch_diagnosis.simulation.job import Job, simulate
    from rankwatch_diagnosis.simulation.noise import Noise
    from rankwatch_diagnosis.simulation.table_files import write_table

    cause = Cause(given.fault)
    fault = Fault(
        cause=cause,
        ranks=_ranks(given, shape, needed=cause is Cause.SLOW_RANK),
        phase=SlowPhase(given.phase),
        stage=given.stage,
        factor=given.factor,
        probability=given.probability,
        first_step=given.first_step or 0,
        duration=given.duration,
        period=given.period,
    )
    job = simulate(
        Job(
            shape=shape,
            noise=Noise(sigma=given.sigma),
            fault=fault,
            steps=given.steps,
            seed=given.seed,
            tell_work=given.work,
        )
    )
    if given.black_boxes is not None:
        boxes = partial(write_job_boxes, job.table, shape, given.black_boxes, run=RUN, seed=given.seed)
        _write(boxes, given.black_boxes)
    for form in forms:
        path = given.output / f"operations.{form}"
        _write(partial(write_table, job.table, path, form), given.output)
    return job.truth.as_json()


def _hang(given: Namespace, shape: JobShape, forms: Sequence[str]) -> dict[str, object]:
    from rankwatch_diagnosis.simulation.black_boxes_of_hangs import write_hang_boxes
    from rankwatch_diagnosis.simulation.hangs.files import write_snapshots
    from rankwatch_diagnosis.simulation.hangs.job import HangJob, simulate_hang
    from rankwatch_diagnosis.simulation.hangs.snapshot import Recorder

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
    if not 1 <= given.culprits <= shape.ranks:
        raise UserError(f"--culprits is {given.culprits}, expected 1 to {shape.ranks}")
    return tuple(sorted(random.Random(given.seed).sample(range(shape.ranks), given.culprits)))


def _check_empty(output: Path) -> None:
    """Files of two jobs in one directory would be diagnosed as one."""
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
