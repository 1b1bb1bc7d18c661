"""How the ranks of an attempt go on, which no agent exports in these words: steps, saves and ends."""

from __future__ import annotations

import zlib
from functools import cached_property

import numpy as np

from rankwatch.conventions.states import Outcome, RankState
from support.alerts.fleet.day import Attempt, Run
from support.alerts.fleet.page import Pages, Values

OWN = 0.85
"""Share of a healthy step in which a rank works and does not wait for others."""


class AttemptModel:
    """Where the ranks of an attempt stand at each moment. The `following` attempt takes its boxes."""

    def __init__(self, pages: Pages, run: Run, attempt: Attempt, following: Attempt | None) -> None:
        self.pages, self.run, self.attempt, self._following = pages, run, attempt, following
        self._random = np.random.default_rng(zlib.crc32(f"{run.name}/{attempt.number}".encode()))
        ranks = run.ranks
        self._own = OWN * run.step_seconds * (1 + 0.01 * self._random.standard_normal(ranks).clip(-2, 2))
        self._ends = attempt.end + np.sort(self._random.uniform(0, attempt.spread, ranks))
        if attempt.root is not None:
            self._ends[attempt.root] = attempt.end

    def until(self, node: str) -> float:
        """When the next attempt of the run takes the boxes of this one on a node."""
        following = self._following
        return float("inf") if following is None or not following.ranks_of(node) else following.start

    def end_of(self, rank: int) -> float:
        """When the rank ends, or its machine is gone."""
        return float(self._ends[rank])

    def own_seconds(self, rank: int) -> float:
        """Own time of the rank in a healthy step."""
        return float(self._own[rank])

    def steps_at(self, moments: Values) -> Values:
        """Steps that are complete at these moments."""
        return np.floor(self._pace(moments))

    def slow_steps_at(self, moments: Values) -> Values:
        """Those of them that one rank made longer."""
        if self.attempt.slow is None:
            return np.zeros_like(moments)
        start, end, *_ = self.attempt.slow
        return self.steps_at(moments.clip(start, end)) - self.steps_at(np.full_like(moments, start))

    def progress_at(self, moments: Values) -> Values:
        """When the last of these steps ended; the start of the ranks before the first one."""
        attempt, half = self.attempt, self.run.step_seconds / 2
        last = np.minimum(moments, attempt.end if attempt.hangs is None else attempt.hangs)
        return np.where(
            moments < attempt.first_step, attempt.start, np.maximum(last - half, attempt.first_step)
        )

    @cached_property
    def _points(self) -> tuple[list[float], list[float]]:
        """Moments, and steps that are complete then."""
        attempt, step = self.attempt, self.run.step_seconds
        stop = attempt.end if attempt.hangs is None else attempt.hangs
        moments, done = [attempt.first_step - step, attempt.first_step], [0.0, 1.0]
        cuts = [] if attempt.slow is None else [attempt.slow[0], attempt.slow[1]]
        for moment in [*cuts, stop]:
            slowed = bool(cuts) and moment == cuts[1]
            rate = 1 / (step * (self.longer if slowed else 1.0))
            done.append(done[-1] + max(moment - moments[-1], 0.0) * rate)
            moments.append(max(moment, moments[-1]))
        return moments, done

    def saves_before(self, moments: Values) -> Values:
        """The last save before each moment."""
        run, attempt = self.run, self.attempt
        stop = attempt.end if attempt.hangs is None else attempt.hangs
        trained = (np.minimum(moments, stop) - attempt.first_step).clip(0)
        return attempt.first_step + np.floor(trained / run.save_seconds) * run.save_seconds

    def numbers(self, steps: Values) -> Values:
        """Numbers of steps in the run, which goes on from a checkpoint."""
        return steps + (self.attempt.restored_step or 0.0)

    def last_saved_step(self) -> float | None:
        """From which the next attempt resumes."""
        end = self.attempt.end if self.attempt.hangs is None else self.attempt.hangs
        if end - self.attempt.first_step < self.run.save_seconds:
            return self.attempt.restored_step
        return float(self.numbers(self.steps_at(self.saves_before(np.array([end]))))[0])

    @property
    def longer(self) -> float:
        """A step in which one rank is slow, as a multiple of a healthy one."""
        return 1.0 if self.attempt.slow is None else 1 + OWN * (self.attempt.slow[3] - 1)

    def _pace(self, moments: Values) -> Values:
        if self.attempt.first_step > self.attempt.end:
            return np.zeros_like(moments)
        return np.interp(moments, *self._points)

    def state_after(self, rank: int, node: str) -> RankState:
        """The final state of a rank."""
        attempt = self.attempt
        match attempt.outcome:
            case Outcome.FAILED:
                failed = attempt.hangs is not None or rank == attempt.root
                return RankState.FAILED if failed else RankState.TERMINATED
            case Outcome.LOST:
                return RankState.LOST
            case Outcome.PREEMPTED:
                return RankState.PREEMPTED
        return RankState.FINISHED
