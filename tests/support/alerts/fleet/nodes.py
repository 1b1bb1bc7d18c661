"""What an agent exports of a run on its node."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from functools import cached_property

import numpy as np

from rankwatch.conventions.metrics import OF_RANKS_THAT_HAD_THEM, OF_RUNNING_RANKS
from rankwatch.conventions.states import ENDED_STATES, Outcome, RankState
from support.alerts.fleet.attempts import OWN, AttemptModel
from support.alerts.fleet.page import ABSENT, Flags, Values

RETENTION_SECONDS = 3_600.0
SETTLE_SECONDS = 20.0
TIMEOUT_SECONDS = 30.0
"""Longest time without progress that is normal, as it is learnt from steps of seconds."""
GPU_MODEL, GPU_PRICE = "NVIDIA H100 80GB HBM3", 2.5
GROUP = "default_pg"
TOKENS = 4096.0
DATA_WAIT = 0.01
"""Share of a healthy step."""
_LATENESS = (
    "late_step_seconds",
    "late_step_long_seconds",
    "most_late_step_seconds",
    "most_late_step_long_seconds",
    "second_late_step_long_seconds",
    "late_ranks",
)
_WINDOW_SECONDS = 300.0
_NOISE_SCRAPES = 10


class NodeSeries:
    """The part of an attempt that is on one node."""

    def __init__(self, whole: AttemptModel, node: str) -> None:
        self.whole, self.node = whole, node
        pages, attempt = whole.pages, whole.attempt
        self.ranks = attempt.ranks_of(node)
        self.end = max(whole.end_of(rank) for rank in self.ranks)
        gone = [begin for begin, _ in pages.day.nodes[node].down if begin >= attempt.start]
        self.last = min([self.end + RETENTION_SECONDS, whole.until(node), *gone])
        self.begin, self.stop = pages.first(attempt.start), pages.first(self.last)
        self.times = pages.times[self.begin : self.stop]
        self.labels = {"run": whole.run.name}
        self.living = self.times < self.end
        self.steps = whole.steps_at(self.times)
        self.slow_steps = whole.slow_steps_at(self.times)
        self.step_seconds = whole.run.step_seconds * (self.steps + (whole.longer - 1) * self.slow_steps)
        self._random = np.random.default_rng(zlib.crc32(f"{node}/{whole.run.name}/{attempt.number}".encode()))

    def write(self) -> None:
        """Add all series of the run on the node."""
        self._states()
        self._sums()
        self._life()
        self._checkpoints()
        self._recent()
        if self.whole.run.ranks > 1:
            self._collectives()

    def add(self, name: str, values: Values | float, /, **labels: str) -> None:
        """Add a gauge of the run on this node."""
        self.whole.pages.add(
            self.node, f"rankwatch_{name}", {**self.labels, **labels}, self.begin, self._all(values)
        )

    def add_living(self, name: str, values: Values | float, /, **labels: str) -> None:
        """Add a gauge that ends with the last rank here."""
        self.add(name, np.where(self.living, self._all(values), ABSENT), **labels)

    def count(self, name: str, values: Values | float, /, **labels: str) -> None:
        """Add a counter, which begins anew with each process of the agent."""
        self.whole.pages.count(
            self.node, f"rankwatch_{name}", {**self.labels, **labels}, self.begin, self._all(values)
        )

    def _all(self, values: Values | float) -> Values:
        return np.broadcast_to(np.asarray(values, np.float64), len(self.times))

    def _states(self) -> None:
        ends = np.array([self.whole.end_of(rank) for rank in self.ranks])
        started = self.steps > 0
        alive = (self.times[:, None] < ends).sum(axis=1).astype(np.float64)
        for state, values in (
            (RankState.STARTING, np.where(started, 0, alive)),
            (RankState.RUNNING, np.where(started, alive, 0)),
        ):
            self.add("node_ranks", np.where(values > 0, values, ABSENT), state=state)
        for state in ENDED_STATES:
            of_state = [self.whole.state_after(rank, self.node) is state for rank in self.ranks]
            ended = (self.times[:, None] >= ends[of_state]).sum(axis=1).astype(np.float64)
            self.add("node_ranks", np.where(ended > 0, ended, ABSENT), state=state)
        total = float(len(self.ranks))
        for name in [*OF_RUNNING_RANKS, *OF_RANKS_THAT_HAD_THEM]:
            needed = {"rankwatch_loss_deviation": 100, "rankwatch_step_variation_total": 32}.get(name, 0)
            self.add("node_ranks_reporting", np.where(self.steps >= needed, total, 0.0), name=name)

    def _sums(self) -> None:
        run, attempt, count = self.whole.run, self.whole.attempt, float(len(self.ranks))
        self.add_living("node_first_start_timestamp_seconds", attempt.start)
        self.add_living("node_last_start_timestamp_seconds", attempt.start + 1)
        self.add_living("node_progress_timestamp_seconds", self.whole.progress_at(self.times))
        known = np.where(self.steps >= 10, max(TIMEOUT_SECONDS, 5 * run.step_seconds), ABSENT)
        self.add_living("node_progress_timeout_seconds", known)
        self.add_living("node_gpus", count)
        self.add_living("node_target_steps", np.ceil(run.seconds / run.step_seconds) * 1.1)
        self.count("node_steps_total", self.steps)
        self.add("node_step", np.where(self.steps > 0, self.whole.numbers(self.steps) - 1, ABSENT))
        self.count("node_records_total", 40 * count * self.steps)
        self.count("node_records_missed_total", 0)
        for rank in self.ranks:
            self.count("node_tokens_total", TOKENS * self.steps, data_parallel=str(rank))
        if attempt.restored_step is not None:
            self.add_living("node_restored_step", attempt.restored_step)

    def _life(self) -> None:
        run, attempt = self.whole.run, self.whole.attempt
        self.add("run_info", 1, run_class=run.run_class, run_name="train.py", owner=f"{1000 + run.ranks}")
        self.add("run_attempt", attempt.number)
        self.add("run_world_size", run.ranks)
        self.add("run_attempt_start_timestamp_seconds", attempt.start)
        first = attempt.first_step - attempt.start
        self.add("run_time_to_first_step_seconds", np.where(self.steps > 0, first, ABSENT))
        settled = self.times >= self.end + SETTLE_SECONDS
        without = attempt.outcome is Outcome.FAILED and attempt.first_step > attempt.end
        self.add("run_attempts_without_progress", np.where(settled, float(without), 0.0))
        self._end(settled)
        self.add_living("run_allocated_gpus", len(self.ranks), gpu_model=GPU_MODEL)
        self.add_living("run_price_known", 1, gpu_model=GPU_MODEL)
        price = GPU_PRICE / 3600 * len(self.ranks)
        spent = price * (np.minimum(self.times, self.end) - attempt.start)
        self.add("run_spent", spent, currency="EUR", basis="list")
        if run.run_class == "production":
            self.add("run_checkpoint_interval_seconds", run.save_seconds)
        self._goodput()

    def _end(self, settled: Flags) -> None:
        attempt = self.whole.attempt
        labels: dict[str, str] = {"attempt": str(attempt.number), "outcome": attempt.outcome}
        of_root = attempt.root in self.ranks or attempt.hangs is not None
        if attempt.outcome is Outcome.FAILED and not of_root:
            labels["outcome"] = Outcome.TERMINATED
        elif attempt.kind is not None:
            rank = attempt.root if attempt.root in self.ranks else self.ranks[0]
            labels |= {"kind": attempt.kind, "exception": attempt.exception, "rank": str(rank)}
            labels |= {"message": f"{attempt.exception} of rank {rank}"} if attempt.exception else {}
        self.add("run_attempt_end_timestamp_seconds", np.where(settled, self.end, ABSENT), **labels)

    def _goodput(self) -> None:
        attempt, count = self.whole.attempt, float(len(self.ranks))
        until = np.minimum(self.times, self.end)
        startup = np.minimum(until, attempt.first_step) - attempt.start
        stop = self.end if attempt.hangs is None else attempt.hangs
        training = (np.minimum(until, stop) - attempt.first_step).clip(0)
        straggler = self.slow_steps * self.whole.run.step_seconds * (self.whole.longer - 1)
        states = {
            "startup": startup,
            "productive": (OWN - 0.01) * (training - straggler),
            "data": 0.01 * (training - straggler),
            "communication": (1 - OWN) * (training - straggler),
            "straggler": straggler,
            "stall": (until - stop).clip(0),
        }
        none = ("checkpoint", "down", "evaluation", "idle", "replayed", "restore", "unknown")
        for state, seconds in {**states, **dict.fromkeys(none, np.zeros_like(until))}.items():
            self.add("goodput_seconds_total", count * seconds, state=state)

    def _checkpoints(self) -> None:
        saves, at = self.saves()
        self.count("node_checkpoint_saves_total", saves)
        self.count("node_checkpoint_save_seconds_total", 12 * saves)
        self.count("node_checkpoint_save_blocking_seconds_total", 2 * saves)
        self.count("checkpoint_saves_overlapped_total", 0)
        some = saves > 0
        saved_step = self.whole.numbers(self.whole.steps_at(at))
        self.add_living("node_checkpoint_saved_timestamp_seconds", np.where(some, at, ABSENT))
        self.add_living("node_checkpoint_saved_step", np.where(some, saved_step, ABSENT))
        self.add_living("node_checkpoint_bytes", np.where(some, 2e10 * len(self.ranks), ABSENT))
        for name, value in {"available_bytes": 6e13, "size_bytes": 1e14, "read_only": 0, "info": 1}.items():
            source = {"source": "storage:/data", "type": "nfs4"} if name == "info" else {}
            self.add_living(f"run_mount_{name}", value, path="/data", **source)
        if 0 in self.ranks:
            self._verified(some, at, saved_step)
            self._damaged()

    def _damaged(self) -> None:
        run = self.whole.run
        if run.damaged is None or run.damaged[0] >= self.whole.attempt.end:
            return
        start, end = run.damaged
        saved = self.whole.steps_at(self.whole.saves_before(np.array([start])))
        step = float(self.whole.numbers(saved)[0])
        lies = np.where((self.times >= start) & (self.times < end), step, ABSENT)
        where = {"path": f"/data/{run.name}/step-{step:.0f}", "file": "__0_0.distcp", "tensor": "model.w"}
        self.add("checkpoint_damaged_step", lies, damage="flipped", **where)

    def _verified(self, some: Flags, at: Values, step: Values) -> None:
        good = some.copy()
        if (damaged := self.whole.run.damaged) is not None:
            good &= (self.times < damaged[0]) | (at >= damaged[0])
        self.add("checkpoint_verified_timestamp_seconds", np.where(good, at + 60, ABSENT))
        self.add("checkpoint_verified_step", np.where(good, step, ABSENT))

    def saves(self) -> tuple[Values, Values]:
        """How many saves there are by each moment, and when the last one was."""
        run, attempt = self.whole.run, self.whole.attempt
        stop = attempt.end if attempt.hangs is None else attempt.hangs
        trained = (np.minimum(self.times, stop) - attempt.first_step).clip(0)
        saves = np.floor(trained / run.save_seconds)
        return saves, self.whole.saves_before(self.times)

    def window(self, total: Values) -> Values:
        """What was added in the last five minutes."""
        before = np.searchsorted(self.times, self.times - _WINDOW_SECONDS)
        passed: Values = total - total[before.clip(0, len(total) - 1)]
        return passed

    @cached_property
    def stepping(self) -> Values:
        """Steps of the last five minutes, absent where there is none."""
        steps = self.window(self.steps)
        return np.where((steps > 0) & self.living, steps, ABSENT)

    def noise(self, sigma: float) -> Values:
        """Around 1, another value every five minutes or so."""
        count = len(self.times) // _NOISE_SCRAPES + 1
        return (
            1
            + sigma
            * np.repeat(self._random.standard_normal(count).clip(-3, 3), _NOISE_SCRAPES)[: len(self.times)]
        )

    def own(self, rank: int) -> Values:
        """Own seconds of all steps of a rank so far."""
        slow = self.whole.attempt.slow
        factor = slow[3] - 1 if slow is not None and slow[2] == rank else 0.0
        return self.whole.own_seconds(rank) * (self.steps + factor * self.slow_steps)

    def mean(self, total: Values) -> Values:
        """Of a step in the last five minutes."""
        there = self.stepping != ABSENT
        return np.where(there, self.window(total) / np.where(there, self.stepping, 1.0), ABSENT)

    def _recent(self) -> None:
        own = np.stack([self.mean(self.own(rank)) for rank in self.ranks])
        middle, step = np.median(own, axis=0), self.mean(self.step_seconds)
        there, noise = middle != ABSENT, self.noise(0.004)

        def some(values: Values | float) -> Values:
            return np.where(there, values, ABSENT)

        self.add("recent_run_step_seconds", some(step * noise))
        waiting = 1 - np.where(there, middle, 0) / np.where(there, step, 1)
        self.add("recent_run_waiting_ratio", some(waiting))
        self.add("recent_run_step_variance_ratio", some(4e-4))
        for what in _LATENESS:
            self.add(f"recent_run_{what}", some(0.0))
        data = DATA_WAIT * self.whole.run.step_seconds
        ranks = float(len(self.ranks))
        of_stage: Mapping[str, Values | float] = {
            "ranks": ranks,
            "token_ranks": ranks,
            "compute_seconds": (middle - data) * noise,
            "least_compute_seconds": own.min(axis=0) - data,
            "data_wait_ratio": DATA_WAIT,
            "most_tokens": TOKENS,
            "most_tokens_local_seconds": own[0],
        }
        for what, values in of_stage.items():
            self.add(f"recent_stage_{what}", some(values), stage="0")
        phases: Mapping[str, Values | float] = {
            "compute": middle - data,
            "data_loading": data,
            "checkpoint": 0.0,
            "other": 0.001,
        }
        for phase, seconds in phases.items():
            self.add("recent_stage_phase_seconds", some(seconds), phase=phase, stage="0")

    def _collectives(self) -> None:
        members = f"0-{self.whole.run.ranks - 1}"
        labels = {"group": GROUP, "members": members, "operation": "all_reduce", "size_class": "large"}
        self.count("collective_transfers_total", self.steps, **labels)
        self.count("collective_bus_bytes_total", 4e9 * self.steps, **labels)
        seconds = 0.1 * self.whole.run.step_seconds * self.steps
        self.count("collective_transfer_seconds_total", seconds, **labels)
