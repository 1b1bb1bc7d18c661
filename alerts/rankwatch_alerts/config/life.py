"""Settings of the rules on how runs begin, stand still and end."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Life:
    """When a run stands still, has lost a node, has failed, or will be late."""

    stall_floor_seconds: float = 60.0
    """Least time without progress that is a stall, however short the learnt timeout."""
    stall_fallback_seconds: float = 1800.0
    """Timeout before one is learnt (start-up, compilation, the first checkpoint or evaluation of a run): the
    default of PyTorch's process groups. Lower it if none of these takes that long."""
    stall_for_seconds: float = 30.0
    """How long a run must stay past its timeout; twice as long if no rank can be named."""
    stall_most_named_ranks: int = 16
    """Most ranks named in one stall: two nodes of 8. With more, the alert names no ranks."""

    node_silent_seconds: float = 45.0
    """How long nothing of a node must be seen to count as silent: longer than an agent takes to restart, and
    three scrapes if that is longer."""
    node_memory_seconds: float = 3600.0
    """How long a node is remembered of which nothing is seen any more, if its run is not started again."""
    node_lost_most_named: int = 16
    """Most lost nodes of a run with an alert each. With more, or with most nodes of the run lost, one alert
    names the network between them."""
    watchdog_timeout_seconds: float = 600.0
    """Shortest timeout of a process group, NCCL's default. A rank that waited so long before it ended was
    aborted by the watchdog; one that waited less was killed."""
    confirm_seconds: float = 30.0
    """`for` of alerts on facts: two evaluations, so that a single bad scrape raises nothing."""

    ended_shown_seconds: float = 300.0
    """How long after the end of a run its lost ranks are told of: it may have been cancelled."""
    run_failed_for_seconds: float = 180.0
    """How long a run that failed must stand: launchers and schedulers start most of them again."""
    crash_loop_attempts: float = 3.0
    """Attempts one after the other without a new step that are a loop of crashes."""
    preemption_storm: float = 3.0
    """Attempts of one class that are preempted within `preemption_window_seconds`: not one bad requeue."""
    preemption_window_seconds: float = 3600.0
    """How long a preemption counts."""
    pace_window_seconds: float = 7200.0
    """Over how long the pace of a run is taken for its ETA: with checkpoints, evaluations and restarts."""
    behind_plan_for_seconds: float = 1800.0
    """How long a run must be estimated to miss its deadline."""
    startup_budget_seconds: float = 1800.0
    """Longest time from the start of the processes of a run to the end of its first step."""
    startup_factor: float = 2.0
    """How many times as long as its fastest start of the window a start of the same run is slow."""
    startup_least_seconds: float = 300.0
    """A start that is over sooner is not slow compared with earlier ones."""
    startup_window_seconds: float = 86400.0
    """How far back earlier starts of a run count. Caches of compilation rarely outlive it."""
    startup_shown_seconds: float = 1800.0
    """How long after its first step a run that started slowly is told of."""
    objective_window_seconds: float = 604800.0
    """Window of success rates: a week."""
