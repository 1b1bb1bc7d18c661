"""Cost: prices, what is charged to runs, and what they have spent."""

from __future__ import annotations

from enum import StrEnum

from rankwatch.conventions.declaration import counter, gauge
from rankwatch.conventions.labels import Label


class PriceBasis(StrEnum):
    """What a price stands for. Costs of different bases are never added."""

    LIST = "list"
    """What anybody pays."""
    CONTRACTED = "contracted"
    """What this customer pays."""
    AMORTISED = "amortised"
    """What own machines cost over their life, with power and people."""


FLOPS_PER_TOKEN = "flops_per_token"
"""Name of the scalar by which a run states the FLOPs of its model for a token, forward and backward."""
BASELINE = "baseline_tokens_per_second"
"""Name of the scalar by which a run states how many tokens per second one rank alone makes."""
STEPS_PER_EPOCH = "steps_per_epoch"
"""Name of the scalar by which a run states how many steps an epoch has."""
CPU_MODEL = "cpu"
"""Stands for the model of a GPU where a rank has none: its price is that of a rank."""

_PRICED = (Label.CURRENCY, Label.BASIS)

COST = (
    gauge(
        "rankwatch_gpu_price_per_hour",
        "1",
        (Label.GPU_MODEL, *_PRICED),
        "Price of a GPU for an hour, by the price table as it is valid now; of a rank, for the model cpu. No "
        "series where there is no price.",
    ),
    gauge(
        "rankwatch_run_allocated_gpus",
        "1",
        (Label.RUN, Label.GPU_MODEL),
        "GPUs of this node that are charged to the run, used or not; ranks, for the model cpu. A GPU that "
        "several runs share is divided between them.",
    ),
    gauge(
        "rankwatch_gpu_peak_flops",
        "1",
        (Label.GPU_MODEL, Label.DTYPE),
        "Peak FLOP/s of a GPU by type of numbers, dense, by its data sheet; no series for a model that is "
        "not known.",
    ),
    gauge(
        "rankwatch_run_price_known",
        "1",
        (Label.RUN, Label.GPU_MODEL),
        "1 if the price table has a price for the model now, 0 if the run's cost is not known.",
    ),
    counter(
        "rankwatch_cost_total",
        "1",
        (Label.RUN, *_PRICED),
        "Money that the run has spent on this node: at each moment what was charged to it, at the price of "
        "that moment.",
    ),
    gauge(
        "rankwatch_run_spent",
        "1",
        (Label.RUN, *_PRICED),
        "The same since the start of the run, for sums over its life.",
    ),
    gauge(
        "rankwatch_run_budget",
        "1",
        (Label.RUN, *_PRICED),
        "What the run may spend in all, by the price table; no series where it has no budget.",
    ),
    counter(
        "rankwatch_price_table_failures_total",
        "1",
        (),
        "Times a changed price table could not be used; the one before it stays in force.",
    ),
)
