"""What an agent exports of each rank."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from rankwatch.conventions.states import RankState
from support.alerts.fleet.attempts import AttemptModel
from support.alerts.fleet.day import gpu_name
from support.alerts.fleet.nodes import DATA_WAIT, GROUP, TIMEOUT_SECONDS, TOKENS, NodeSeries
from support.alerts.fleet.page import ABSENT, Flags, Pages, Values

_PHASES = {"data_wait": DATA_WAIT, "forward": 0.28, "backward": 0.54, "optimizer": 0.015, "other": 0.005}
"""Shares of a healthy step; the remainder is communication."""
_SCALARS = ("loss", "gradient_norm", "learning_rate")


class RankSeries:
    """The series of one rank."""

    def __init__(self, node: NodeSeries, rank: int) -> None:
        self.node, self.rank, self.whole = node, rank, node.whole
        self.end = node.whole.end_of(rank)
        self.living = node.times < self.end
        self._random = np.random.default_rng(rank)

    def add(self, name: str, values: Values | float, /, **labels: str) -> None:
        """Add a gauge of the rank."""
        self.node.add(name, values, rank=str(self.rank), **labels)

    def add_living(self, name: str, values: Values | float, /, **labels: str) -> None:
        """Add a gauge that ends with the rank."""
        self.add(name, np.where(self.living, values, ABSENT), **labels)

    def count(self, name: str, values: Values | float, /, **labels: str) -> None:
        """Add a counter, which begins anew with each process of the agent."""
        self.node.count(name, values, rank=str(self.rank), **labels)

    def write(self) -> None:
        """Add all series of the rank."""
        self._identity()
        self._steps()
        self._scalars()
        self._checkpoints()
        self._recent()
        if self.whole.run.ranks > 1:
            self._compared()

    def _identity(self) -> None:
        node, attempt = self.node, self.whole.attempt
        place = attempt.places[self.rank]
        stage = {"stage": "0", "data_parallel": str(self.rank), "world_size": str(self.whole.run.ranks)}
        pid = f"{10_000 + attempt.number * 512 + self.rank}"
        self.add("rank_info", 1, host=place.node, local_rank=str(place.gpu), pid=pid, **stage)
        started = node.steps > 0
        for state, there in (
            (RankState.STARTING, self.living & ~started),
            (RankState.RUNNING, self.living & started),
            (self.whole.state_after(self.rank, place.node), ~self.living),
        ):
            self.add("rank_state", np.where(there, 1.0, ABSENT), state=state)
        self.add("rank_start_timestamp_seconds", attempt.start)
        gpu = gpu_name(place.node, place.gpu)
        self.add_living("rank_gpu_start_timestamp_seconds", attempt.start, gpu=gpu)
        self.add("rank_end_timestamp_seconds", np.where(self.living, ABSENT, self.end))
        self.add("progress_timestamp_seconds", self.whole.progress_at(np.minimum(node.times, self.end)))

    def _steps(self) -> None:
        node, step = self.node, self.whole.run.step_seconds
        own = node.own(self.rank)
        self.count("steps_total", node.steps)
        self.count("step_seconds_total", node.step_seconds)
        self.count("step_local_seconds_total", own)
        rest = own - sum(_PHASES.values()) * step * node.steps
        for phase, share in _PHASES.items():
            more = rest if phase == "forward" else 0.0
            self.count("step_phase_seconds_total", share * step * node.steps + more, phase=phase)
        self.count("step_phase_seconds_total", node.step_seconds - own, phase="communication")
        self.count("late_step_seconds_total", 0.0)
        for term, value in (("local", 4e-4), ("work", 0.0), ("local_and_work", 4e-4)):
            seen = np.where(node.steps >= 32, value * node.steps, ABSENT)
            self.count("step_variation_total", seen, term=term)

    def _scalars(self) -> None:
        steps = self.node.steps
        trend = 2 + 6 * np.exp(-steps / 3000)
        values: Mapping[str, Values | float] = {
            "loss": trend * self.node.noise(0.02),
            "gradient_norm": self.node.noise(0.1),
            "learning_rate": 3e-4,
        }
        nan = self.whole.run.nan
        here = nan is not None and nan[1] == self.rank and nan[0] < self.end
        broken = self.node.times >= nan[0] if here and nan is not None else np.zeros_like(self.living)
        for name in _SCALARS:
            self.add("scalar", np.where(steps > 0, values[name], ABSENT), name=name)
            self.count("scalar_nonfinite_total", np.where(broken & (name == "loss"), 1.0, 0.0), name=name)
        if here and nan is not None:
            known = broken & ~self._started_after(nan[0])
            self.add("scalar_last_nonfinite_timestamp_seconds", np.where(known, nan[0], ABSENT), name="loss")
            step = float(self.whole.steps_at(np.array([nan[0]]))[0])
            self.add("scalar_first_nonfinite_step", np.where(known, step, ABSENT), name="loss")
        self.add("loss_trend", np.where(steps > 0, trend, ABSENT))
        deviation = 70 * (self.node.noise(0.01) - 1)
        self.add("loss_deviation", np.where(steps >= 100, deviation, ABSENT))

    def _started_after(self, moment: float) -> Flags:
        """Scrapes of an agent that began after a moment: it does not know what was before."""
        at = self.node.whole.pages.first(moment) - self.node.begin
        starts = [each - self.node.begin for each in self.whole.pages.targets[self.node.node].starts]
        after = [each for each in starts if each > at]
        return np.arange(len(self.living)) >= min(after, default=len(self.living))

    def _checkpoints(self) -> None:
        saves, _ = self.node.saves()
        done = {("save", "success"): saves}
        for operation in ("save", "load", "verify"):
            for outcome in ("success", "failure", "unfinished"):
                value = done.get((operation, outcome), np.zeros_like(saves))
                labels = {"operation": operation, "outcome": outcome}
                self.count("checkpoint_operations_total", value, **labels)
        if self.rank == 0:
            self.add("checkpoint_last_write_seconds", np.where(saves > 0, 10.0, ABSENT))

    def _recent(self) -> None:
        node = self.node
        own = node.mean(node.own(self.rank))
        there = (own != ABSENT) & self.living
        noise, stage = node.noise(0.004), {"stage": "0"}

        def some(values: Values | float) -> Values:
            return np.where(there, values, ABSENT)

        seconds = np.where(there, own, 0) * noise
        data = DATA_WAIT * self.whole.run.step_seconds
        self.add("recent_step_local_seconds", some(seconds), data_parallel=str(self.rank), **stage)
        self.add("recent_step_arrival_seconds", some(seconds), **stage)
        phases: Mapping[str, Values | float] = {
            "compute": seconds - data - 0.001, "data_loading": data, "checkpoint": 0.0, "other": 0.001
        }  # fmt: skip
        for phase, value in phases.items():
            self.add("recent_step_phase_seconds", some(value), phase=phase, **stage)
        self.add("recent_step_tokens", some(TOKENS), **stage)
        self.add("recent_token_local_seconds", some(seconds / TOKENS), **stage)
        for name in ("late_steps_ratio", "late_step_seconds", "late_step_long_seconds"):
            self.add(f"recent_{name}", some(0.0), **stage)

    def _compared(self) -> None:
        """Fingerprints, and where the rank stands while nothing completes."""
        node, attempt = self.node, self.whole.attempt
        members = f"0-{self.whole.run.ranks - 1}"
        step = np.floor(node.steps / 100) * 100
        known, labels = step >= 100, {"level": "0", "members": members}
        for name, values in (
            ("", np.floor(step * 7919.0 % 65_537)),
            ("_step", step),
            ("_gradient_norm", 1 + step % 700 / 7000),
        ):
            self.add_living(f"rank_fingerprint{name}", np.where(known, values, ABSENT), **labels)
        if attempt.hangs is None:
            return
        late = node.times >= attempt.hangs + TIMEOUT_SECONDS
        place = {"group": GROUP, "members": members, "source": "black_box"}
        self.add_living("collective_last_completed", np.where(late, node.steps, ABSENT), **place)
        self.add_living("collective_last_enqueued", np.where(late, node.steps + 1, ABSENT), **place)
        oldest = np.where(late, attempt.hangs, ABSENT)
        self.add_living("collective_oldest_incomplete_timestamp_seconds", oldest, **place)


def write_runs(pages: Pages) -> None:
    """Add the series of all runs."""
    for run in pages.day.runs:
        for attempt, following in zip(run.attempts, [*run.attempts[1:], None], strict=True):
            model = AttemptModel(pages, run, attempt, following)
            if following is not None:
                following.restored_step = model.last_saved_step()
            for node in dict.fromkeys(place.node for place in attempt.places):
                part = NodeSeries(model, node)
                part.write()
                for rank in part.ranks:
                    RankSeries(part, rank).write()
        pages.flush()
