"""The times of the rules, divided for demos and tests whose runs last minutes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rankwatch.settings import FieldError

MAX_TIME_SCALE = 1000.0
"""Largest divisor of times."""
_LEAST_SCRAPE_SECONDS = 1.0

_LEAST_SCRAPES = {
    "step_window_seconds": 10,
    "event_window_seconds": 15,
    "straggler_for_seconds": 12,
    "cause_for_seconds": 12,
    "straggler_history_seconds": 90,
    "straggler_min_history_seconds": 30,
    "network_baseline_seconds": 90,
    "network_min_baseline_seconds": 30,
    "stall_floor_seconds": 10,
    "stall_fallback_seconds": 60,
    "stall_for_seconds": 2,
    "node_silent_seconds": 4,
    "node_memory_seconds": 90,
    "watchdog_timeout_seconds": 10,
    "missed_seconds": 4,
    "memory_seconds": 30,
    "confirm_seconds": 2,
    "loss_for_seconds": 15,
    "data_skew_for_seconds": 10,
    "checkpoint_age_budget_seconds": 30,
    "checkpoint_for_seconds": 2,
    "goodput_window_seconds": 60,
    "goodput_interval_seconds": 1,
    "cost_for_seconds": 4,
    "gpu_idle_for_seconds": 15,
    "interval_advice_window_seconds": 240,
    "checkpoint_overlap_window_seconds": 30,
    "checkpoint_slow_window_seconds": 60,
    "ended_shown_seconds": 20,
    "run_failed_for_seconds": 4,
    "preemption_window_seconds": 30,
    "pace_window_seconds": 20,
    "behind_plan_for_seconds": 8,
    "startup_budget_seconds": 60,
    "startup_least_seconds": 30,
    "startup_window_seconds": 240,
    "startup_shown_seconds": 30,
    "objective_window_seconds": 40,
    "slo_interval_seconds": 4,
    "slo_period_seconds": 240,
    "goodput_fast_window_seconds": 60,
    "goodput_slow_window_seconds": 120,
    "success_page_window_seconds": 40,
    "absence_window_seconds": 10,
    "absence_lookback_seconds": 30,
    "absence_for_seconds": 15,
    "ticket_interval_seconds": 1,
    "agent_down_for_seconds": 15,
    "rules_failing_window_seconds": 30,
    "collector_for_seconds": 15,
    "link_flap_window_seconds": 30,
    "disk_history_seconds": 30,
    "disk_ticket_seconds": 60,
    "disk_page_seconds": 30,
    "group_wait_seconds": 1,
    "keep_firing_seconds": 8,
    "group_interval_seconds": 2,
    "page_group_interval_seconds": 2,
    "repeat_interval_seconds": 60,
    "ticket_repeat_interval_seconds": 120,
}
"""Fewest scrapes that each time holds. The longer times survive lost scrapes, and agents and Prometheus that
start in either order."""

NOT_SCALED = frozenset({"clock_error_seconds", "checkpoint_write_skew_seconds", "checkpoint_slow_seconds"})
"""Settings in seconds that are thresholds: a slow save is as long in a demo."""


def scaled_times(settings: Mapping[str, Any], time_scale: float) -> dict[str, Any]:
    """The settings that are times, divided by `time_scale`, but each at least the scrapes it works with.

    Raises FieldError unless `time_scale` is above 0 and at most MAX_TIME_SCALE.
    """
    if not 0 < time_scale <= MAX_TIME_SCALE:
        raise FieldError("time_scale", time_scale, f"a number above 0 and at most {MAX_TIME_SCALE:g}")
    interval = settings["scrape_interval_seconds"]
    scrape = max(interval / time_scale, min(_LEAST_SCRAPE_SECONDS, interval))
    times = {
        name: max(settings[name] / time_scale, min(scrapes * scrape, settings[name]))
        for name, scrapes in _LEAST_SCRAPES.items()
    }
    return {"scrape_interval_seconds": scrape, **times}
