"""Settings of the rules on what a run makes: learning, checkpoints, goodput and cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

DTYPES = ("tf32", "fp16", "bf16", "fp8")
"""Types of numbers of which the peak of a GPU may be known."""


@dataclass(frozen=True, kw_only=True)
class Work:
    """When a run does not learn, could lose work, or wastes time and money."""

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
    goodput_interval_seconds: float = 60.0
    """Interval of the rules of goodput and cost, which change slowly and read long windows."""
    interval_advice_window_seconds: float = 604800.0
    """Window over which saves and interruptions are averaged for the advice about the checkpoint interval:
    a week, because interruptions are rare. Prometheus must keep its data for so long."""
