"""How exact the account of time is: a real job that is killed and resumed, beside a stopwatch of its own."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from statistics import median

from rankwatch.blackbox.records import Header
from rankwatch.identity import Identity
from rankwatch_agent.training.goodput.run_ledgers import RunLedger
from rankwatch_agent.training.split import split_step
from rankwatch_diagnosis.goodput.from_boxes import read_folder
from support.agent.process import agent_process, until
from support.interrupted_run import KILLED_AFTER, RUN, WORLDS, exported, run_job

from .result import Result, Row, limited

MOST_SUM_ERROR, MOST_GOODPUT_ERROR = 0.005, 0.02
_STEPS = 20_000


def measure(*, quick: bool) -> Result:
    """Run the job once with an agent. quick: for fewer steps of the cost only."""
    with tempfile.TemporaryDirectory(prefix="goodput") as folder:
        directory = Path(folder)
        (directory / "blackboxes").mkdir()
        flags = ("--state-directory", str(directory / "state"), "--collectors", "ranks")
        with agent_process(directory, *flags) as agent:
            stopwatch = run_job(directory, lambda _: None)
            until(lambda: sum(exported(agent).values()) > 0.99 * stopwatch.allocated, "all is attributed")
            live = exported(agent)
        boxes = read_folder(directory / "blackboxes" / RUN)
    least, _ = stopwatch.productive
    truth = least / stopwatch.allocated
    rows = []
    for source, seconds in (("agent", live), ("boxes alone", {str(k): v for k, v in boxes.seconds.items()})):
        total = sum(seconds.values())
        rows += [
            limited(
                f"{source}: sum of the states, off by",
                abs(total / stopwatch.allocated - 1),
                MOST_SUM_ERROR,
                _percent,
            ),
            limited(
                f"{source}: goodput, off by",
                abs(seconds["productive"] / total / truth - 1),
                MOST_GOODPUT_ERROR,
                _percent,
            ),
        ]
    ledger, split = _cost(_STEPS // 10 if quick else _STEPS)
    rows.append(
        Row(
            "the account of a step, of the time to split it",
            f"{ledger / split:.0%}",
            f"{1e6 * ledger:.2f} us",
        )
    )
    return Result(
        title="Goodput of a run that is killed and resumed",
        rows=tuple(rows),
        notes=(
            f"A job of forked ranks on gloo: {len(WORLDS)} attempts of {', '.join(map(str, WORLDS))} ranks, "
            f"killed by SIGKILL after steps {', '.join(map(str, KILLED_AFTER))}; goodput "
            f"{truth:.1%} by the stopwatch.",
        ),
        samples={
            "stopwatch_seconds": stopwatch._asdict(),
            "agent_seconds": live,
            "boxes_seconds": {str(k): v for k, v in boxes.seconds.items()},
        },
    )


def _percent(value: float) -> str:
    return f"{value:.2%}"


def _cost(steps: int) -> tuple[float, float]:
    """Seconds that a step of five phases takes in the ledger, and to be split; medians of five rounds."""
    header = Header(
        identity=Identity(run="job"),
        pid=1,
        started_monotonic=0.0,
        started_wall=0.0,
        target_steps=None,
        capacity=16,
    )
    ledger, split = [], []
    for _ in range(5):
        run = RunLedger()
        rank = run.rank(header)
        rank.begin_process(header)
        began = time.perf_counter()
        for number in range(steps):
            parts, _ = split_step(
                number,
                number + 1.0,
                [
                    (number + 0.2 * at, number + 0.2 * at + 0.19, name)
                    for at, name in enumerate(("data_wait", "forward", "backward", "optimizer", "log"))
                ],
                [],
            )
        split.append((time.perf_counter() - began) / steps)
        began = time.perf_counter()
        for number in range(steps):
            rank.step(number, float(number), number + 1.0, parts, _no_timeout)
        ledger.append((time.perf_counter() - began) / steps)
    return median(ledger), median(split)


def _no_timeout() -> float | None:
    return None
