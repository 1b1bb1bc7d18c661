"""The arithmetic of objectives: how fast a budget burns, and how many failures are more than chance."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import NormalDist

from rankwatch.settings import expect

DEFAULT_CLASS = "default"
"""In settings by class: runs of any other class, and of none."""
_MOST_OF_RATE = 0.9
"""Largest share of the highest possible burn rate that a window may need. Above it the window fires only
where nearly all is lost, and from 1 on never."""


@dataclass(frozen=True, kw_only=True)
class Objectives:
    """Settings of the objectives of classes of runs. Times are in seconds."""

    success_objectives: Mapping[str, float] = field(
        default_factory=lambda: {"default": 0.95, "production": 0.99, "experiment": 0.9, "fine-tuning": 0.95}
    )
    """Share of attempts that must end well, by class of runs. `default` is for all other classes."""
    goodput_objectives: Mapping[str, float] = field(
        default_factory=lambda: {"default": 0.85, "production": 0.9, "experiment": 0.8, "fine-tuning": 0.8}
    )
    """Share of the requested time that must make progress that lasts, by class of runs. Llama 3 had more than
    0.9 on 16,384 GPUs (arXiv 2407.21783); short runs pay their start-up more often."""
    slo_interval_seconds: float = 300.0
    """How often good and total time, and ends of attempts, are added up for objectives. Sums over weeks are
    sums over these series, one for each class: no rule reads weeks of the series of every node."""
    slo_period_seconds: float = 2419200.0
    """Period of the budgets: 28 days, so that each has as many weekends. Prometheus must keep its data for
    so long; its default is 15 days."""
    goodput_fast_window_seconds: float = 21600.0
    """Window of the first ticket on goodput. Its last twelfth must burn as fast, so it ends with the loss."""
    goodput_fast_budget: float = 0.04
    """Share of the period's budget that burns within that window when it opens a ticket. At a goodput
    objective of 0.9 that is a goodput of 0.55: single faults have alerts of their own, sooner."""
    goodput_slow_window_seconds: float = 259200.0
    """Window of the ticket on goodput."""
    goodput_slow_budget: float = 0.15
    """Share of the budget that burns within that window when it opens a ticket."""
    success_page_window_seconds: float = 86400.0
    """Window in which different runs that fail are counted for a page."""
    success_page_chance: float = 0.001
    """Largest chance that as many of the runs of that window fail by themselves, at the objective: it gives
    the count from which a page is raised."""
    success_least_attempts: float = 20.0
    """Fewest attempts of a class in the period for a ticket on their success. It also takes more than one
    failure: of 20 attempts, one is more than an objective of 0.99 allows."""
    repeated_share: float = 0.3
    """Share of starts that launcher or scheduler repeat from which a ticket is raised, over
    `objective_window_seconds`. Each repeats the start-up and the steps since the last checkpoint."""
    step_latency_objective: float = 2.0
    """How many times as long as its median step the slowest twentieth of the steps of a run may take."""

    def check_objectives(self) -> None:
        """Raise FieldError for what could never fire: rates and counts that nothing reaches.

        A budget of which a share is used up within a window burns at the rate share x period / window
        (chapter 5 of Google's SRE workbook), and at most at 1 / (1 - objective), where all is lost.
        """
        intervals = 12 * self.slo_interval_seconds
        expected = f"at least 12 intervals of objectives ({intervals})"
        expect(self, "goodput_fast_window_seconds", self.goodput_fast_window_seconds >= intervals, expected)
        for budget in ("goodput_fast_budget", "goodput_slow_budget"):
            window: float = getattr(self, budget.replace("_budget", "_window_seconds"))
            factor = round(getattr(self, budget) * self.slo_period_seconds / window, 4)
            run_class, lowest = min(self.goodput_objectives.items(), key=lambda each: each[1])
            expect(
                self,
                budget,
                factor * (1 - lowest) < _MOST_OF_RATE,
                f"a share whose window can fire: it needs a burn rate of {factor:g}, and at the objective of "
                f"class {run_class}, {lowest:g}, nothing burns faster than {1 / (1 - lowest):g}",
            )

    @property
    def success_page_deviations(self) -> float:
        """Standard deviations of a normal distribution that are exceeded with `success_page_chance`."""
        return round(NormalDist().inv_cdf(1 - self.success_page_chance), 3)
