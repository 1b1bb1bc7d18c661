"""Every window, threshold and selector of the rules."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from rankwatch.settings import build, expect, read_file, read_flags
from rankwatch_alerts.delivery import DELIVERY_SETTINGS, Delivery, is_url
from rankwatch_alerts.importing import IMPORT_SETTINGS, Importing
from rankwatch_alerts.label_names import wrong_names
from rankwatch_alerts.objectives import DEFAULT_CLASS, Objectives
from rankwatch_alerts.rules import ALERT_NAMES, Severity
from rankwatch_alerts.scaling import scaled_times

SHORTEST_SECONDS = 0.001
"""Prometheus writes durations in whole milliseconds."""
LONGEST_SECONDS = 365 * 86400.0
"""A year: no run lasts longer."""


@dataclass(frozen=True, kw_only=True)
class RuleConfig(Objectives, Importing, Delivery):
    """Settings of the rules, the Alertmanager configuration and the dashboards.

    Times are in seconds. Raises FieldError if a value is out of range or two values contradict each other.
    """

    scrape_interval_seconds: float = 15.0
    """Time between two scrapes of an agent; also the interval of rule evaluation."""
    agent_job: str = "rankwatch"
    """Value of `job` on the scrape targets that are agents."""
    step_window_seconds: float = 300.0
    """Window of the mean time of a step; must hold several steps."""
    event_window_seconds: float = 900.0
    """How long a counted event (failed checkpoint, non-finite loss) keeps its alert firing."""

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
    phase_share: float = 0.5
    """Least share of the rank's excess that a phase must hold to be named."""

    cause_cost: float = 0.05
    """Least share of the step that a cause without a rank takes. More than a straggler's: there is no node
    to replace, and every run waits for a few percent of its time."""
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
    """How long nothing of a node must be seen to count as silent: longer than an agent takes to restart."""
    node_memory_seconds: float = 21600.0
    """How long a node is remembered of which nothing is seen any more, if its run is not started again."""
    node_lost_most_named: int = 16
    """Most lost nodes of a run with an alert each. With more, or with most nodes of the run lost, one alert
    names the network between them."""
    watchdog_timeout_seconds: float = 600.0
    """Shortest timeout of a process group, NCCL's default. A rank that waited so long before it ended was
    aborted by the watchdog; one that waited less was killed."""
    confirm_seconds: float = 30.0
    """`for` of alerts on facts: two evaluations, so that a single bad scrape raises nothing."""
    loss_deviation: float = 5.0
    """How far the smoothed loss must be above its trend, in robust standard deviations."""
    loss_for_seconds: float = 300.0
    """How long a loss must diverge; spikes that recover are normal."""
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

    goodput_window_seconds: float = 3600.0
    """Window of goodput, badput by cause and cost. An hour holds a checkpoint, and is what sliding ETTR is
    commonly given over."""
    cost_for_seconds: float = 1800.0
    """How long a forecast must be over the budget, or a price be missing: both are for office hours."""
    gpu_idle_utilization: float = 0.05
    """Mean utilisation of the GPUs of a run below which they idle: copies and monitoring alone stay below."""
    gpu_idle_for_seconds: float = 1800.0
    """How long they must idle: as long as a start-up may take (`startup_budget_seconds`)."""
    goodput_interval_seconds: float = 60.0
    """Interval of the rules of goodput and cost, which change slowly and read long windows."""
    interval_advice_window_seconds: float = 604800.0
    """Window over which saves and interruptions are averaged for the advice about the checkpoint interval:
    a week, because interruptions are rare. Prometheus must keep its data for so long."""

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
    collector_overdue_intervals: float = 5.0
    """Intervals without success after which a collector counts as failing."""
    collector_for_seconds: float = 300.0
    """How long a collector must stay failed or overdue."""

    missed_seconds: float = 60.0
    """Evaluations that are missing for so long, as after a restart of Prometheus, do not begin the wait for
    persistence anew."""
    memory_seconds: float = 900.0
    """How long ago an alert may have fired to fire again without that wait: the longest outage of
    Prometheus that resolves nothing."""

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
    clock_error_seconds: float = 1.0
    """How far a node's clock may be off. The kernel's bound grows by 0.5 ms a second while no time daemon
    sets the clock; daemons set it at least every 1,024 seconds, which keeps the bound near 0.5 s."""
    disk_free_share: float = 0.10
    """Free share of a checkpoint path from which a ticket is raised, however slowly it fills."""
    disk_history_seconds: float = 21600.0
    """History from which it is foreseen when a checkpoint path is full. Holds several checkpoints."""
    disk_ticket_seconds: float = 345600.0
    """Time until a checkpoint path is full from which a ticket is raised: a long weekend."""
    disk_page_seconds: float = 14400.0
    """Time until a checkpoint path in use is full from which a page is raised: the next save may fail."""

    keep_firing_seconds: float = 300.0
    """How long an alert goes on after its condition was last seen: an agent that restarts, or a node that is
    not scraped for a while, is no recovery. The same for all, so that no alert outlives the one that explains
    it."""
    page_least_ranks: Mapping[str, float] = field(
        default_factory=lambda: {"default": 8.0, "production": 1.0, "development": math.inf}
    )
    """Fewest ranks with which a run pages, by its class (`RANKWATCH_RUN_CLASS`); alerts of a smaller run are
    tickets. `default` is for all other classes, and for runs without one."""
    runbook_base_url: str = "https://runbooks.example.com/rankwatch"
    """Where runbooks/ is published; `/<AlertName>` is appended."""
    dashboard_base_url: str = "https://grafana.example.com"
    """Root URL of Grafana; `/d/<uid>` is appended."""
    prometheus_url: str = "http://localhost:9090"
    """Where Grafana finds Prometheus: the data source in the folder of `rankwatch generate`."""
    label_names: Mapping[str, str] = field(default_factory=dict)
    """Other names of labels, by those of rankwatch: `{cluster = "k8s_cluster", node = "hostname"}` where a
    relabelling of Prometheus gives them. Rules, routes, dashboards and runbooks take them."""
    severities: Mapping[str, str] = field(default_factory=dict)
    """Severity of an alert, by its name, where it is not `critical`, `warning` or `info` as shipped. Not for
    alerts that have rules of several severities: their thresholds decide."""

    group_wait_seconds: float = 30.0
    """Time Alertmanager waits for further alerts of a run before it notifies."""
    group_interval_seconds: float = 300.0
    """Time before it notifies of new tickets in a group it has already notified of."""
    page_group_interval_seconds: float = 60.0
    """The same for pages: a second cause must not wait behind the first."""
    repeat_interval_seconds: float = 14400.0
    """Time before it repeats an unchanged notification."""

    def __post_init__(self) -> None:
        """Refuse values with which a rule could never fire, or always would."""
        for name, value in asdict(self).items():
            if name in DELIVERY_SETTINGS | IMPORT_SETTINGS:
                continue
            if isinstance(value, int | float):
                self._check_number(name, value)
            elif name == "page_least_ranks":
                self._check_classes(name, math.inf, "numbers above 0")
            elif name.endswith("_objectives"):
                self._check_classes(name, 1, "shares above 0 and below 1")
            elif name == "runs_expected":
                self._check_classes(name, math.inf, "numbers of at least 2")
            elif name == "label_names":
                expected = "labels of rankwatch, each with a new name that no other label has"
                expect(self, name, not wrong_names(value), expected)
            elif name == "severities":
                known = set(value) <= set(ALERT_NAMES) and set(value.values()) <= set(map(str, Severity))
                expect(self, name, known, "names of alerts, each with critical, warning or info")
            elif name.endswith("_url"):
                expected = "an http(s) URL without template braces, query and fragment"
                expect(self, name, is_url(value), expected)
            else:
                expect(self, name, bool(_JOB.fullmatch(value)), "a name of letters, digits and _ . / : -")
        self.check_delivery()
        self.check_importing()
        scrapes = 4 * self.scrape_interval_seconds
        expected = f"at least 4 scrape intervals ({scrapes})"
        expect(self, "step_window_seconds", self.step_window_seconds >= scrapes, expected)
        self._expect_longer("absence_lookback_seconds", "absence_window_seconds")
        self._expect_longer("goodput_window_seconds", "goodput_interval_seconds")
        self._expect_longer("interval_advice_window_seconds", "goodput_window_seconds")
        self._expect_longer("goodput_slow_window_seconds", "goodput_fast_window_seconds")
        self._expect_longer("slo_period_seconds", "goodput_slow_window_seconds")
        self.check_objectives()
        self._expect_longer("straggler_for_seconds", "step_window_seconds")
        self._expect_longer("cause_for_seconds", "step_window_seconds")
        self._expect_shorter("network_min_baseline_seconds", "network_baseline_seconds")
        self._expect_shorter("straggler_min_history_seconds", "straggler_history_seconds")

    def _check_classes(self, name: str, limit: float, numbers: str) -> None:
        """Limit itself only counts as a value where it is infinite."""
        classes: Mapping[str, float] = getattr(self, name)
        named = DEFAULT_CLASS in classes and all(map(_CLASS.fullmatch, classes))
        within = all(0 < each < limit or each == limit == math.inf for each in classes.values())
        expect(self, name, named and within, f"names of classes, among them {DEFAULT_CLASS}, with {numbers}")

    def _check_number(self, name: str, value: float) -> None:
        expect(self, name, 0 < value < math.inf, "a number above 0")
        if name.endswith("_seconds"):
            expected = f"a number of seconds from {SHORTEST_SECONDS} to {LONGEST_SECONDS:.0f}"
            expect(self, name, SHORTEST_SECONDS <= value <= LONGEST_SECONDS, expected)
        if name in _SHARES:
            expect(self, name, value < 1, "a share below 1")

    def _expect_longer(self, name: str, than: str) -> None:
        least = getattr(self, than)
        expect(self, name, getattr(self, name) > least, f"more than {than} ({least})")

    def _expect_shorter(self, name: str, than: str) -> None:
        limit = getattr(self, than)
        expect(self, name, getattr(self, name) < limit, f"less than {than} ({limit})")

    def scaled(self, time_scale: float) -> RuleConfig:
        """The same rules with all times divided by `time_scale`; thresholds stay.

        The scrape interval stays at or above one second (or as it was, if shorter), and each time holds the
        fewest scrapes that it works with.
        Raises FieldError unless `time_scale` is above 0 and at most MAX_TIME_SCALE (1000).
        """
        return replace(self, **scaled_times(vars(self), time_scale))

    @classmethod
    def for_demo(cls) -> RuleConfig:
        """The rules for a run of minutes: one-second scrapes, all times divided by 60.

        The checkpoint budget is scaled less: a demo need not save every minute. Its runs are small, and page;
        its tickets are delivered at all hours.
        Half a minute on shared CPUs shows nothing of how far ranks differ, so their threshold does not fall.
        All parts read one clock, which need not have a time daemon: the kernel's bound is then 16 s.
        """
        scaled = cls().scaled(60)
        return replace(
            scaled,
            checkpoint_age_budget_seconds=600.0,
            checkpoint_write_skew_seconds=1.0,
            page_least_ranks={DEFAULT_CLASS: 1.0},
            ticket_hours="",
            straggler_least_residual=scaled.straggler_residual,
            clock_error_seconds=60.0,
        )


_SHARES = (
    *("straggler_least_residual", "straggler_most_spread"),
    *("straggler_cost", "phase_share", "cause_cost", "unequal_batches_sigma", "unequal_batches_correlation"),
    *("data_loading_share", "jitter_rank_share", "throttle_share", "power_brake_share", "pcie_load"),
    *(
        "disk_free_share",
        "goodput_fast_budget",
        "goodput_slow_budget",
        "success_page_chance",
        "repeated_share",
    ),
)
_CLASS = re.compile(r"[\w.=@:+-]{1,32}", re.ASCII)
_JOB = re.compile(r"[\w./:-]+", re.ASCII)


def load_config(file: Path | None, flags: Mapping[str, Any] = MappingProxyType({})) -> RuleConfig:
    """The settings in force: flags win over the TOML file, the file over defaults. Raises SettingError.

    `flags` maps field names to the values given; other names in it are left out.
    """
    given = {} if file is None else read_file(RuleConfig, file)
    return build(RuleConfig, given | read_flags(RuleConfig, flags)).values
