"""The day of a fleet: which runs start where, how each of their attempts ends, and which faults are injected.

Where the figures come from:

- 200 runs a day of which 25 % fail by bugs of their users, 10 preemptions, two roll-outs of the agents, a
  restart of Prometheus, one lost node, one straggler, one damaged checkpoint, one faulty GPU under runs of
  class production, and ten minutes without any scrape: the fleet that the page budget is stated for.
- Most runs have no class. One of twenty is of class production. These have at least 8 ranks and last hours.
- Sizes, durations and times of a step are guesses of ours: half of the runs have one or two ranks, half last
  less than 40 minutes. They are not fitted to the accounting of a real cluster.
- A bug is an exception, a lack of GPU memory, `exit 1` or one NaN step, or the job is cancelled without
  SIGTERM. Two of five that end by themselves do so before their first step.
- One run of class production holds 32 nodes all day. It has one rank on each, to keep the rules affordable.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence

import numpy as np

from rankwatch.conventions.states import FailureKind, Outcome
from support.alerts.fleet.day import (
    NODE_GPUS,
    REQUIRED,
    Attempt,
    Day,
    Fault,
    FaultKind,
    Node,
    Place,
    Run,
    gpu_name,
)

DAY_SECONDS = 86_400.0
SHIFT_HOURS = 8.0
RESTART = "restart of Prometheus"
ROLL_OUTS = ("roll-out 1", "roll-out 2")
_SHIFTS = (
    ((FaultKind.LOST_NODE, FaultKind.CHECKPOINT), (RESTART,)),
    ((FaultKind.STRAGGLER, FaultKind.GPU), (ROLL_OUTS[0],)),
    ((FaultKind.CUT_OFF,), (ROLL_OUTS[1],)),
)
"""Faults and operations of each shift of a day."""
NODES = 16
"""Of the runs that come and go."""
LARGE_NODES, LARGE_NODE_RANKS = 32, 1
LARGE_RUN = "large"
_SIZES: Mapping[int, float] = {1: 0.40, 2: 0.10, 4: 0.10, 8: 0.25, 16: 0.08, 32: 0.05, 64: 0.02}
_CLASSES: Mapping[str, float] = {"": 0.55, "experiment": 0.30, "development": 0.15}
PRODUCTION = "production"
_ENDS_OF_BUGS = ("exception", "gpu_out_of_memory", "nan_step", "cancelled", "exit_status")
_WATCHDOG_SECONDS = 600.0
"""Default timeout of NCCL's process groups in PyTorch: then the watchdog aborts a rank that waits."""
_REPAIR_SECONDS = 7_200.0
"""Time until a machine that broke is back."""
_RESTART_SECONDS = 300.0


def shifts(seed: int) -> list[Day]:
    """A whole day, in parts that begin with nothing: what rules cost grows with all series that ever were."""
    return [
        day(len(_SHIFTS) * seed + number, faults=faults, operations=operations)
        for number, (faults, operations) in enumerate(_SHIFTS)
    ]


def day(
    seed: int,
    *,
    hours: float = SHIFT_HOURS,
    large_nodes: int = LARGE_NODES,
    faults: Sequence[FaultKind] = REQUIRED,
    operations: Sequence[str] = (RESTART, *ROLL_OUTS),
) -> Day:
    """Some hours with as many runs an hour as a day has."""
    random, seconds = np.random.default_rng(seed), 3600.0 * hours
    nodes = {name: Node(name=name) for name in (f"n{number}" for number in range(NODES))}
    large = {
        f"p{number}": Node(name=f"p{number}", gpus=LARGE_NODE_RANKS) for number in range(large_nodes + 1)
    }
    moments = _moments(random, seconds, [*faults, *operations])
    runs = _submissions(random, seconds)
    targets = _targets(runs, moments, seconds)
    found = _place_all(random, runs, nodes, seconds)
    life = Day(
        seed=seed,
        seconds=seconds,
        runs=runs,
        nodes=nodes | large,
        faults=found,
        server_gap=None,
        cut_off=None,
    )
    _inject(life, targets, moments)
    life.runs.append(_large_run(life, [*large.values()], moments))
    _operate(random, life, moments)
    life.runs = [run for run in life.runs if run.attempts]  # others wait for GPUs until the end
    life.faults.sort(key=lambda each: each.start)
    return life


def _moments(random: np.random.Generator, seconds: float, wanted: Sequence[str]) -> dict[str, float]:
    """Faults and operations are apart from each other, in an order that the seed gives."""
    slot = seconds / (len(wanted) + 1)
    order = random.permutation(len(wanted))
    return {
        str(each): slot * (0.6 + float(at) + 0.3 * random.random())
        for each, at in zip(wanted, order, strict=True)
    }


def _submissions(random: np.random.Generator, seconds: float) -> list[Run]:
    """The runs of users and of production, in the order of their submission."""
    count = round(200 * seconds / DAY_SECONDS)
    kinds = ["production"] * max(2, round(0.05 * count))
    kinds += [str(each) for each in random.choice([*_CLASSES], count - len(kinds), p=[*_CLASSES.values()])]
    runs = []
    for number, run_class in enumerate(kinds):
        important = run_class == PRODUCTION
        ranks = int(random.choice([*_SIZES], p=[*_SIZES.values()]))
        lasts = random.uniform(2.0, 6.0) * 3600 if important else 2400 * random.lognormal(0.0, 0.9)
        runs.append(Run(
            name=f"{run_class or 'run'}-{number}",
            run_class=run_class,
            ranks=max(ranks, 8) if important else ranks,
            submitted=float(random.uniform(60, seconds)),
            seconds=float(np.clip(lasts, 240, 8 * 3600)),
            step_seconds=float(np.clip(2 * random.lognormal(0.0, 0.8), 0.3, 15)),
            save_seconds=900.0 if important else 600.0,
        ))  # fmt: skip
    _give_ends(random, runs, seconds)
    return sorted(runs, key=lambda run: run.submitted)


def _give_ends(random: np.random.Generator, runs: Sequence[Run], seconds: float) -> None:
    """A quarter has a bug. Preemptions meet runs that last."""
    order = random.permutation(len(runs))
    bugs = round(0.25 * len(runs))
    for at, number in enumerate(order[:bugs]):
        runs[number].ending = _ENDS_OF_BUGS[at % len(_ENDS_OF_BUGS)]
        if runs[number].ending in ("exception", "gpu_out_of_memory", "exit_status"):
            runs[number].seconds = float(min(runs[number].seconds, random.uniform(60, 1500)))
    long = [runs[number] for number in order[bugs:] if runs[number].seconds > 1500]
    for run in long[: round(10 * seconds / DAY_SECONDS)]:
        run.ending = "preempted"


def _targets(runs: Sequence[Run], moments: Mapping[str, float], seconds: float) -> dict[FaultKind, Run]:
    """Runs of class production that are under way at the moment of their fault."""
    important = iter([run for run in runs if run.run_class == PRODUCTION])
    targets = {}
    for kind in (FaultKind.CHECKPOINT, FaultKind.GPU):
        if kind in moments:
            run = targets[kind] = next(important)
            run.ending = "faulty_gpu" if kind is FaultKind.GPU else "finished"
            before = min(3600.0, moments[kind] - 60)
            run.submitted = moments[kind] - before
            run.seconds = before if kind is FaultKind.GPU else before + min(7200.0, seconds / 2)
            run.ranks = 16
    return targets


def _place_all(
    random: np.random.Generator, runs: Sequence[Run], nodes: Mapping[str, Node], seconds: float
) -> list[Fault]:
    """Give each attempt its GPUs as they become free; return the bugs of runs of class production."""
    free = {name: [0.0] * node.gpus for name, node in nodes.items()}
    waiting = [(run.submitted, number) for number, run in enumerate(runs)]
    heapq.heapify(waiting)
    faults = []
    while waiting:
        moment, number = heapq.heappop(waiting)
        run = runs[number]
        if moment > seconds:
            continue
        places = _free_places(free, run.ranks, moment)
        if places is None:
            heapq.heappush(waiting, (moment + 60, number))
            continue
        attempt = _attempt(random, run, moment, places)
        run.attempts.append(attempt)
        kept = _REPAIR_SECONDS if run.ending == "faulty_gpu" and attempt.number == 0 else 20.0
        for place in places:
            free[place.node][place.gpu] = attempt.end + kept
        if attempt.number == 0 and run.ending in ("preempted", "faulty_gpu"):
            delay = _RESTART_SECONDS if run.ending == "faulty_gpu" else random.uniform(120, 900)
            heapq.heappush(waiting, (attempt.end + delay, number))
        if run.run_class == PRODUCTION and run.ending in _ENDS_OF_BUGS:
            faults.append(Fault(FaultKind.PRODUCTION_BUG, attempt.start, attempt.end + 3600, run.name))
    return faults


def _free_places(free: Mapping[str, list[float]], ranks: int, moment: float) -> list[Place] | None:
    """Small runs share a node, the fullest that has room; others have whole nodes."""
    available = {name: [gpu for gpu, at in enumerate(gpus) if at <= moment] for name, gpus in free.items()}
    if ranks < NODE_GPUS:
        fits = [(len(gpus), name) for name, gpus in available.items() if len(gpus) >= ranks]
        if not fits:
            return None
        _, name = min(fits)
        return [Place(name, gpu) for gpu in available[name][:ranks]]
    whole = [name for name, gpus in available.items() if len(gpus) == NODE_GPUS][: ranks // NODE_GPUS]
    if len(whole) * NODE_GPUS < ranks:
        return None
    return [Place(name, gpu) for name in whole for gpu in range(NODE_GPUS)]


def _attempt(random: np.random.Generator, run: Run, moment: float, places: Sequence[Place]) -> Attempt:
    number = len(run.attempts)
    start = moment + random.uniform(5, 20)
    first_step = start + random.uniform(20, 120) + run.step_seconds
    lasts = run.seconds / 2 if run.ending == "preempted" else run.seconds
    made = Attempt(
        number=number,
        start=start,
        first_step=first_step,
        end=start + lasts if run.ending == "faulty_gpu" and number == 0 else first_step + lasts,
        places=places,
        outcome=Outcome.FINISHED,
    )
    rank = int(random.integers(run.ranks))
    if run.ending == "nan_step":
        run.nan = (first_step + random.uniform(0.3, 0.9) * lasts, rank)
    if number == 0:
        _end_badly(random, run.ending, made, rank)
    return made


def _end_badly(random: np.random.Generator, ending: str, attempt: Attempt, rank: int) -> None:
    """The first attempt ends as the run is meant to; later ones finish."""
    failures = {
        "exception": (FailureKind.EXCEPTION, "KeyError"),
        "gpu_out_of_memory": (FailureKind.GPU_OUT_OF_MEMORY, "OutOfMemoryError"),
        "exit_status": (FailureKind.EXIT_STATUS, "SystemExit"),
    }
    if ending in failures:
        attempt.kind, attempt.exception = failures[ending]
        attempt.outcome, attempt.root = Outcome.FAILED, rank
        attempt.spread = float(random.uniform(2, 40))
        if random.random() < 0.4:  # in its first step
            attempt.end = attempt.first_step
            attempt.first_step = attempt.end + 1
    elif ending == "cancelled":  # pods deleted or jobs cancelled with SIGKILL: one node after the other
        attempt.outcome, attempt.kind = Outcome.LOST, FailureKind.LOST
        attempt.spread = float(random.uniform(1, 15))
    elif ending == "preempted":
        attempt.outcome = Outcome.PREEMPTED
        attempt.spread = float(random.uniform(1, 20))


def _inject(life: Day, targets: Mapping[FaultKind, Run], moments: Mapping[str, float]) -> None:
    """The damaged checkpoint, and the GPU that fails."""
    if (run := targets.get(FaultKind.CHECKPOINT)) is not None and run.attempts:
        start = max(moments[FaultKind.CHECKPOINT], run.attempts[0].first_step + 1200)
        run.damaged = (start, min(start + 3600, run.attempts[-1].end))
        life.faults.append(Fault(FaultKind.CHECKPOINT, *run.damaged, run.name))
    if (run := targets.get(FaultKind.GPU)) is not None and run.attempts:
        attempt, rank = run.attempts[0], 11
        place, end = attempt.places[rank], attempt.end + _REPAIR_SECONDS
        node = life.nodes[place.node]
        xid = 79 if life.seed % 2 else 74
        node.bad_gpu = (attempt.end - 5, end, place.gpu, xid)
        attempt.outcome, attempt.kind = Outcome.FAILED, FailureKind.EXCEPTION
        attempt.exception, attempt.root, attempt.spread = "AcceleratorError", rank, 45.0
        gpu = gpu_name(place.node, place.gpu)
        life.faults.append(
            Fault(FaultKind.GPU, attempt.end - 5, attempt.end + 1800, run.name, place.node, str(rank), gpu)
        )


def _large_run(life: Day, nodes: Sequence[Node], moments: Mapping[str, float]) -> Run:
    """It loses a node, has a straggler at another time, and goes on until the end."""
    *active, spare = nodes
    places = [Place(node.name, gpu) for node in active for gpu in range(LARGE_NODE_RANKS)]
    run = Run(
        name=LARGE_RUN,
        run_class=PRODUCTION,
        ranks=len(places),
        submitted=30.0,
        seconds=life.seconds,
        step_seconds=4.0,
    )
    first = Attempt(
        number=0,
        start=45.0,
        first_step=200.0,
        end=life.seconds + 60,
        places=places,
        outcome=Outcome.FINISHED,
    )
    run.attempts.append(first)
    if FaultKind.LOST_NODE in moments:
        run.attempts.append(_lose_node(life, run, active[len(active) // 3], spare, moments))
    if FaultKind.STRAGGLER in moments:
        _slow_down(life, run, moments[FaultKind.STRAGGLER])
    return run


def _lose_node(life: Day, run: Run, lost: Node, spare: Node, moments: Mapping[str, float]) -> Attempt:
    """Its ranks are gone, all others wait until their watchdog ends them, and the run starts without it."""
    moment, (attempt,) = moments[FaultKind.LOST_NODE], run.attempts
    lost.down.append((moment, moment + _REPAIR_SECONDS))
    attempt.hangs, attempt.lost_node = moment, lost.name
    attempt.end = moment + _WATCHDOG_SECONDS
    attempt.outcome, attempt.kind = Outcome.FAILED, FailureKind.WATCHDOG_ABORT
    attempt.exception, attempt.root, attempt.spread = "SIGABRT", 0, 20.0
    places = [Place(spare.name, each.gpu) if each.node == lost.name else each for each in attempt.places]
    again = attempt.end + _RESTART_SECONDS
    life.faults.append(Fault(FaultKind.LOST_NODE, moment, again + 300, run.name, lost.name))
    return Attempt(
        number=1,
        start=again,
        first_step=again + 180,
        end=life.seconds + 60,
        places=places,
        outcome=Outcome.FINISHED,
    )


def _slow_down(life: Day, run: Run, moment: float) -> None:
    """One rank needs 1.9 times as long for an hour."""
    attempt = next(each for each in reversed(run.attempts) if each.start < moment or each.number == 0)
    start = max(moment, attempt.first_step + 900)
    rank, stop = run.ranks // 2, attempt.end if attempt.hangs is None else attempt.hangs
    end = min(start + 3600, stop - 60)
    attempt.slow = (start, end, rank, 1.9)
    fault = Fault(FaultKind.STRAGGLER, start, end, run.name, attempt.places[rank].node, str(rank))
    life.faults.append(fault)


def _operate(random: np.random.Generator, life: Day, moments: Mapping[str, float]) -> None:
    """What operators do, and the network."""
    if RESTART in moments:
        life.server_gap = (moments[RESTART], moments[RESTART] + 120)
    for name in ROLL_OUTS:
        if name in moments:
            for node in life.nodes.values():
                node.restarts.append(moments[name] + float(random.uniform(0, 1200)))
    if FaultKind.CUT_OFF in moments:
        moment = moments[FaultKind.CUT_OFF]
        life.cut_off = (moment, moment + 600)
        life.faults.append(Fault(FaultKind.CUT_OFF, *life.cut_off))
