"""Windows and thresholds of the rules: of machines and the agents on them, of what a run makes, of how runs
begin, stand still and end, and of slow steps. And the objectives: how fast a budget burns, and how many
failures are more than chance."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import NormalDist

from rankwatch.settings import expect

DTYPES = ("tf32", "fp16", "bf16", "fp8")
"""Types of numbers of which the peak of a GPU may be known."""


@dataclass(frozen=True, kw_only=True)
class Thresholds:
    """When a run, a rank, a node or the telemetry is not as it should be. Times are in seconds."""

    # When hardware is faulty, or nobody would see it.
    throttle_share: float = 0.10
    """Share of the time in which heat or a hardware slowdown may hold a GPU's clocks down."""
    power_brake_share: float = 0.01
    """The same for the power brake, which halves the clocks and never acts on sound power supplies."""
    pcie_load: float = 0.2
    """Utilisation from which a PCIe link must be at its full width and generation; idle links slow down."""
    nvlink_errors: float = 100.0
    """Replayed and corrupted packets of a GPU's NVLinks within `event_window_seconds` that are too many.
    Sound links have a few; a failed recovery counts from the first."""
    link_flaps: float = 3.0
    """Flaps of a link within `link_flap_window_seconds` from which it is about to fail for good."""
    link_flap_window_seconds: float = 3600.0
    """How long a flap counts."""
    network_error_rate: float = 1.0
    """Errors of a network interface per second that are too many."""
    tcp_retransmit_share: float = 0.01
    """Share of TCP segments sent again that is too much: a single stream with segments of 1,460 bytes and a
    round trip of 0.1 ms then reaches at most 0.18 GB/s (1.22 segments a round trip over the root of the loss,
    Mathis et al. 1997)."""
    tcp_least_segments: float = 100000.0
    """Segments that a node must send within `event_window_seconds` for their share to count."""
    rdma_congestion_share: float = 0.01
    """Share of received RoCE packets with a mark of congestion (ECN) that is too much. By DCQCN (SIGCOMM
    2015), switches mark at most 0.01 of them until their queue is longer than its upper limit."""
    rdma_least_packets: float = 100000.0
    """Packets that a device must receive within `step_window_seconds` for their share to count."""
    rdma_resent_rate: float = 1.0
    """Packets of a device per second that are sent again, because no answer came in time or the receiver was
    not ready, that are too many: NVSentinel's limit of timeouts."""
    clock_error_seconds: float = 1.0
    """How far a node's clock may be off, or differ from that of the median node. The kernel's bound grows by
    0.5 ms a second while no time daemon sets the clock; daemons set it at least every 1,024 seconds, which
    keeps the bound near 0.5 s."""
    disk_free_share: float = 0.10
    """Free share of a checkpoint path from which a ticket is raised, however slowly it fills."""
    disk_history_seconds: float = 21600.0
    """History from which it is foreseen when a checkpoint path is full. Holds several checkpoints."""
    disk_ticket_seconds: float = 345600.0
    """Time until a checkpoint path is full from which a ticket is raised: a long weekend."""
    disk_page_seconds: float = 14400.0
    """Time until a checkpoint path in use is full from which a page is raised: the next save may fail."""

    records_missed_share: float = 0.01
    """Share of the records of ranks that the agent did not read in time from which their figures are wrong:
    less than any threshold of the rules on steps."""
    absence_window_seconds: float = 300.0
    """How long a running rank must be silent to count as vanished."""
    absence_lookback_seconds: float = 1800.0
    """How far back the rules look for series that have vanished."""
    absence_for_seconds: float = 60.0
    """How long telemetry must stay absent."""
    agent_down_for_seconds: float = 180.0
    """How long an agent must be down. Longer than it takes to restart, so that a roll-out raises nothing."""
    rules_failing_window_seconds: float = 900.0
    """How far back failed and missed evaluations of a rule group are counted. Half of all evaluations in
    that time raise an alert."""
    agents_missing_share: float = 0.5
    """Share of the agents of a cluster that do not answer from which the way to them is the cause: one page,
    not one ticket for each."""
    collector_overdue_intervals: float = 5.0
    """Intervals without success after which a collector counts as failing."""
    collector_for_seconds: float = 300.0
    """How long a collector must stay failed or overdue."""

    ticket_interval_seconds: float = 60.0
    """Interval of rules that read something of every node, and for which no page waits by the second: alerts
    on telemetry, on hosts and other tickets on hardware, checkpoints, and what slows a run down, which is
    judged by means over `step_window_seconds`. Baselines: five times that."""
    missed_seconds: float = 60.0
    """Evaluations that are missing for so long, as after a restart of Prometheus, do not begin the wait for
    persistence anew."""
    memory_seconds: float = 900.0
    """How long ago an alert may have fired to fire again without that wait: the longest outage of
    Prometheus that resolves nothing."""

    # When a run does not learn, could lose work, or wastes time and money.
    loss_deviation: float = 5.0
    """How far the smoothed loss must be above its trend, in robust standard deviations."""
    loss_for_seconds: float = 300.0
    """How long a loss must diverge; spikes that recover are normal."""
    loss_non_finite_times: float = 3.0
    """How often within `event_window_seconds` it may be NaN or infinite, and recover, before a ticket is
    raised: overflow skips single steps in mixed precision."""
    loss_improvement: float = 0.005
    """Part by which the loss must become lower within `plateau_steps`, a setting of the agent."""
    data_skew: float = 0.25
    """Part by which the loss level of one rank must differ from the median rank's, also per token."""
    data_skew_for_seconds: float = 1800.0
    """How long it must differ: batches of one rank are harder for a while by chance."""
    checkpoint_age_budget_seconds: float = 3600.0
    """Age of the last good checkpoint from which an alert is raised: the work that a crash would lose."""
    checkpoint_declared_intervals: float = 2.0
    """The same for a run that declares a checkpoint interval, in intervals."""
    checkpoint_for_seconds: float = 60.0
    """How long the last good checkpoint must be too old."""
    checkpoint_overlaps: float = 2.0
    """Saves that were not finished when the next one began from which an alert is raised. The save at the end
    of a run often meets the one before."""
    checkpoint_overlap_window_seconds: float = 7200.0
    """Within this time."""
    checkpoint_write_factor: float = 3.0
    """How much longer than the median rank a rank must write in a save to be named."""
    checkpoint_write_skew_seconds: float = 10.0
    """The same in seconds: nobody waits long for a slow writer of small files."""
    checkpoint_writers: int = 3
    """Fewest ranks that write for one of them to be named."""
    checkpoint_slow_factor: float = 2.0
    """Mean time of a save, relative to the run's own past, from which saves are slow. Shared file systems
    vary by less from hour to hour."""
    checkpoint_slow_seconds: float = 30.0
    """The same in seconds: nobody looks for what makes a short save a little longer."""
    checkpoint_slow_window_seconds: float = 7200.0
    """Window of that mean. Its past is `interval_advice_window_seconds` before it."""
    checkpoint_slow_saves: float = 2.0
    """Fewest saves in the window, and in the past before it, for their means to be compared."""
    checkpoint_space: float = 2.0
    """How many more checkpoints of the size of the last one must fit into each path of them: the next one,
    and one more while somebody makes room. A page is raised if not even the next one fits."""
    checkpoint_blocking_share: float = 0.05
    """Share of the time from which saves block training for too long. CheckFreq (FAST 2021) keeps their cost
    below 0.035 by choosing the interval."""

    goodput_window_seconds: float = 3600.0
    """Window of goodput, badput by cause and cost. An hour holds a checkpoint, and is what sliding ETTR is
    commonly given over."""
    cost_for_seconds: float = 1800.0
    """How long a forecast must be over the budget, or a price be missing: both are for office hours."""
    gpu_idle_utilization: float = 0.05
    """Mean utilisation of the GPUs of a run below which they idle: copies and monitoring alone stay below."""
    gpu_idle_for_seconds: float = 1800.0
    """How long they must idle, or be used too little: as long as a start-up may take
    (`startup_budget_seconds`)."""
    gpu_utilization_objectives: Mapping[str, float] = field(
        default_factory=lambda: {"default": 0.5, "production": 0.8}
    )
    """Mean utilisation of the GPUs of a run that makes steps, by its class, below which a ticket is raised.
    Kernels that wait for other ranks count as utilisation: what is missing are waits for host or storage."""
    mfu_objectives: Mapping[str, float] = field(default_factory=lambda: {"default": 0.1, "production": 0.2})
    """The same for model FLOPs utilisation. Published runs of large models have 0.21 (GPT-3) to 0.46 (PaLM,
    table 3 of arXiv 2204.02311)."""
    mfu_dtype: str = "bf16"
    """Type of numbers against whose peak it is judged: tf32, fp16, bf16 or fp8."""
    goodput_interval_seconds: float = 120.0
    """Interval of the rules of goodput and cost, which change slowly and read long windows."""
    interval_advice_window_seconds: float = 604800.0
    """Window over which saves and interruptions are averaged for the advice about the checkpoint interval:
    a week, because interruptions are rare. Prometheus must keep its data for so long."""

    # When a run stands still, has lost a node, has failed, or will be late.
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

    # When a rank, a stage, data or the network is too slow.
    straggler_residual: float = 0.10
    """Least share by which a straggler's local time exceeds the median of its stage, while the run is young.
    Greyhound calls 0.1 a degradation; differences below 10 % are common among healthy ranks."""
    straggler_least_residual: float = 0.06
    """The same once the run has shown for `straggler_min_history_seconds` that its ranks differ by less."""
    straggler_run_spread_factor: float = 6.0
    """Least excess in standard deviations of the residuals of all ranks, now and in the past. In a run of
    1,024 ranks the slowest healthy one is 3 to 4 above, and in small runs the deviation is not well known."""
    straggler_most_spread: float = 0.05
    """Largest spread that is learnt from the past: chips of one kind differ by 1 to 3 %. What spreads ranks
    more for hours is a fault."""
    straggler_history_seconds: float = 10800.0
    """How far back the spread of the run counts; of that time, the widest tenth does not."""
    straggler_min_history_seconds: float = 1800.0
    """Least history for it: a run that has just begun still warms up."""
    straggler_spread_factor: float = 5.0
    """Least excess in median absolute deviations of its own stage now; 5 is about 3.4 standard deviations."""
    straggler_cost: float = 0.01
    """Least share of the step by which a straggler reaches the collectives late: slower work that costs
    nothing raises no alert."""
    straggler_stage_ranks: int = 3
    """Fewest ranks of a stage to name one among them: of two, nobody can say which is off."""
    straggler_for_seconds: float = 360.0
    """Persistence of a straggler. Longer than `step_window_seconds`, so that one slow event inside the
    window cannot raise the alert."""
    straggler_critical_slowdown: float = 1.5
    """Slowdown of the run from which a straggler is critical: 1.5 wastes a third of the machines."""
    straggler_wait_ratio: float = 0.5
    """Wait in collectives, over that of the median rank of the node, below which the peers of a straggler do
    wait for it. It changes the text of the alert only."""
    straggler_gpu_difference: float = 0.15
    """Least share by which a straggler's GPU works more or less than the median of its peers on the node (SM
    activity, else power) for the alert to say so. It changes the text of the alert only."""
    phase_share: float = 0.5
    """Least share of the rank's excess that a phase must hold to be named."""

    cause_cost: float = 0.05
    """Least share of the step that a cause without a rank takes. More than a straggler's: there is no node
    to replace, and every run waits for a few percent of its time."""
    lasting_share: float = 0.75
    """Share of the evaluations within that time, or `straggler_for_seconds`, in which a cause must be proved;
    those that saw nothing of its run do not count. The rest may be missed scrapes and restarts of agents;
    noise is proved in fewer."""
    cause_for_seconds: float = 600.0
    """Persistence of causes without a rank. Longer than `step_window_seconds`, as a straggler's."""
    stage_ratio: float = 1.15
    """Median compute of a stage, relative to the other stages, from which it is too heavy. Embedding and
    head make the end stages heavier by design, and planners accept about 10 %."""
    stage_every_rank_ratio: float = 1.10
    """The same ratio for the fastest rank of the stage: below it, single ranks are slow, not the stage."""
    stage_ranks: int = 2
    """Fewest ranks in each stage: with one rank, a slow stage and a slow rank look the same."""
    unequal_batches_sigma: float = 0.05
    """Least spread of microbatches or of steps that forward and backward share or that work explains.
    Batches of fixed length stay below 0.01."""
    unequal_batches_correlation: float = 0.5
    """Least correlation with work, or of forward with backward. Noise has 0."""
    data_loading_share: float = 0.10
    """Share of the step from which the wait for data is too long. Loading in the background costs nothing."""
    jitter_ranks: int = 3
    """Fewest ranks with late steps: with two, nobody can say that all are late in turn."""
    jitter_rank_share: float = 0.5
    """Largest share of the lateness that one rank may hold. With more, that rank is the cause."""
    network_growth: float = 1.5
    """Transfer time, relative to its baseline, from which the network is the cause. Shared fabrics vary by 10
    to 20 % from hour to hour, and one node of a group sees part of the waiting."""
    network_baseline_seconds: float = 21600.0
    """Time over which the median is the baseline, of transfer time and of step time."""
    network_min_baseline_seconds: float = 1800.0
    """Least history for a baseline: a run that has just begun has none."""

    step_regression: float = 1.15
    """Step time, relative to the median of the past, from which a run has become slower. Shared fabrics and
    clocks vary by less than 10 %."""


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
